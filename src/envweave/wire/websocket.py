"""WebSocket frames (RFC 6455), and the client's side of the handshake. No I/O.

`FrameStream` is fed the bytes of a peer and returns whole messages; `Handshake` opens the
WebSocket. Whatever the peer sends, they raise nothing but `WireError`.
"""

from __future__ import annotations

import base64
import codecs
import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias, final

import numpy as np

from envweave.errors import WireError

Message = str | bytes | bytearray | memoryview
"""Text, or binary data. A view is owned by the receiver."""

Mask: TypeAlias = Callable[[bytes | bytearray | memoryview, bytes | bytearray], bytes]
"""Masks data, or unmasks it, with a key of four bytes."""

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
class FrameStream:
    """The frames of one WebSocket, once its handshake is done.

    Args:
        max_message_bytes: The largest message that is accepted.
        is_server: Whether this is the server's end: the frames of a client are masked.
        unmask: A quicker function than `masked`, if there is one.

    Attributes:
        close_code: The code of the peer's close frame, once received; `NO_STATUS` if it has none.
        close_reason: The reason in it.
    """

    def __init__(
        self,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        *,
        is_server: bool = False,
        unmask: Mask | None = None,
    ) -> None:
        self.close_code: int | None = None
        self.close_reason = ""
        self._limit = max_message_bytes
        self._is_server = is_server
        self._unmask = unmask or masked
        self._mask_bit = 0x80 if is_server else 0
        self._peer = "client" if is_server else "server"
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
        return self._frame(TEXT, data.encode() if isinstance(data, str) else data)

    def binary(self, data: bytes) -> bytes | bytearray:
        """Return the frame of a binary message."""
        if not self._is_server:
            return _masked_frame(BINARY, data)
        return _head(BINARY, len(data), 0) + data

    def close(self, code: int = NORMAL, reason: str = "") -> bytes | bytearray:
        """Return the frame that closes the WebSocket; nothing if it was closed before."""
        if self._has_closed:
            return b""
        self._has_closed = True
        text = reason.encode()[:123].decode(errors="ignore").encode()
        return self._frame(CLOSE, code.to_bytes(2, "big") + text)

    def _frame(self, opcode: int, payload: bytes) -> bytes | bytearray:
        if not self._is_server:
            return _masked_frame(opcode, payload)
        return _head(opcode, len(payload), 0) + payload

    @property
    def has_answers(self) -> bool:
        """Whether there are frames to send in response."""
        return bool(self._out)

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
        """Feed bytes from the peer, and return the messages that are complete.

        Nothing after a close frame is read.

        Raises:
            WireError: A frame is invalid, or a message is too large or not UTF-8. The stream
                cannot be used afterwards, and raises the same error again.
        """
        if self._failure is not None:
            raise self._failure
        if not self._in and not self._opcode and self.close_code is None:
            message = self._whole(data)
            if message is not None:
                return [message]
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

    def _whole(self, data: bytes | bytearray | memoryview) -> Message | None:
        """Return the message if these bytes are a single binary frame, as usual; else `None`."""
        size = len(data)
        if size < 6 or data[0] != 0x80 | BINARY:
            return None
        start, length = 2, data[1] ^ self._mask_bit
        if length > 125:
            if length > 127 or size < 10:
                return None
            start = 4 if length == 126 else 10
            length = int.from_bytes(data[2:start], "big")
        if length > self._limit:
            return None
        if not self._mask_bit:
            return bytes(data[start:]) if start + length == size else None
        begin = start + 4
        return (
            self._unmask(data[begin:], bytes(data[start:begin])) if begin + length == size else None
        )

    def _read_frame(self, messages: list[Message]) -> None:
        """Read the first frame; if it is incomplete, record how many bytes it needs."""
        buffer = self._in
        first, length = buffer[0], buffer[1] ^ self._mask_bit
        opcode, is_final = first & 0x0F, bool(first & 0x80)
        if first & 0x70:
            raise _Broken(f"The {self._peer} sent a frame of an extension that was not agreed on.")
        if length & 0x80:
            which = "an unmasked" if self._is_server else "a masked"
            raise _Broken(f"The {self._peer} sent {which} frame.")
        start = 2
        if length > 125:
            start = 4 if length == 126 else 10
            if len(buffer) < start:
                self._needed = start
                return
            length = int.from_bytes(buffer[2:start], "big")
        self._check(opcode, length, is_final=is_final)
        begin = start + 4 if self._mask_bit else start
        end = begin + length
        if len(buffer) < end:
            self._needed = end
            return
        self._needed = 2
        part: bytes | memoryview
        if self._mask_bit:
            part = self._unmask(buffer[begin:end], buffer[start:begin])
            del buffer[:end]
        elif is_final and not self._parts and len(buffer) == end and opcode < CLOSE:
            # The buffer is exactly one message: it is returned without a copy.
            self._in = bytearray()
            part = memoryview(buffer)[start:]
        else:
            part = bytes(memoryview(buffer)[start:end])
            del buffer[:end]
        if opcode >= CLOSE:
            self._control(opcode, bytes(part))
        else:
            self._data(opcode, part, messages, is_final=is_final)

    def _check(self, opcode: int, length: int, *, is_final: bool) -> None:
        peer = self._peer
        if opcode >= CLOSE:
            if opcode > PONG:
                raise _Broken(f"The {peer} sent a frame of the unknown kind {opcode}.")
            if not is_final or length > 125:
                raise _Broken(f"The {peer} sent a control frame in parts, or too large a one.")
            return
        if opcode > BINARY:
            raise _Broken(f"The {peer} sent a frame of the unknown kind {opcode}.")
        if (opcode == 0) != (self._opcode != 0):
            raise _Broken(f"The {peer} sent the parts of a message out of order.")
        if self._size + length > self._limit:
            raise _Broken(f"The {peer} sent a message of more than {self._limit} bytes.", TOO_BIG)

    def _data(
        self, opcode: int, part: bytes | memoryview, messages: list[Message], *, is_final: bool
    ) -> None:
        self._opcode = opcode or self._opcode
        if not is_final:
            self._size += len(part)
            if part:  # there may be any number of empty parts
                self._parts.append(bytes(part))
            return
        whole = b"".join((*self._parts, part)) if self._parts else part
        messages.append(self._message(whole))
        self._parts.clear()
        self._opcode = self._size = 0

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == PONG:
            return
        if opcode == PING:
            if not self._has_closed:
                self._out += self._frame(PONG, payload)
            return
        code, reason = NO_STATUS, ""
        if payload:
            code = int.from_bytes(payload[:2], "big")
            if len(payload) < 2 or code not in _CODES:
                raise _Broken(f"The {self._peer} closed with a code that does not exist.")
            reason = self._text(payload[2:])
        self.close_code, self.close_reason = code, reason
        self._out += self.close(NORMAL if code == NO_STATUS else code)

    def _message(self, payload: bytes | memoryview) -> Message:
        return payload if self._opcode == BINARY else self._text(payload)

    def _text(self, payload: bytes | memoryview) -> str:
        try:
            return codecs.decode(payload, "utf-8")
        except UnicodeDecodeError:
            raise _Broken(f"The {self._peer} sent text that is not UTF-8.", BAD_TEXT) from None


