"""Cuts a stream of bytes into the frames it carries."""

from __future__ import annotations

import socket
import struct
import time
from typing import final

from envweave.errors import BranchError, SessionLostError
from envweave.sandbox.protocol import plain_values
from envweave.sandbox.protocol.encoding import OWN
from envweave.sandbox.protocol.messages import HEADER_BYTES, FromSession

__builtins__ = OWN

_number = int.from_bytes


class FrameError(ValueError):
    """A frame announces more than its reader takes. Nothing after it can be read."""


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
        """Take what was read."""
        if not self._buffer:
            self._buffer = data  # most often a whole frame, and then never copied together
        elif isinstance(self._buffer, bytearray):
            self._buffer += data
        else:
            self._buffer = bytearray(self._buffer)
            self._buffer += data

    def next(self) -> bytes | None:
        """Return what the next whole frame holds; `None` if more must be fed first.

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
                f"A frame announces {end - HEADER_BYTES} bytes, and {self._limit_bytes} is the "
                "most."
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
        """How many bytes the frame under way lacks, as far as is known; at least 1."""
        buffer = self._buffer
        if len(buffer) < HEADER_BYTES:
            return HEADER_BYTES - len(buffer)
        return max(1, HEADER_BYTES + _number(buffer[:HEADER_BYTES], "little") - len(buffer))


SMALL_BYTES = 1 << 16
"""The longest of them."""

_CREDENTIALS = struct.Struct("3i")


def decoded(data: bytes) -> FromSession:
    """Return the message.

    Raises:
        SessionLostError: These bytes are none.
    """
    try:
        return plain_values.read_from_session(data)
    except Exception as error:  # noqa: BLE001 - whatever hostile bytes make of the decoder
        raise SessionLostError(f"A session spoke out of turn: {type(error).__name__}") from None


def send(line: socket.socket, data: bytes, deadline: float) -> None:
    """Send to a session, which may never read.

    Raises:
        SessionLostError: It did not take it in time, or is gone.
    """
    line.settimeout(max(deadline - time.monotonic(), 0.001))
    try:
        line.sendall(data)
    except OSError as error:
        raise SessionLostError(f"A session does not read: {error}") from None
    line.settimeout(None)


def read_exactly(line: socket.socket, size: int, deadline: float) -> bytes:
    """Read so many bytes.

    Raises:
        SessionLostError: They did not come in time, or the session is gone.
    """
    data = b""
    while len(data) < size:
        left_s = deadline - time.monotonic()
        if left_s <= 0:  # one that never stops talking would always be heard
            raise SessionLostError("A session did not answer in time.")
        line.settimeout(left_s)
        try:
            more = line.recv(size - len(data))
        except TimeoutError:
            raise SessionLostError("A session did not answer in time.") from None
        except OSError as error:
            raise SessionLostError(f"A session is gone: {error}") from None
        if not more:
            raise SessionLostError("A session is gone.")
        data += more
    line.settimeout(None)
    return data


def read_with_sender(line: socket.socket, deadline: float) -> tuple[int, bytes]:
    """Read one message, and who sent it by the kernel's word.

    Raises:
        BranchError: None came in time.
    """
    line.settimeout(max(deadline - time.monotonic(), 0.001))
    try:
        data, ancillary, _, _ = line.recvmsg(SMALL_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
    except OSError as error:
        raise BranchError(f"The copy did not answer: {error}") from error
    finally:
        line.settimeout(None)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            length = int.from_bytes(data[:HEADER_BYTES], "little")
            if length == len(data) - HEADER_BYTES:
                return _CREDENTIALS.unpack_from(content)[0], data[HEADER_BYTES:]
    raise BranchError("The copy did not answer.")
