"""Waiting for a session's socket with a deadline, blocking or on an event loop."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
from typing import Any, final

WATCH_S = 0.1
"""The longest single wait. The limits that only the host can see are checked as often."""

_LEAST_S = 0.001
_TIMEVAL = struct.Struct("ll")


@final
class SocketPoller:
    """Reads from a blocking socket with a timeout.

    The kernel keeps the time, by a socket option: that costs nothing as long as the option need
    not change, so a wait may end a little early, and the caller waits again.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._descriptor = connection.fileno()
        self._wait_s = 0.0

    def read(self, size: int, left_s: float) -> bytes | None:
        """Return what was sent; `b""` at the end, `None` if it is time to check the clock."""
        wait_s = self._wait_s
        if wait_s > left_s or (wait_s < WATCH_S and 4 * wait_s < left_s):
            # A little less than what is left: the next call has a little less left too.
            self._set(min(WATCH_S, max(0.9 * left_s, _LEAST_S)))
        try:
            return os.read(self._descriptor, size)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def wait_writable(self, left_s: float) -> None:
        """Wait until something can be sent, or it is time to check the clock."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        poll.poll(1000 * max(min(left_s, WATCH_S), _LEAST_S))

    def make_blocking(self) -> None:
        """Remove the timeout: the caller reads the socket itself, with its own deadline."""
        self._set(0.0)

    def _set(self, wait_s: float) -> None:
        wait = _TIMEVAL.pack(0, int(wait_s * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
        self._wait_s = wait_s


@final
class AsyncSocketPoller:
    """Waits for a socket or a task during one call; `close` removes everything from the loop.

    The session is read from only while a call waits for it: a session that floods the host costs
    nothing while a tool runs, and nothing at all between calls.

    Args:
        loop: The running event loop.
        descriptor: The session's socket, which is non-blocking.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
        self.loop = loop
        self._descriptor = descriptor
        self._waiter: asyncio.Future[None] | None = None
        self._data: bytes | None = None
        self._size = 0
        self._is_reading = False
        self._timer: asyncio.TimerHandle | None = None

    async def read(self, size: int, left_s: float) -> bytes | None:
        """Return what the session sent; `b""` at the end, `None` if the time is up first."""
        if self._data is None:
            await self._await_data(size, left_s)
        data, self._data = self._data, None
        return data

    async def _await_data(self, size: int, left_s: float) -> None:
        self._size = size
        if not self._is_reading:
            self.loop.add_reader(self._descriptor, self._readable)
            self._is_reading = True
        try:
            await self._wait(left_s)
        finally:
            self._size = 0

    async def wait_writable(self, left_s: float) -> None:
        """Wait until something can be sent, or the time is up."""
        self.loop.add_writer(self._descriptor, self._wake)
        try:
            await self._wait(left_s)
        finally:
            self.loop.remove_writer(self._descriptor)

    async def done(self, task: asyncio.Future[Any], left_s: float) -> bool:
        """Wait until a task is done or the time is up; return whether it is done."""
        task.add_done_callback(self._wake)
        try:
            await self._wait(left_s)
        finally:
            task.remove_done_callback(self._wake)
        return task.done()

    def close(self) -> None:
        """Remove the timer and the reader from the loop."""
        if self._timer is not None:
            self._timer.cancel()
        self._pause()

    async def _wait(self, left_s: float) -> None:
        """Wait to be woken, at most until the next check of the session is due."""
        self._waiter = self.loop.create_future()
        if self._timer is None:
            self._timer = self.loop.call_later(max(0.0, min(left_s, WATCH_S)), self._tick)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _tick(self) -> None:
        self._timer = None
        self._wake()

    def _wake(self, *_: Any) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _readable(self) -> None:
        if not self._size or self._data is not None:
            self._pause()
            return
        try:
            self._data = os.read(self._descriptor, self._size)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._data = b""
        self._wake()

    def _pause(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self.loop.remove_reader(self._descriptor)
