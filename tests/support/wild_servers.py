"""Servers that speak WebSocket, and then do as they are told: for clients that must bear it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from envweave.wire.encoding import MSGPACK

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

Answer = Callable[["Peer", dict[str, Any]], bool]
"""Given each call; returns whether it has dealt with it."""


class Peer:
    """One connection of a client, once the handshake is done."""

    def __init__(self, line: socket.socket, description: Any) -> None:
        self.line = line
        self._description = description

    def put(self, data: bytes, opcode: int = 2, *, is_final: bool = True) -> None:
        size = len(data)
        head = bytes([0x80 * is_final | opcode])
        if size < 126:
            head += bytes([size])
        else:
            head += b"\x7f" + struct.pack("!Q", size)
        self.line.sendall(head + data)

    def say(self, call: dict[str, Any], **reply: Any) -> bool:
        session = call.get("session", "")
        self.put(MSGPACK.encode({"id": call["id"], "session": session, **reply}))
        return True

    def serve(self, answer: Answer) -> None:
        """Answer every call as a server would, unless `answer` has dealt with it."""
        while (data := self._read()) is not None:
            plain = MSGPACK.decode(data)
            for call in plain.get("calls", [plain]):
                if not answer(self, call):
                    self.say(call, result=self._result(call["method"]))

    def _result(self, method: str) -> Any:
        return {
            "describe": self._description,
            "open": {"agents": None},
            "reset": {
                "observation": {"value": 0},
                "is_reset": True,
                "episode_id": "e-0",
                "position": [1, 0, 0, "e"],
            },
            "step": {
                "observation": {"value": 1},
                "reward": 1.0,
                "episode_id": "e-0",
                "step_index": 1,
            },
            "state": {"episode_id": "e-0", "step_count": 1},
        }.get(method)

    def _read(self) -> bytes | None:
        head = self._exactly(2)
        size = head[1] & 0x7F
        if size > 125:
            size = int.from_bytes(self._exactly(2 if size == 126 else 8), "big")
        key, data = self._exactly(4), self._exactly(size)
        if head[0] & 0x0F == 8:
            return None
        return bytes(byte ^ key[i % 4] for i, byte in enumerate(data))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.line.recv(size - len(data))
            if not chunk:
                raise ConnectionError
            data += chunk
        return data


@contextmanager
def wild_server(behave: Callable[[Peer], None], description: Any = None) -> Iterator[str]:
    """Serve while the block runs; yield the URL. Each connection is given to `behave`."""
    listener = socket.create_server(("127.0.0.1", 0))
    lines: list[socket.socket] = []

    def meet(line: socket.socket) -> None:
        with contextlib.suppress(OSError), line:
            _shake_hands(line)
            behave(Peer(line, description))

    def run() -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = listener.accept()
                lines.append(line)
                threading.Thread(target=meet, args=(line,), daemon=True).start()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for line in lines:
            line.close()
        thread.join(30)


def _shake_hands(line: socket.socket) -> None:
    head = b""
    while b"\r\n\r\n" not in head:
        chunk = line.recv(65536)
        if not chunk:
            raise ConnectionError
        head += chunk
    key = next(one for one in head.split(b"\r\n") if one.lower().startswith(b"sec-websocket-key:"))
    accept = base64.b64encode(hashlib.sha1(key.partition(b": ")[2] + _MAGIC).digest())
    line.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n"
        b"Sec-WebSocket-Protocol: envweave.v1.msgpack\r\n\r\n"
    )