@final
class _Broken(Exception):  # noqa: N818 - it never leaves this module
    def __init__(self, message: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.code = code


_keys: list[bytes] = []
_keys_owner = 0


def _key() -> bytes:
    """Return four random bytes."""
    global _keys_owner
    try:
        if _keys_owner == os.getpid():
            return _keys.pop()
    except IndexError:
        pass
    pool = os.urandom(_KEYS)
    _keys[:] = [pool[i : i + 4] for i in range(4, _KEYS, 4)]
    _keys_owner = os.getpid()
    return pool[:4]


def _head(opcode: int, size: int, mask_bit: int) -> bytes:
    if size < 126:
        return bytes((0x80 | opcode, mask_bit | size))
    if size < 1 << 16:
        return struct.pack("!BBH", 0x80 | opcode, mask_bit | 126, size)
    return struct.pack("!BBQ", 0x80 | opcode, mask_bit | 127, size)


def _masked_frame(opcode: int, payload: bytes) -> bytes:
    """Return a whole frame, masked as a client must."""
    key = _key()
    return b"".join((_head(opcode, len(payload), 0x80), key, masked(payload, key)))


def masked(data: bytes | bytearray | memoryview, key: bytes | bytearray) -> bytes:
    """Return data masked, or unmasked, with a key of four bytes."""
    size = len(data)
    if size <= _SMALL:
        pad = (bytes(key) * (size // 4 + 1))[:size]
        mixed = int.from_bytes(data, "little") ^ int.from_bytes(pad, "little")
        return mixed.to_bytes(size, "little")
    source, target = np.frombuffer(data, np.uint8), np.empty(size, np.uint8)
    whole = size & ~7
    eight = np.frombuffer(bytes(key) * 2, np.uint64)
    np.bitwise_xor(source[:whole].view(np.uint64), eight, out=target[:whole].view(np.uint64))
    target[whole:] = source[whole:] ^ np.frombuffer(key, np.uint8)[np.arange(size - whole) % 4]
    return target.tobytes()


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
