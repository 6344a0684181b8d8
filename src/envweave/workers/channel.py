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
from typing import Any, final

import msgspec

LENGTH = struct.Struct("<Q")

encode_message = msgspec.msgpack.Encoder().encode
decode_message = msgspec.msgpack.Decoder().decode


_CHUNK = 1 << 18


class PeerGoneError(Exception):
    """The other end is gone. Never raised to a caller of envweave."""


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


@final
class FrameConnection:
    """One end of a connection, on one event loop at a time.

    Messages that are sent in one iteration of the loop leave in one write. It reads and writes the
    socket itself, since a transport of asyncio belongs to one loop: callers may run one loop after
    the other.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._fd = connection.fileno()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_message: Callable[[Any], Any]
        self._on_lost: Callable[[], None]
        self._received = FrameBuffer()
        self._unsent: list[bytes] = []  # in this iteration of the loop
        self._rest = bytearray()  # that did not fit
        self._is_broken = False

    def attach(self, on_message: Callable[[Any], Any], on_lost: Callable[[], None]) -> None:
        """Read and write on the loop that runs.

        Args:
            on_message: Called with every message that arrives.
            on_lost: Called when the other end is gone.
        """
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        self._loop = loop
        self._on_message, self._on_lost = on_message, on_lost
        self._connection.settimeout(0)
        loop.add_reader(self._fd, self._on_readable)
        if self._unsent or self._rest:  # by a loop that has ended
            loop.call_soon(self._flush)

    def send(self, message: Any) -> None:
        """Send a message; dropped if the other end is gone."""
        self.send_payloads(encode_message(message))

    def send_payloads(self, *payloads: bytes) -> None:
        """Send payloads as they are, each in a frame; dropped if the other end is gone."""
        if self._loop is None:
            return
        if not self._unsent:
            self._loop.call_soon(self._flush)
        for payload in payloads:
            self._unsent += (LENGTH.pack(len(payload)), payload)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._rest:
            self._rest += b"".join(unsent)
            self._write_rest()
        elif unsent:
            data = b"".join(unsent)
            sent = self._write(data)
            if sent < len(data):
                self._rest += memoryview(data)[sent:]
                self._await_room()

    def _write_rest(self) -> None:
        with memoryview(self._rest) as rest:
            sent = self._write(rest)
        del self._rest[:sent]
        self._await_room()

    def _write(self, data: bytes | memoryview) -> int:
        """Send what fits; return how much."""
        if self._is_broken:
            return len(data)
        try:
            return self._connection.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self._is_broken = True  # the reader finds out that the other end is gone
            return len(data)

    def _await_room(self) -> None:
        if self._loop is None:
            return
        if self._rest:
            self._loop.add_writer(self._fd, self._write_rest)
        else:
            self._loop.remove_writer(self._fd)

    def _on_readable(self) -> None:
        try:
            data = self._connection.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            for message in self._received.feed(data):
                self._on_message(message)
        else:
            self.detach()
            self._on_lost()

    def detach(self) -> None:
        """Send what fits, and leave the loop. May be called twice."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        self._flush()
        if not loop.is_closed():
            loop.remove_reader(self._fd)
            loop.remove_writer(self._fd)


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
