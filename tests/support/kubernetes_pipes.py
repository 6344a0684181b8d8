"""The far end of a forwarded port, as a cluster has it: frames of a WebSocket on a plain socket."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import final


@final
class FarEnd:
    """Answers each connection with what it was told, in upper case, unless that is a word for more.

    It hangs up at `b"bye"`, says a failure for `b"fail"`, and nothing at `b"hush"`.

    Attributes:
        count: How many connections there were.
    """

    def __init__(self, port: int = 8000) -> None:
        self._port = struct.pack("<H", port)
        self._threads: list[threading.Thread] = []
        self.count = 0

    def connect(self) -> socket.socket:
        """Return the near end of a new connection."""
        near, far = socket.socketpair()
        self.count += 1
        thread = threading.Thread(target=self._answer, args=(far,), daemon=True)
        self._threads.append(thread)
        thread.start()
        return near

    def join(self) -> None:
        """Wait until all connections are closed."""
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()

    def _answer(self, far: socket.socket) -> None:
        # Who hangs up does not always wait for an answer.
        with far, far.makefile("rb") as reading, contextlib.suppress(OSError):
            for channel in (0, 1):
                far.sendall(_frame(bytes((channel,)) + self._port))
            while True:
                opcode, data = _read(reading)
                if opcode != 2:
                    return
                assert data[0] == 0
                if data[1:] == b"bye":
                    return
                if data[1:] == b"fail":
                    far.sendall(_frame(b"\x01connection refused"))
                elif data[1:] != b"hush":
                    far.sendall(_frame(b"\0" + data[1:].upper()))


def _frame(data: bytes) -> bytes:
    if len(data) < 126:
        return bytes((0x82, len(data))) + data
    if len(data) < 2**16:
        return bytes((0x82, 126)) + struct.pack(">H", len(data)) + data
    return bytes((0x82, 127)) + struct.pack(">Q", len(data)) + data


def _read(reading) -> tuple[int, bytes]:
    head = reading.read(2)
    if len(head) < 2:
        return 8, b""
    length = head[1] & 127
    if length == 126:
        (length,) = struct.unpack(">H", reading.read(2))
    elif length == 127:
        (length,) = struct.unpack(">Q", reading.read(8))
    mask = reading.read(4)
    data = reading.read(length)
    key = mask * (length // 4 + 1)
    plain = int.from_bytes(data, "big") ^ int.from_bytes(key[:length], "big")
    return head[0] & 15, plain.to_bytes(length, "big")
