"""WebSocket frames (RFC 6455) from the client's side. No I/O.

`ClientStream` is fed the bytes of a server and returns whole messages; `Handshake` opens the
WebSocket. Whatever the server sends, they raise nothing but `WireError`.
"""

from __future__ import annotations

import base64
import codecs
import hashlib
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np

from envweave.errors import WireError

Message = str | bytes | bytearray | memoryview
"""Text, or binary data. A view is owned by the receiver."""

MAX_MESSAGE_BYTES: Final = 256 * 2**20

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
NORMAL, GOING_AWAY, PROTOCOL_ERROR, NO_STATUS, BAD_TEXT, TOO_BIG = (
    1000,
    1001,
    1002,
    1005,
    1007,
    1009,
)

_SMALL = 1024
_KEYS = 4096
_CODES = frozenset((1000, 1001, 1002, 1003, *range(1007, 1015), *range(3000, 5000)))


@final
class ClientStream:
    """The frames of one WebSocket, once its handshake is done.

    Attributes:
        close_code: The code of the server's close frame, once received; `NO_STATUS` if it has
            none.
        close_reason: The reason in it.
    """

    def __init__(self, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.close_code: int | None = None
        self.close_reason = ""
        self._limit = max_message_bytes
        self._in = bytearray()
        self._out = bytearray()
        self._opcode = 0  # of an incomplete message
        self._parts: list[bytes] = []
        self._size = 0
        self._needed = 2
        self._has_closed = False
        self._failure: WireError | None = None

    def text(self, data: str | bytes) -> bytes | bytearray:
        """Return the frame of a text message."""
        return _frame(TEXT, data.encode() if isinstance(data, str) else data)

    def binary(self, data: bytes) -> bytes | bytearray:
        """Return the frame of a binary message."""
        return _frame(BINARY, data)

    def close(self, code: int = NORMAL, reason: str = "") -> bytes | bytearray:
        """Return the frame that closes the WebSocket; nothing if it was closed before."""
        if self._has_closed:
            return b""
        self._has_closed = True
        text = reason.encode()[:123].decode(errors="ignore").encode()
        return _frame(CLOSE, code.to_bytes(2, "big") + text)

    def answers(self) -> bytes:
        """Return, once, the frames to send in response: to pings and to a close."""
        if not self._out:
            return b""
        out = bytes(self._out)
        self._out.clear()
        return out

    @property
    def needed(self) -> int:
        """How many bytes are needed to make progress; at least 1."""
        return max(1, self._needed - len(self._in))

    def receive(self, data: bytes | bytearray | memoryview) -> list[Message]:
        """Feed bytes from the server, and return the messages that are complete.

        Nothing after a close frame is read.

        Raises:
            WireError: A frame is invalid, or a message is too large or not UTF-8. The stream
                cannot be used any more, and raises the same again.
        """
        if self._failure is not None:
            raise self._failure
        self._in += data
        messages: list[Message] = []
        try:
            while len(self._in) >= self._needed and self.close_code is None:
                self._read_frame(messages)
        except _Broken as broken:
            self._failure = WireError(str(broken))
            self._out += self.close(broken.code)
            raise self._failure from None
        return messages

    def _read_frame(self, messages: list[Message]) -> None:
        """Read the first frame; if it is incomplete, record how many bytes it needs."""
        buffer = self._in
        first, length = buffer[0], buffer[1]
        opcode, is_final = first & 0x0F, bool(first & 0x80)
        if first & 0x70:
            raise _Broken("The server sent a frame of an extension that was not agreed on.")
        if length & 0x80:
            raise _Broken("The server sent a masked frame.")
        start = 2
        if length > 125:
            start = 4 if length == 126 else 10
            if len(buffer) < start:
                self._needed = start
                return
            length = int.from_bytes(buffer[2:start], "big")
        self._check(opcode, length, is_final=is_final)
        end = start + length
        if len(buffer) < end:
            self._needed = end
            return
        self._needed = 2
        if opcode >= CLOSE:
            payload = bytes(buffer[start:end])
            del buffer[:end]
            self._control(opcode, payload)
            return
        if is_final and not self._parts and len(buffer) == end:
            # The buffer is exactly one message, as usual: it is returned without a copy.
            self._in = bytearray()
            self._opcode = 0
            messages.append(_message(opcode, memoryview(buffer)[start:]))
            return
        part = bytes(memoryview(buffer)[start:end])
        del buffer[:end]
        self._data(opcode, part, messages, is_final=is_final)

    def _check(self, opcode: int, length: int, *, is_final: bool) -> None:
        if opcode >= CLOSE:
            if opcode > PONG:
                raise _Broken(f"The server sent a frame of the unknown kind {opcode}.")
            if not is_final or length > 125:
                raise _Broken("The server sent a control frame in parts, or too large a one.")
            return
        if opcode > BINARY:
            raise _Broken(f"The server sent a frame of the unknown kind {opcode}.")
        if (opcode == 0) != (self._opcode != 0):
            raise _Broken("The server sent the parts of a message out of order.")
        if self._size + length > self._limit:
            raise _Broken(f"The server sent a message of more than {self._limit} bytes.", TOO_BIG)

    def _data(self, opcode: int, part: bytes, messages: list[Message], *, is_final: bool) -> None:
        self._opcode = opcode or self._opcode
        if not is_final:
            self._size += len(part)
            if part:  # there may be any number of empty parts
                self._parts.append(part)
            return
        whole = b"".join((*self._parts, part)) if self._parts else part
        messages.append(_message(self._opcode, whole))
        self._parts.clear()
        self._opcode = self._size = 0

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == PONG:
            return
        if opcode == PING:
            if not self._has_closed:
                self._out += _frame(PONG, payload)
            return
        code, reason = NO_STATUS, ""
        if payload:
            code = int.from_bytes(payload[:2], "big")
            if len(payload) < 2 or code not in _CODES:
                raise _Broken("The server closed with a code that does not exist.")
            reason = _text(payload[2:])
        self.close_code, self.close_reason = code, reason
        self._out += self.close(NORMAL if code == NO_STATUS else code)


@final
class _Broken(Exception):  # noqa: N818 - it never leaves this module
    def __init__(self, message: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.code = code


def _message(opcode: int, payload: bytes | memoryview) -> Message:
    return payload if opcode == BINARY else _text(payload)


def _text(payload: bytes | memoryview) -> str:
    try:
        return codecs.decode(payload, "utf-8")
    except UnicodeDecodeError:
        raise _Broken("The server sent text that is not UTF-8.", BAD_TEXT) from None


_keys = memoryview(b"")
_keys_owner = 0


def _key() -> memoryview:
    """Return four random bytes."""
    global _keys, _keys_owner
    keys = _keys
    if len(keys) < 4 or _keys_owner != os.getpid():
        keys, _keys_owner = memoryview(os.urandom(_KEYS)), os.getpid()
    _keys = keys[4:]
    return keys[:4]


def _frame(opcode: int, payload: bytes) -> bytes | bytearray:
    """Return a whole frame, masked as a client must."""
    size, key = len(payload), _key()
    if size < 126:
        head = bytes((0x80 | opcode, 0x80 | size)) + key
    elif size < 1 << 16:
        head = struct.pack("!BBH", 0x80 | opcode, 0xFE, size) + key
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 0xFF, size) + key
    if size <= _SMALL:
        pad = (bytes(key) * (size // 4 + 1))[:size]
        mixed = int.from_bytes(payload, "little") ^ int.from_bytes(pad, "little")
        return head + mixed.to_bytes(size, "little")
    frame = bytearray(len(head) + size)
    frame[: len(head)] = head
    source = np.frombuffer(payload, np.uint8)
    target = np.frombuffer(frame, np.uint8)[len(head) :]
    whole = size & ~7
    eight = np.frombuffer(bytes(key) * 2, np.uint64)
    np.bitwise_xor(source[:whole].view(np.uint64), eight, out=target[:whole].view(np.uint64))
    target[whole:] = source[whole:] ^ np.frombuffer(key, np.uint8)[np.arange(size - whole) % 4]
    return frame


_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MAX_HEAD_BYTES = 64 * 1024
_MAX_BODY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Refusal:
    """An HTTP response in place of a WebSocket.

    Attributes:
        status: Its status code.
        reason: Its reason phrase.
        headers: By name, in lower case.
        body: As much of it as was received.
    """

    status: int
    reason: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@final
class Handshake:
    """The opening handshake of a WebSocket.

    Attributes:
        request: The bytes to send.
        subprotocol: The subprotocol that the server chose; `None` if it chose none.
        refusal: The server's response, once received, if it refused.
        is_done: Whether the server accepted.
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
        self._length: int | None = None  # of a refusal's body, if known

    def receive(self, data: bytes) -> bytes:
        """Feed bytes from the server; return those after an accepted handshake.

        Raises:
            WireError: It is not an HTTP response, or accepts something else.
        """
        if self.refusal is not None:
            self._read_body(data)
            return b""
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > _MAX_HEAD_BYTES:
                raise WireError("The server's response to the handshake is too long.")
            if not b"HTTP/1.1 ".startswith(self._head[:9]) and self._head[:5] != b"HTTP/":
                raise WireError("The server's response to the handshake is not HTTP.")
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
        """Whether a refusal is complete; one of unknown length ends with the connection."""
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
            raise WireError("The server switched to another protocol than WebSocket.")
        if "upgrade" not in {
            one.strip().lower() for one in headers.get("connection", "").split(",")
        }:
            raise WireError("The server's handshake has no `Connection: Upgrade`.")
        if headers.get("sec-websocket-accept", "").encode("latin-1") != self._accept:
            raise WireError("The server's handshake has the wrong Sec-WebSocket-Accept.")
        if headers.get("sec-websocket-extensions"):
            raise WireError("The server's handshake has an extension that was not offered.")
        chosen = headers.get("sec-websocket-protocol")
        if chosen is not None and chosen not in self._offered:
            raise WireError(f"The server chose the subprotocol {chosen!r}, which was not offered.")
        self.subprotocol = chosen
        self.is_done = True


def _request(path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    for line in lines:
        if "\r" in line or "\n" in line or "\0" in line:
            raise WireError("A header of the handshake contains a line break.")
    try:
        return "\r\n".join([*lines, "", ""]).encode("latin-1")
    except UnicodeEncodeError:
        raise WireError("A header of the handshake contains invalid characters.") from None


def _read_head(head: bytes) -> tuple[int, str, dict[str, str]]:
    lines = head.decode("latin-1").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    status, _, reason = rest.partition(" ")
    if version not in ("HTTP/1.1", "HTTP/1.0") or len(status) != 3 or not status.isdecimal():
        raise WireError("The server's response to the handshake is not HTTP.")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise WireError("The server's response to the handshake has a header without a colon.")
        key = name.strip().lower()
        value = value.strip()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return int(status), reason, headers
