"""Plain data, the only thing that crosses the walls, and how it is encoded.

Plain data is `None`, `bool`, `int`, `float`, `str`, `bytes`, lists, tuples, sets, frozensets and
dicts of plain data, numpy scalars, and numpy arrays of numbers. An instance of a subclass is sent
as its base class, read by the methods of the base: overridden methods are never called.

The wire format is MessagePack, with extensions for what it lacks. Native lists and dicts nest up to
`LEVELS`, and native dicts have `str` keys. So the decoder gets an exact type, and anything deeper
or with other keys goes through our own code.
"""

from __future__ import annotations

import builtins
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.msgpack import Ext

from envweave.errors import PlainDataError

OWN: Any = dict(vars(builtins))
"""The builtins of our modules in a session: code there can replace those of `builtins`."""

__builtins__ = OWN

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


_encode = msgspec.msgpack.Encoder().encode
_header = Struct("<I").pack
_modules = sys.modules

_LOWEST = -(1 << 63)
_HIGHEST = (1 << 64) - 1
_FEW = 1000
_EASY = frozenset([type(None), bool, float])
_INTS = frozenset([int])
_TEXTS = frozenset([str])
_mro_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
_name_of: Callable[[type], str] = type.__dict__["__name__"].__get__


def encode(message: msgspec.Struct) -> bytes:
    """Return the frame of a message whose values are packed."""
    data = _encode(message)
    return _header(len(data)) + data


def pack(value: Any, limit_depth: int = DEPTH, name: str = "value") -> Any:
    """Return `value` in a form that the encoder accepts.

    Args:
        value: Plain data.
        limit_depth: How deep it may nest, up to what the other end accepts.
        name: The name of the value in error messages.

    Raises:
        PlainDataError: It is not plain; the message begins with the path to the part.
    """
    kind = type(value)
    if kind in _EASY or (kind is int and _LOWEST <= value <= _HIGHEST):
        return value
    if kind is str and value.isascii():
        return value
    if kind is list and len(value) <= _FEW and _are_easy(value):
        return value[:]
    try:
        return _Packer(min(limit_depth, DEPTH)).pack(value, 0, 0)
    except _UnfitError as unfit:
        path = "" if unfit.whole else "".join(reversed(unfit.path))
        raise PlainDataError(f"{name}{path}: {unfit.what}") from None
    except RecursionError:
        raise PlainDataError(f"{name}: nested too deep to be encoded.") from None


class _UnfitError(Exception):
    """The part at `path` (innermost first), or the value as a `whole`, is not plain data."""

    def __init__(self, what: str, *, whole: bool = False) -> None:
        self.what = what
        self.whole = whole
        self.path: list[str] = []


