"""The opening handshake of a WebSocket (RFC 6455), from the client's side. No I/O."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import final

from envweave.errors import WireError

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MAX_HEAD_BYTES = 64 * 1024
_MAX_BODY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Refusal:
    """An HTTP response in place of a WebSocket.

    Attributes:
        status: Its status code.
        reason: The words that came with it.
        headers: By name, in lower case.
        body: As much of it as came.
    """

    status: int
    reason: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@final
class Handshake:
    """Asks a server for a WebSocket, and reads what it says.

    Attributes:
        request: What to send.
        subprotocol: Which of those offered the server chose; `None` if it chose none.
        refusal: What it answered instead, once it has.
        is_done: Whether it agreed.
    """

    def __init__(
        self,
        host: str,
        path: str,
        *,
        subprotocols: Iterable[str] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        key = base64.b64encode(os.urandom(16))
        self._accept = base64.b64encode(hashlib.sha1(key + _MAGIC).digest())  # noqa: S324 - RFC 6455
        self._offered = tuple(subprotocols)
        lines = {
            "Host": host,
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": key.decode("ascii"),
            "Sec-WebSocket-Version": "13",
        }
        if self._offered:
            lines["Sec-WebSocket-Protocol"] = ", ".join(self._offered)
        lines.update(headers or {})
        self.request = _request(path, lines)
        self.subprotocol: str | None = None
        self.refusal: Refusal | None = None
        self.is_done = False
        self._head = bytearray()
        self._length: int | None = None  # of a refusal's body, if it says

    def receive(self, data: bytes) -> bytes:
        """Take in what came from the server; return what came after an agreement.

        Raises:
            WireError: It is no HTTP response, or agrees to something else.
        """
        if self.refusal is not None:
            self._read_body(data)
            return b""
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > _MAX_HEAD_BYTES:
                raise WireError("The server's answer to the handshake has no end.")
            if not b"HTTP/1.1 ".startswith(self._head[:9]) and self._head[:5] != b"HTTP/":
                raise WireError("The server's answer to the handshake is no HTTP.")
            return b""
        rest = bytes(self._head[end + 4 :])
        status, reason, headers = _read_head(bytes(self._head[:end]))
        if status == 101:
            self._agree(headers)
            return rest
        self.refusal = Refusal(status, reason, headers)
        length = headers.get("content-length", "")
        self._length = int(length) if length.isdecimal() and len(length) < 10 else None
        self._read_body(rest)
        return b""

    @property
    def is_refused(self) -> bool:
        """Whether a refusal has come whole; one of unknown length ends with the connection."""
        return (
            self.refusal is not None
            and self._length is not None
            and len(self.refusal.body) >= min(self._length, _MAX_BODY_BYTES)
        )

    def _read_body(self, data: bytes) -> None:
        assert self.refusal is not None
        refusal = self.refusal
        body = (refusal.body + data)[:_MAX_BODY_BYTES]
        self.refusal = Refusal(refusal.status, refusal.reason, refusal.headers, body)

    def _agree(self, headers: Mapping[str, str]) -> None:
        if headers.get("upgrade", "").lower() != "websocket":
            raise WireError("The server agreed to another protocol than WebSocket.")
        if "upgrade" not in {
            one.strip().lower() for one in headers.get("connection", "").split(",")
        }:
            raise WireError("The server's handshake has no `Connection: Upgrade`.")
        if headers.get("sec-websocket-accept", "").encode("latin-1") != self._accept:
            raise WireError("The server's handshake answers another one than ours.")
        if headers.get("sec-websocket-extensions"):
            raise WireError("The server's handshake agrees to an extension that was not offered.")
        chosen = headers.get("sec-websocket-protocol")
        if chosen is not None and chosen not in self._offered:
            raise WireError(f"The server chose the subprotocol {chosen!r}, which was not offered.")
        self.subprotocol = chosen
        self.is_done = True


def _request(path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    for line in lines:
        if "\r" in line or "\n" in line or "\0" in line:
            raise WireError("A header of the handshake holds a line break.")
    try:
        return "\r\n".join([*lines, "", ""]).encode("latin-1")
    except UnicodeEncodeError:
        raise WireError("A header of the handshake holds what no header can.") from None


def _read_head(head: bytes) -> tuple[int, str, dict[str, str]]:
    lines = head.decode("latin-1").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    status, _, reason = rest.partition(" ")
    if version not in ("HTTP/1.1", "HTTP/1.0") or len(status) != 3 or not status.isdecimal():
        raise WireError("The server's answer to the handshake is no HTTP.")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise WireError("The server's answer to the handshake has a header without a colon.")
        key = name.strip().lower()
        value = value.strip()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return int(status), reason, headers
