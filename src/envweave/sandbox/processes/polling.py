"""Waits on an event loop for a session's socket, for a task, or for a moment to come."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
from typing import Any, final

from envweave.sandbox.processes.process import SessionHandle

WATCH_S = 0.1
"""The longest wait. The limits that nobody but the host watches are looked at as often."""

_LEAST_S = 0.001
_TIMEVAL = struct.Struct("ll")


@final
class SocketPoller:
    """Reads from a blocking socket, for so long.

    The kernel keeps the time, by an option of the socket: that costs nothing as long as the option
    can stay as it is, so a wait may end a little early, and is then gone on with.
    """

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._descriptor = line.fileno()
        self._wait_s = 0.0

    def read(self, room: int, left_s: float) -> bytes | None:
        """Return what was sent; nothing at the end, `None` if it is time to look at the clock."""
        wait_s = self._wait_s
        if wait_s > left_s or (wait_s < WATCH_S and 4 * wait_s < left_s):
            # A little less than what is left: the next call has a little less left too.
            self._set(min(WATCH_S, max(0.9 * left_s, _LEAST_S)))
        try:
            return os.read(self._descriptor, room)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def wait_for_room(self, left_s: float) -> None:
        """Wait until something can be sent, or it is time to look at the clock."""
        waiting = select.poll()
        waiting.register(self._descriptor, select.POLLOUT)
        waiting.poll(1000 * max(min(left_s, WATCH_S), _LEAST_S))

    def lend(self) -> None:
        """Let the socket wait for ever: another reads it, by a clock of their own."""
        self._set(0.0)

    def _set(self, wait_s: float) -> None:
        wait = _TIMEVAL.pack(0, int(wait_s * 1e6))
        self._line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
        self._wait_s = wait_s


@final
class AsyncSocketPoller:
    """What one call waits for. Nothing of it is left with the loop after `close`.

    The session is read from only while somebody waits for it: one that floods the host costs
    nothing while a tool runs, and nothing at all between calls.

    Args:
        loop: The event loop that runs.
        descriptor: The session's socket, which does not block.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
        self.loop = loop
        self._descriptor = descriptor
        self._waiter: asyncio.Future[None] | None = None
        self._data: bytes | None = None
        self._room = 0
        self._is_reading = False
        self._timer: asyncio.TimerHandle | None = None

    async def read(self, room: int, left_s: float) -> bytes | None:
        """Return what the session sent; nothing at its end, `None` if the time is over first."""
        if self._data is None:
            await self._await_data(room, left_s)
        data, self._data = self._data, None
        return data

    async def _await_data(self, room: int, left_s: float) -> None:
        self._room = room
        if not self._is_reading:
            self.loop.add_reader(self._descriptor, self._readable)
            self._is_reading = True
        try:
            await self._wait(left_s)
        finally:
            self._room = 0

    async def writable(self, left_s: float) -> None:
        """Wait until something can be sent, or the time is over."""
        self.loop.add_writer(self._descriptor, self._wake)
        try:
            await self._wait(left_s)
        finally:
            self.loop.remove_writer(self._descriptor)

    async def done(self, task: asyncio.Future[Any], left_s: float) -> bool:
        """Wait until a task is done, or the time is over; say which."""
        task.add_done_callback(self._wake)
        try:
            await self._wait(left_s)
        finally:
            task.remove_done_callback(self._wake)
        return task.done()

    def close(self) -> None:
        """Take back what the loop was told."""
        if self._timer is not None:
            self._timer.cancel()
        self._pause()

    async def _wait(self, left_s: float) -> None:
        """Wait to be woken, at most as long as until the next look at the session is due."""
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
        if not self._room or self._data is not None:
            self._pause()
            return
        try:
            self._data = os.read(self._descriptor, self._room)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._data = b""
        self._wake()

    def _pause(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self.loop.remove_reader(self._descriptor)


def release_late(making: asyncio.Future[SessionHandle]) -> None:
    """Release a body that came after nobody wanted it any more."""
    if not making.cancelled() and making.exception() is None:
        making.result().release()


def settle(future: asyncio.Future[None]) -> None:
    """Wake whoever waits for a future, if they still do."""
    if not future.done():
        future.set_result(None)
