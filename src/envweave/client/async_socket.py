"""A WebSocket on an event loop: one loop at a time, which may change."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import final

from envweave.client.address import Address
from envweave.client.errors import broken, closed
from envweave.client.socket import BlockingSocket
from envweave.errors import EnvWeaveError
from envweave.wire.websocket import Message

_CHUNK = 1 << 16
_LARGEST_CHUNK = 1 << 22


async def dial_in_thread(dial: Callable[[], BlockingSocket]) -> BlockingSocket:
    """Run `dial` in a thread; if the caller is cancelled meanwhile, the socket is closed."""
    is_cancelled = False

    def dial_unless_cancelled() -> BlockingSocket:
        opened = dial()
        if is_cancelled:
            opened.close()
        return opened

    try:
        return await asyncio.to_thread(dial_unless_cancelled)
    except asyncio.CancelledError:
        is_cancelled = True
        raise


@final
class AsyncSocket:
    """One WebSocket to a server, read by the running event loop.

    Args:
        opened: The WebSocket, just opened.
        address: Where the server is.
        deliver: Called with every message, in order.
        lost: Called once with the error when the connection is gone. Not called after `drop`.
    """

    def __init__(
        self,
        opened: BlockingSocket,
        address: Address,
        deliver: Callable[[Message], None],
        lost: Callable[[EnvWeaveError], None],
    ) -> None:
        self._opened = opened
        self._socket, self._stream, early = opened.detach()
        self._socket.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self._address = address
        self._deliver = deliver
        self._lost = lost
        self._out: deque[memoryview] = deque()  # what the socket did not accept yet
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_gone = False
        self.attach()
        for message in early:
            deliver(message)

    def attach(self) -> None:
        """Read on the running loop, if it is a different one than before."""
        loop = asyncio.get_running_loop()
        if self._loop is loop or self._is_gone:
            return
        self._detach_loop()
        self._loop = loop
        loop.add_reader(self._socket.fileno(), self._readable)
        if self._out:
            self._writable()

    def send(self, data: str | bytes) -> None:
        """Send a message: a `str` as text, `bytes` as binary. It never blocks."""
        stream = self._stream
        self._send(stream.text(data) if isinstance(data, str) else stream.binary(data))

    def send_text(self, data: bytes) -> None:
        """Send a text message that is encoded already."""
        self._send(self._stream.text(data))

    def _send(self, frame: bytes | bytearray) -> None:
        if self._is_gone or not frame:
            return
        self._out.append(memoryview(frame))
        if len(self._out) == 1:
            self._writable()

    def _writable(self) -> None:
        """Send what the socket accepts, and the rest when it is writable again."""
        loop = self._loop
        try:
            while self._out:
                sent = self._socket.send(self._out[0])
                if sent < len(self._out[0]):
                    self._out[0] = self._out[0][sent:]
                else:
                    self._out.popleft()
        except OSError as error:
            if not _would_block(error):
                return  # the reader reports it, after reading what arrived before
        if loop is None or loop.is_closed():
            return
        if self._out:
            loop.add_writer(self._socket.fileno(), self._writable)
        else:
            loop.remove_writer(self._socket.fileno())

    def _readable(self) -> None:
        stream = self._stream
        try:
            # TLS buffers decrypted data that the loop does not know of: read until it is empty.
            while not self._is_gone:
                size = min(max(stream.needed, _CHUNK), _LARGEST_CHUNK)
                chunk = self._socket.recv(size)
                if not chunk:
                    self._fail(broken(self._address, "the server hung up"))
                    return
                self._receive(chunk)
                if len(chunk) < size and not self._address.is_secure:
                    return
        except OSError as error:
            if not _would_block(error):
                self._fail(broken(self._address, str(error)))

    def _receive(self, chunk: bytes) -> None:
        stream = self._stream
        try:
            for message in stream.receive(chunk):
                if not self._is_gone:
                    self._deliver(message)
        except EnvWeaveError as error:
            self._fail(error)
            return
        answers = stream.answers()
        if answers:
            self._send(answers)
        if stream.close_code is not None and not self._is_gone:
            self._fail(closed(self._address, stream.close_code, stream.close_reason))

    def _fail(self, error: EnvWeaveError) -> None:
        if not self._is_gone:
            self.drop()
            self._lost(error)

    def _detach_loop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed() and self._socket.fileno() >= 0:
            loop.remove_reader(self._socket.fileno())
            loop.remove_writer(self._socket.fileno())

    def close(self) -> None:
        """Send a close frame if the socket accepts it, and close. May be called twice."""
        if not self._is_gone:
            with contextlib.suppress(OSError):
                self._socket.send(b"".join((*self._out, self._stream.close())))
        self.drop()

    def drop(self) -> None:
        """Close without a close frame."""
        self._is_gone = True
        self._detach_loop()
        self._opened.drop()


def _would_block(error: OSError) -> bool:
    """Whether the socket is not readable, or not writable, at the moment."""
    # TLS has its own errors for it; `ssl` is slow to import, and often not needed.
    return isinstance(error, BlockingIOError) or type(error).__name__ in (
        "SSLWantReadError",
        "SSLWantWriteError",
    )
