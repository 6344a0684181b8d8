"""Frames on a byte stream, and blocking I/O for small messages at a session's start or branch."""

from __future__ import annotations

import socket
import struct
import time
from typing import final

from envweave.errors import BranchError, SessionLostError
from envweave.sandbox.protocol import decoding
from envweave.sandbox.protocol.encoding import OWN
from envweave.sandbox.protocol.messages import HEADER_BYTES, FromSession

__builtins__ = OWN

_number = int.from_bytes


class FrameError(ValueError):
    """A frame announces more than its reader accepts. Nothing after it can be read."""


@final
class Frames:
    """The frames of one stream, in order, at a cost linear in its bytes however it is cut.

    Args:
        limit_bytes: The longest frame, its header not counted.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._buffer: bytes | bytearray = b""

    def feed(self, data: bytes) -> None:
        """Add what was read."""
        if not self._buffer:
            self._buffer = data  # most often a whole frame, and then never copied together
        elif isinstance(self._buffer, bytearray):
            self._buffer += data
        else:
            self._buffer = bytearray(self._buffer)
            self._buffer += data

    def next(self) -> bytes | None:
        """Return the content of the next whole frame; `None` if more must be fed first.

        Raises:
            FrameError: It announces more than the limit; raised again by every later call.
        """
        buffer = self._buffer
        size = len(buffer)
        if size < HEADER_BYTES:
            return None
        end = HEADER_BYTES + _number(buffer[:HEADER_BYTES], "little")
        if end > HEADER_BYTES + self._limit_bytes:
            raise FrameError(
                f"A frame announces {end - HEADER_BYTES} bytes, more than the limit of "
                f"{self._limit_bytes}."
            )
        if size < end:
            return None
        if isinstance(buffer, bytes):
            if size == end:
                self._buffer = b""
                return buffer[HEADER_BYTES:]
            buffer = self._buffer = bytearray(buffer)
        with memoryview(buffer) as whole, whole[HEADER_BYTES:end] as part:
            frame = bytes(part)
        if size == end:
            self._buffer = b""
        else:
            del buffer[:end]  # moves the start of the buffer: nothing is copied
        return frame

    @property
    def is_empty(self) -> bool:
        """Whether all that was fed has been returned."""
        return not self._buffer

    @property
    def missing(self) -> int:
        """How many bytes the current frame lacks, as far as is known; at least 1."""
        buffer = self._buffer
        if len(buffer) < HEADER_BYTES:
            return HEADER_BYTES - len(buffer)
        return max(1, HEADER_BYTES + _number(buffer[:HEADER_BYTES], "little") - len(buffer))


SMALL_BYTES = 1 << 16
"""The longest message while a session starts or branches."""

_CREDENTIALS = struct.Struct("3i")


def decode_message(data: bytes) -> FromSession:
    """Return the message of a session.

    Raises:
        SessionLostError: The bytes are not a valid message.
    """
    try:
        return decoding.read_from_session(data)
    except Exception as error:  # noqa: BLE001 - hostile bytes may raise whatever a decoder can
        raise SessionLostError(
            f"A session sent an invalid message: {type(error).__name__}"
        ) from None


def send(connection: socket.socket, data: bytes, deadline: float) -> None:
    """Send to a session, which may never read.

    Raises:
        SessionLostError: It did not read in time, or is gone.
    """
    connection.settimeout(max(deadline - time.monotonic(), 0.001))
    try:
        connection.sendall(data)
    except OSError as error:
        raise SessionLostError(f"A session does not read: {error}") from None
    connection.settimeout(None)


def read_exactly(connection: socket.socket, size: int, deadline: float) -> bytes:
    """Read exactly `size` bytes.

    Raises:
        SessionLostError: They did not arrive in time, or the session is gone.
    """
    data = b""
    while len(data) < size:
        left_s = deadline - time.monotonic()
        if left_s <= 0:  # a session that keeps sending must not extend the deadline
            raise SessionLostError("A session did not answer in time.")
        connection.settimeout(left_s)
        try:
            more = connection.recv(size - len(data))
        except TimeoutError:
            raise SessionLostError("A session did not answer in time.") from None
        except OSError as error:
            raise SessionLostError(f"A session is gone: {error}") from None
        if not more:
            raise SessionLostError("A session is gone.")
        data += more
    connection.settimeout(None)
    return data


def read_with_sender(connection: socket.socket, deadline: float) -> tuple[int, bytes]:
    """Read one message; return the process id of its sender, from the kernel, and the message.

    Raises:
        BranchError: None arrived in time.
    """
    connection.settimeout(max(deadline - time.monotonic(), 0.001))
    try:
        data, ancillary, _, _ = connection.recvmsg(
            SMALL_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
        )
    except OSError as error:
        raise BranchError(f"The copy did not answer: {error}") from error
    finally:
        connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            length = int.from_bytes(data[:HEADER_BYTES], "little")
            if length == len(data) - HEADER_BYTES:
                return _CREDENTIALS.unpack_from(content)[0], data[HEADER_BYTES:]
    raise BranchError("The copy did not answer.")
