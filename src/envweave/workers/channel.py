"""Messages between a trainer and its own worker processes.

Both ends run the same code for the same user, so messages are pickles: they bring every value
back as the very type it was. The private part of a task travels to a worker, never back.
"""

from __future__ import annotations

import pickle
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import cloudpickle

from envweave.types.tasks import PICKLES_WITHHOLD

LENGTH = struct.Struct("<Q")


class PeerGoneError(Exception):
    """The other end is gone. Never leaves the transport."""


def pack(message: Any) -> bytes:
    """Return a message as bytes: quickly where its classes can be imported, else by value."""
    try:
        return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - a local class, a lambda; if it is neither, this raises again
        return pack_by_value(message)


def pack_by_value(message: Any) -> bytes:
    """Return a message as bytes, with whatever the other end may not be able to import."""
    packed: bytes = cloudpickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return packed


def pack_reply(message: Any, pack: Callable[[Any], bytes] = pack) -> bytes:
    """Return what a worker tells its trainer as bytes: without the private parts of tasks."""
    token = PICKLES_WITHHOLD.set(True)
    try:
        return pack(message)
    finally:
        PICKLES_WITHHOLD.reset(token)


@final
class Channel:
    """One end of a private connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def fileno(self) -> int:
        """Return the connection's file descriptor."""
        return self.connection.fileno()

    def send(self, packed: bytes) -> None:
        """Send a message that was packed.

        Raises:
            PeerGoneError: Nobody is there to take it.
        """
        try:
            self.connection.sendall(LENGTH.pack(len(packed)) + packed)
        except OSError as error:
            raise PeerGoneError from error

    def recv(self) -> Any:
        """Return the next message.

        Raises:
            PeerGoneError: None will come.
        """
        return pickle.loads(self.recv_packed())  # noqa: S301 - from our own process

    def recv_packed(self) -> bytearray:
        """Return the next message as it was packed.

        Raises:
            PeerGoneError: None will come.
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
        """Let the other process have a file descriptor of ours.

        Raises:
            PeerGoneError: Nobody is there to take it.
        """
        try:
            socket.send_fds(self.connection, [b"\0"], [fd])
        except OSError as error:
            raise PeerGoneError from error

    def recv_fd(self) -> int:
        """Return a file descriptor that the other process let us have.

        Raises:
            PeerGoneError: None will come.
        """
        try:
            _, fds, _, _ = socket.recv_fds(self.connection, 1, 1)
        except OSError as error:
            raise PeerGoneError from error
        if not fds:
            raise PeerGoneError
        return fds[0]

    def close(self) -> None:
        """Hang up."""
        self.connection.close()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put a Ctrl-C off to the end of the block; a second one comes through.

    Only the main thread is ever interrupted, and only if its handler is a function.
    """
    usual: Any = None
    if threading.current_thread() is threading.main_thread():
        usual = signal.getsignal(signal.SIGINT)
    if not callable(usual):
        yield
        return
    noted: list[tuple[Any, ...]] = []

    def note(*interrupt: Any) -> None:
        noted.append(interrupt)
        if len(noted) > 1:
            usual(*interrupt)

    try:
        signal.signal(signal.SIGINT, note)
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if noted:
            usual(*noted[0])
