"""Small messages between the host and a session that is about to be one, each with a deadline.

Whoever is at the other end may never read, never stop writing, or send what nobody can read.
"""

from __future__ import annotations

import socket
import struct
import time

from envweave.errors import BranchError, SessionLostError
from envweave.sandbox import plain
from envweave.sandbox.messages import HEADER_BYTES, FromSession

SMALL_BYTES = 1 << 16
"""The longest of them."""

_CREDENTIALS = struct.Struct("3i")


def decoded(data: bytes) -> FromSession:
    """Return the message.

    Raises:
        SessionLostError: These bytes are none.
    """
    try:
        return plain.read_from_session(data)
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
