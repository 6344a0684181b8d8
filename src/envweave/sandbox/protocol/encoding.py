"""The form in which plain data travels: MessagePack, and extensions for what it lacks.

A native list or dict nests to `LEVELS`, and a native dict has text for keys. So the decoder can
be told exactly what to expect, and what is deeper, or has other keys, passes through our hands.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.msgpack import Ext

LEVELS = 4
"""How deep lists and dicts nest natively."""

DEPTH = 64
"""How deep plain data nests at all."""

PARTS = 250_000
"""How many lists, tuples, sets and dicts one message may hold, and how many bytes objects, big
numbers and arrays. Each costs the reader far more than it costs the sender."""

ITEMS = 1 << 24
"""How many items all lists, tuples, sets and dicts of a value may hold together."""

ARRAY_BYTES = 1 << 30
"""The largest array, and the largest that an empty one would be without its zeros."""

DIMENSIONS = 32
"""How many an array may have."""

DTYPES = {
    "|b1": 1,
    "|i1": 1,
    "|u1": 1,
    "<i2": 2,
    "<u2": 2,
    "<f2": 2,
    "<i4": 4,
    "<u4": 4,
    "<f4": 4,
    "<i8": 8,
    "<u8": 8,
    "<f8": 8,
    "<c8": 8,
    "<c16": 16,
}
"""The arrays that are plain, and the size of an item of each."""


class ValueKind:
    """What an extension holds. Lists stand for their items, in MessagePack."""

    BYTES: Final = 1
    INT: Final = 2
    LIST: Final = 3
    TUPLE: Final = 4
    SET: Final = 5
    FROZENSET: Final = 6
    DICT: Final = 7
    ARRAY: Final = 8


class PackedArray(msgspec.Struct, array_like=True, frozen=True):
    """An array: its items in C order, little-endian."""

    dtype: str
    shape: list[int]
    data: bytes


if TYPE_CHECKING:
    Packed = Any
else:
    _atom = None | bool | int | float | str | Ext
    Packed = _atom
    for _ in range(LEVELS):
        Packed = _atom | list[Packed] | dict[str, Packed]


OWN: Any = dict(vars(builtins))