class _Packer:
    """Packs one value, and counts what it holds."""

    def __init__(self, limit_depth: int) -> None:
        self._limit_depth = limit_depth
        self._parts = PARTS
        self._items = ITEMS

    def pack(self, value: Any, level: int, depth: int) -> Any:
        """Pack a part: `level` counts native containers around it, `depth` all."""
        kind = type(value)
        if kind in _EASY:
            return value
        method = _METHODS.get(kind)
        if method is None:
            for base in _mro_of(kind):
                method = _METHODS.get(base)
                if method is not None:
                    break
            else:
                return self._pack_foreign(value, kind, depth)
        return method(self, value, level, depth)

    def pack_int(self, value: int, _level: int, _depth: int) -> Any:
        value = int.__index__(value)
        if int.__le__(_LOWEST, value) and int.__le__(value, _HIGHEST):
            return value
        self._count(0)
        size = (int.bit_length(value) >> 3) + 1
        return Ext(ValueKind.INT, int.to_bytes(value, size, "little", signed=True))

    def pack_float(self, value: float, _level: int, _depth: int) -> float:
        return float.__float__(value)

    def pack_text(self, value: str, _level: int, _depth: int) -> str:
        value = str.__str__(value)
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise _UnfitError(
                    "text with a lone surrogate is not plain data; "
                    "encode it with errors='surrogatepass'."
                ) from None
        return value

    def pack_bytes(self, value: bytes, _level: int, _depth: int) -> Ext:
        self._count(0)
        return Ext(ValueKind.BYTES, bytes.__bytes__(value))

    def pack_list(self, value: list[Any], level: int, depth: int) -> Any:
        items = list.copy(value)
        if level < LEVELS:
            return self._pack_items(items, level + 1, depth, _at_index)
        return self._pack_apart(ValueKind.LIST, items, depth, _at_index)

    def pack_tuple(self, value: tuple[Any, ...], _level: int, depth: int) -> Ext:
        return self._pack_apart(ValueKind.TUPLE, [*tuple.__iter__(value)], depth, _at_index)

    def pack_set(self, value: set[Any], _level: int, depth: int) -> Ext:
        return self._pack_apart(ValueKind.SET, [*set.__iter__(value)], depth, _in_set)

    def pack_frozenset(self, value: frozenset[Any], _level: int, depth: int) -> Ext:
        return self._pack_apart(ValueKind.FROZENSET, [*frozenset.__iter__(value)], depth, _in_set)

    def pack_dict(self, value: dict[Any, Any], level: int, depth: int) -> Any:
        return self._pack_entries([*dict.items(value)], level, depth)

    def pack_ordered(self, value: OrderedDict[Any, Any], level: int, depth: int) -> Any:
        return self._pack_entries([*OrderedDict.items(value)], level, depth)

    def _pack_entries(self, entries: list[tuple[Any, Any]], level: int, depth: int) -> Any:
        if level < LEVELS and _TEXTS.issuperset([type(key) for key, _ in entries]):
            self._enter(len(entries), depth)
            packed = {}
            for key, part in entries:
                key = self.pack_text(key, 0, 0)
                try:
                    packed[key] = self.pack(part, level + 1, depth + 1)
                except _UnfitError as unfit:
                    unfit.path.append(_at_key(key))
                    raise
            return packed
        self._enter(2 * len(entries), depth)
        flat: list[Any] = []
        for key, part in entries:
            try:
                flat.append(self.pack(key, 1, depth + 1))
            except _UnfitError as unfit:
                unfit.path.append(" (a key)")
                raise
            try:
                flat.append(self.pack(part, 1, depth + 1))
            except _UnfitError as unfit:
                unfit.path.append(_at_key(key))
                raise
        return Ext(ValueKind.DICT, _encode(flat))

    def _pack_apart(
        self, kind: int, items: list[Any], depth: int, step: Callable[[int], str]
    ) -> Ext:
        return Ext(kind, _encode(self._pack_items(items, 1, depth, step)))

    def _pack_items(
        self, items: list[Any], level: int, depth: int, step: Callable[[int], str]
    ) -> list[Any]:
        """Pack `items` in place, as a native list at `level`."""
        self._enter(len(items), depth)
        if _are_easy(items):
            return items
        index = 0
        try:
            for index, part in enumerate(items):
                items[index] = self.pack(part, level, depth + 1)
        except _UnfitError as unfit:
            unfit.path.append(step(index))
            raise
        return items

    def _enter(self, items: int, depth: int) -> None:
        if depth >= self._limit_depth:
            raise _UnfitError(
                f"nested more than {self._limit_depth} levels deep, or contains itself.",
                whole=True,
            )
        self._count(items)

    def _count(self, items: int) -> None:
        self._parts -= 1
        self._items -= items
        if self._parts < 0 or self._items < 0:
            raise _UnfitError(
                f"more than {PARTS:,} containers or {ITEMS:,} items in one value. "
                "Send it in pieces, or as an array.",
                whole=True,
            )

    def _pack_foreign(self, value: Any, kind: type, depth: int) -> Any:
        numpy = _modules.get("numpy")
        if numpy is not None:
            bases = _mro_of(kind)
            if numpy.ndarray in bases:
                self._enter(0, depth)
                return _pack_array(numpy, value)
            if numpy.generic in bases:
                number = _number(numpy, value)
                if number is not None:
                    return self.pack(number, 0, depth)
        raise _UnfitError(
            f"{_a(kind)} is not plain data: None, numbers, text, bytes, lists, tuples, sets, "
            "dicts, and arrays of numbers."
        )


_METHODS: dict[type, Callable[[_Packer, Any, int, int], Any]] = {
    bool: lambda _self, value, _level, _depth: value,
    type(None): lambda _self, value, _level, _depth: value,
    int: _Packer.pack_int,
    float: _Packer.pack_float,
    str: _Packer.pack_text,
    bytes: _Packer.pack_bytes,
    list: _Packer.pack_list,
    tuple: _Packer.pack_tuple,
    set: _Packer.pack_set,
    frozenset: _Packer.pack_frozenset,
    OrderedDict: _Packer.pack_ordered,
    dict: _Packer.pack_dict,
}


def _are_easy(items: list[Any]) -> bool:
    """Whether the encoder accepts these as they are, determined without a Python loop."""
    kinds = frozenset(map(type, items))
    if kinds <= _EASY:
        return True
    if kinds == _INTS:
        return bool(min(items) >= _LOWEST and max(items) <= _HIGHEST)
    return kinds == _TEXTS and all(map(str.isascii, items))


def _pack_array(numpy: Any, value: Any) -> Ext:
    array = numpy.ndarray.view(value, numpy.ndarray)
    dtype = array.dtype.newbyteorder("<").str
    shape: tuple[int, ...] = array.shape
    if dtype not in DTYPES:
        raise _UnfitError(f"an array of {array.dtype} is not plain data; arrays of numbers are.")
    if len(shape) > DIMENSIONS or _extent(shape) * DTYPES[dtype] > ARRAY_BYTES:
        raise _UnfitError(f"an array of shape {shape} is too large; send it in pieces.")
    data = array.astype(dtype, order="C", copy=False).tobytes()
    return Ext(ValueKind.ARRAY, _encode(PackedArray(dtype, list(shape), data)))


def _extent(shape: Iterable[int]) -> int:
    extent = 1
    for size in shape:
        extent *= max(size, 1)
    return extent


def _number(numpy: Any, value: Any) -> bool | int | float | None:
    kind = numpy.generic.dtype.__get__(value).kind
    if kind == "b":
        return bool(value)
    if kind in "iu":
        return int(value)
    return float(value) if kind == "f" else None


def _a(kind: type) -> str:
    name = _name_of(kind)
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _at_index(index: int) -> str:
    return f"[{index}]"


def _in_set(_index: int) -> str:
    return "{…}"


def _at_key(key: Any) -> str:
    shown = repr(key) if type(key) in (str, int, float, bool, bytes) else f"a {type(key).__name__}"
    return f"[{shown if len(shown) <= 60 else shown[:57] + '...'}]"
