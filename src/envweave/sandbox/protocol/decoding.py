"""Decodes messages whose sender may be hostile, at a bounded cost in memory and time.

The decoder gets an exact type, so nothing but plain data comes out of it. What it does not bound
is bounded here: how many small containers a message expands to, how deep extensions nest, the
cost of a set or dict with colliding keys, and the claimed shape of an array.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from time import thread_time
from typing import Any, Generic, TypeVar

from msgspec.msgpack import Decoder, Ext
from msgspec.structs import force_setattr

from envweave.sandbox.protocol.encoding import (
    ARRAY_BYTES,
    DEPTH,
    DIMENSIONS,
    DTYPES,
    LEVELS,
    OWN,
    PARTS,
    Packed,
    PackedArray,
    ValueKind,
)
from envweave.sandbox.protocol.messages import (
    Called,
    FromSession,
    Put,
    Replied,
    RunFinished,
    ToolAnswer,
    ToSession,
)

__builtins__ = OWN

MessageT = TypeVar("MessageT")

_HOLDERS = frozenset([Ext, list, dict])
_VALUED: frozenset[type] = frozenset([RunFinished, Replied, ToolAnswer, Put])
_KEYS_AT_ONCE = 256
_HASHING_S = 0.25
_HASHING_S_EACH = 1e-6

_items_decoder: Decoder[list[Any]] = Decoder(list[Packed])
_array_decoder = Decoder(PackedArray)


class ProtocolViolationError(ValueError):
    """Bytes that no session of ours would send."""


class MessageReader(Generic[MessageT]):
    """Reads messages of one side."""

    def __init__(self, messages: Any) -> None:
        self._decode = Decoder(messages).decode

    def __call__(self, data: bytes | bytearray | memoryview) -> MessageT:
        """Return the message, its values unpacked."""
        if len(data) > PARTS:
            count_parts(data, PARTS)
        message: Any = self._decode(data)
        kind = type(message)
        if kind in _VALUED:
            value = message.value
            if type(value) in _HOLDERS:
                force_setattr(message, "value", _Unpacker().unpack(value, 0))
        elif kind is Called and (message.args or message.kwargs):
            unpacker = _Unpacker()
            unpacker.unpack(message.args, 0)
            unpacker.unpack(message.kwargs, 0)
        return message  # type: ignore[no-any-return]


read_from_session: MessageReader[FromSession] = MessageReader(FromSession)
"""Return the message that a session sent, its values unpacked. May raise any exception: the bytes
are hostile, and the session must be killed then."""

read_from_host: MessageReader[ToSession] = MessageReader(ToSession)
"""Return the message that the host sent, its values unpacked."""


class _Unpacker:
    """Unpacks the values of one message in place, and counts what they cost."""

    def __init__(self) -> None:
        self._parts = PARTS
        self._hashing_s = _HASHING_S

    def unpack(self, value: Any, depth: int) -> Any:
        """Return `value` with its extensions decoded, in place."""
        kind = type(value)
        if kind is list:
            if not _HOLDERS.isdisjoint(map(type, value)):
                for index, part in enumerate(value):
                    if type(part) in _HOLDERS:
                        value[index] = self.unpack(part, depth + 1)
            return value
        if kind is dict:
            if not _HOLDERS.isdisjoint(map(type, value.values())):
                for key, part in value.items():
                    if type(part) in _HOLDERS:
                        value[key] = self.unpack(part, depth + 1)
            return value
        return self._extension(value.code, value.data, depth)

    def _extension(self, code: int, data: Any, depth: int) -> Any:
        self._parts -= 1
        # Native lists and dicts may go a few levels beyond: each extension starts counting anew.
        if self._parts < 0 or depth > DEPTH + LEVELS:
            raise ProtocolViolationError("too many extensions, or too deep")
        if code == ValueKind.BYTES:
            return bytes(data)
        if code == ValueKind.INT:
            return int.from_bytes(data, "little", signed=True)
        if code == ValueKind.ARRAY:
            return _array(_array_decoder.decode(data))
        if len(data) > PARTS:
            count_parts(data, PARTS)
        items = self.unpack(_items_decoder.decode(data), depth)
        if code == ValueKind.TUPLE:
            return tuple(items)
        if code == ValueKind.LIST:
            return items
        if code == ValueKind.SET:
            return set(self._hashed(items))
        if code == ValueKind.FROZENSET:
            return frozenset(self._hashed(items))
        if code == ValueKind.DICT and not len(items) % 2:
            return dict(zip(self._hashed(items[::2]), items[1::2], strict=True))
        raise ProtocolViolationError(f"no extension has the code {code}")

    def _hashed(self, keys: list[Any]) -> Iterator[Any]:
        """Yield the keys to the set or dict that hashes them, and limit how long that takes.

        Colliding keys make it quadratic; nothing else makes it slow. The clock counts this
        thread's CPU time only, so that a busy machine is not mistaken for an attack.
        """
        self._hashing_s += len(keys) * _HASHING_S_EACH
        start = thread_time() if len(keys) > _KEYS_AT_ONCE else 0.0
        for first in range(0, len(keys), _KEYS_AT_ONCE):
            if first and thread_time() - start > self._hashing_s:
                raise ProtocolViolationError("keys that collide")
            yield from keys[first : first + _KEYS_AT_ONCE]
        if start:
            self._hashing_s -= thread_time() - start


def _array(packed: PackedArray) -> Any:
    size = DTYPES.get(packed.dtype)
    if size is None or len(packed.shape) > DIMENSIONS:
        raise ProtocolViolationError("an array of an unknown dtype")
    extent = total = size
    for length in packed.shape:
        if not 0 <= length <= ARRAY_BYTES:
            raise ProtocolViolationError("an array of impossible length")
        extent *= length or 1
        total *= length
        if extent > ARRAY_BYTES:
            raise ProtocolViolationError("an array that is too large")
    if total != len(packed.data):
        raise ProtocolViolationError("an array whose data does not match its shape")
    if packed.dtype == "|b1" and packed.data.translate(None, b"\0\1"):
        raise ProtocolViolationError("bools that are neither 0 nor 1")
    import numpy as np

    if not total:
        return np.zeros(packed.shape, packed.dtype)
    return np.ndarray(packed.shape, packed.dtype, buffer=bytearray(packed.data))


def _lengths(first: int, last: int, payload: str) -> str:
    """Return a pattern for one-byte heads, each announcing one byte more than the one before."""
    heads = range(first, last + 1)
    return "|".join(rf"\x{head:02x}{payload}{{{head - first}}}" for head in heads)


_SCALARS = re.compile(
    (
        r"(?s)(?:[\x00-\x7f\xc0\xc2\xc3\xe0-\xff]|[\xcc\xd0].|[\xcd\xd1]..|[\xca\xce\xd2].{4}"
        r"|[\xcb\xcf\xd3].{8}|" + _lengths(0xA0, 0xBF, ".") + ")*+"
    ).encode("ascii")
)
_HEADS = {  # by first byte: how many bytes hold the length, how many follow besides
    **dict.fromkeys([0xC4, 0xD9], (1, 0)),
    **dict.fromkeys([0xC5, 0xDA], (2, 0)),
    **dict.fromkeys([0xC6, 0xDB], (4, 0)),
    **dict.fromkeys([0xC7], (1, 1)),
    **dict.fromkeys([0xC8], (2, 1)),
    **dict.fromkeys([0xC9], (4, 1)),
}


def count_parts(data: bytes | bytearray | memoryview, limit: int) -> None:
    """Count the parts that MessagePack holds, without decoding it.

    An empty list is one byte here and seventy in memory, so this comes before decoding.

    Raises:
        ProtocolViolationError: They are more than `limit`.
    """
    view = memoryview(data)
    position, end = 0, len(view)
    for _ in range(limit):
        run = _SCALARS.match(view, position)
        position = run.end() if run is not None else position
        if position >= end:
            return
        head = view[position]
        position += 1
        if 0x80 <= head <= 0x9F:
            continue
        if 0xD4 <= head <= 0xD8:
            position += 1 + (1 << (head - 0xD4))
        elif 0xDC <= head <= 0xDF:
            position += 2 if head in (0xDC, 0xDE) else 4
        elif head in _HEADS:
            width, more = _HEADS[head]
            length = int.from_bytes(view[position : position + width], "big")
            position += width + more + length
        else:
            return  # a decoder stops here
    raise ProtocolViolationError("more parts than a message may have")
