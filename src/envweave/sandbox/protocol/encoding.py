"""The wire format of plain data: MessagePack, with extensions for what it lacks.

Native lists and dicts nest up to `LEVELS`, and native dicts have `str` keys. So the decoder gets an
exact type, and anything deeper or with other keys goes through our own code.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.msgpack import Ext

LEVELS = 4
"""How deep native lists and dicts nest."""

DEPTH = 64
"""How deep plain data nests at all."""

PARTS = 250_000
"""How many lists, tuples, sets and dicts, and how many bytes objects, big integers and arrays one
message may hold. Each costs the reader far more than the sender."""

ITEMS = 1 << 24
"""How many items all lists, tuples, sets and dicts of a value may hold together."""

ARRAY_BYTES = 1 << 30
"""The largest array; for an empty one, the product of its non-zero dimensions counts."""

DIMENSIONS = 32
"""How many dimensions an array may have."""

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
"""The dtypes of arrays that are plain data, and their item sizes."""


class ValueKind:
    """What an extension holds. Containers are encoded as the list of their items."""

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
