"""Length-prefixed messages between a process and a worker process that it started.

A frame is its length, 8 bytes, and a payload. `Channel` sends and receives payloads and blocks.
`FrameConnection` does the same for an event loop, with payloads that are MessagePack lists.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast, final

import msgspec

LENGTH = struct.Struct("<Q")

encode_message = msgspec.msgpack.Encoder().encode
decode_message = msgspec.msgpack.Decoder().decode


class PeerGoneError(Exception):
    """The other end is gone. Never raised to a caller of envweave."""


def frame(payload: bytes) -> bytes:
    """Return a payload with its length in front."""
    return LENGTH.pack(len(payload)) + payload


@final
class Channel:
    """One end of a connection; its calls block."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def fileno(self) -> int:
        """Return the connection's file descriptor; -1 once it is closed."""
        return self.connection.fileno()

    def send(self, payload: bytes) -> None:
        """Send a payload in a frame.

        Raises:
            PeerGoneError: The other end is closed.
        """
        try:
            self.connection.sendall(LENGTH.pack(len(payload)) + payload)
        except OSError as error:
            raise PeerGoneError from error

    def receive(self) -> bytearray:
        """Return the payload of the next frame.

        Raises:
            PeerGoneError: The other end is closed.
        """
        return self._exactly(LENGTH.unpack(self._exactly(LENGTH.size))[0])

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            try:
                count = self.connection.recv_into(rest)
            except OSError as error:
                raise PeerGoneError from error
            if count == 0:
                raise PeerGoneError
            rest = rest[count:]
        return data

    def send_fd(self, fd: int) -> None:
        """Pass a file descriptor of ours to the other process.

        Raises:
            PeerGoneError: The other end is closed.
        """
        try:
            socket.send_fds(self.connection, [b"\0"], [fd])
        except OSError as error:
            raise PeerGoneError from error

    def receive_fd(self) -> int:
        """Return a file descriptor that the other process passed to us.

        Raises:
            PeerGoneError: The other end is closed.
        """
        try:
            _, fds, _, _ = socket.recv_fds(self.connection, 1, 1)
        except OSError as error:
            raise PeerGoneError from error
        if not fds:
            raise PeerGoneError
        return fds[0]

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


@final
class FrameBuffer:
    """Cuts received bytes into messages."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Take bytes as they arrive; return the messages that are now complete."""
        received = self._received
        received += data
        messages: list[Any] = []
        start, end = 0, len(received)
        while end - start >= LENGTH.size:
            stop = start + LENGTH.size + LENGTH.unpack_from(received, start)[0]
            if stop > end:
                break
            with memoryview(received) as view:
                messages.append(decode_message(view[start + LENGTH.size : stop]))
            start = stop
        if start:
            del received[:start]
        return messages

    def clear(self) -> None:
        """Drop an incomplete message."""
        self._received.clear()


@final
class FrameConnection(asyncio.Protocol):
    """One end of a connection, on an event loop.

    Messages that are sent in one iteration of the loop leave in one write.

    Args:
        on_message: Called with every message that arrives.
        on_lost: Called when the other end is gone.
    """

    def __init__(self, on_message: Callable[[Any], None], on_lost: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._buffer = FrameBuffer()
        self._unsent: list[bytes] = []

    @classmethod
    async def open(
        cls,
        connection: socket.socket,
        on_message: Callable[[Any], None],
        on_lost: Callable[[], None],
    ) -> FrameConnection:
        """Read and write a socket on the running loop."""
        connection.setblocking(False)  # noqa: FBT003 - by position only
        _, opened = await asyncio.get_running_loop().create_connection(
            lambda: cls(on_message, on_lost), sock=connection
        )
        return opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, _: Exception | None) -> None:
        """Called by the loop."""
        self._transport = None
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        for message in self._buffer.feed(data):
            self._on_message(message)

    def send(self, message: Any) -> None:
        """Send a message; dropped if the other end is gone."""
        self.send_payloads(encode_message(message))

    def send_payloads(self, *payloads: bytes) -> None:
        """Send payloads as they are, each in a frame; dropped if the other end is gone."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        for payload in payloads:
            self._unsent += (LENGTH.pack(len(payload)), payload)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._transport is not None:
            self._transport.write(b"".join(unsent))

    def close(self) -> None:
        """Close the connection once everything is sent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay a Ctrl-C to the end of the block; a second one is delivered at once.

    Only the main thread is ever interrupted, and only if its handler is a function.
    """
    handler: Any = None
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        yield
        return
    delayed: list[tuple[Any, ...]] = []

    def delay(*interrupt: Any) -> None:
        delayed.append(interrupt)
        if len(delayed) > 1:
            handler(*interrupt)

    try:
        signal.signal(signal.SIGINT, delay)
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if delayed:
            handler(*delayed[0])
