"""Which type hints of a tool are understood, and how an argument is read by one.

A hint that is not understood checks nothing: the argument is passed on as it came.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

_LEAVES = (bool, int, float, str, bytes, type(None))
_CONTAINERS = (list, tuple, set, frozenset, dict)


def reader_of(hint: Any) -> Callable[[Any], Any] | None:
    """Return what checks an argument against a hint and makes of it what the hint asks for.

    Returns:
        A function that raises `msgspec.ValidationError`; `None` if there is nothing to check.
    """
    if hint is Any or hint is object or not _is_understood(hint, set()):
        return None
    # Text is no bytes: without this, base64 would be decoded.
    read = functools.partial(msgspec.convert, type=hint, strict=True, builtin_types=(bytes,))
    try:
        msgspec.msgpack.Decoder(hint)
    except Exception:  # noqa: BLE001 - such as a union that msgspec cannot tell apart
        return None
    return functools.partial(_read_known, hint, read) if _has_fields(hint, set()) else read


def _read_known(hint: Any, read: Callable[[Any], Any], value: Any) -> Any:
    """Read a value whose type has fields; `msgspec` would ignore those that it does not know."""
    made = read(value)
    _refuse_unknown(hint, value, "$")
    return made


def _is_understood(hint: Any, seen: set[Any]) -> bool:
    if hint is Any or hint in _LEAVES or hint in _CONTAINERS:
        return True
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return True
    if origin is typing.Annotated:
        return _is_understood(parts[0], seen)
    if origin in (typing.Union, types.UnionType) or origin in _CONTAINERS:
        return all(part is Ellipsis or _is_understood(part, seen) for part in parts)
    if not isinstance(hint, type):
        return False
    if issubclass(hint, enum.Enum):
        return True
    if not _is_record(hint):
        return False
    if hint in seen:
        return True
    seen.add(hint)
    return all(_is_understood(field, seen) for field in _fields(hint).values())


def _is_record(hint: type) -> bool:
    return dataclasses.is_dataclass(hint) or typing.is_typeddict(hint)


def _fields(record: type) -> Mapping[str, Any]:
    try:
        hints = typing.get_type_hints(record, include_extras=True)
    except Exception:  # noqa: BLE001 - evaluating an author's annotations may do anything
        return {"": None, "?": NotImplemented}  # not understood
    if dataclasses.is_dataclass(record):
        names = {field.name for field in dataclasses.fields(record) if field.init}
        return {name: hint for name, hint in hints.items() if name in names}
    return {name: _required(hint) for name, hint in hints.items()}


def _required(hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Required, typing.NotRequired):
        return typing.get_args(hint)[0]
    return hint


def _has_fields(hint: Any, seen: set[Any]) -> bool:
    if isinstance(hint, type) and _is_record(hint):
        return True
    return any(_has_fields(part, seen) for part in typing.get_args(hint))


def _refuse_unknown(hint: Any, value: Any, path: str) -> None:
    """Refuse a key that no field has, in this value and below. The value fits otherwise."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        _refuse_unknown(parts[0], value, path)
    elif origin in (typing.Union, types.UnionType):
        # At most one alternative has fields: `msgspec` refuses a union of two.
        for part in parts:
            if isinstance(part, type) and _is_record(part) and not isinstance(value, dict):
                continue
            if _fits_shape(part, value):
                _refuse_unknown(part, value, path)
    elif origin is dict and isinstance(value, dict):
        for key, each in value.items():
            _refuse_unknown(parts[1], each, f"{path}[{key!r}]")
    elif origin in _CONTAINERS:
        kinds = parts if origin is tuple and Ellipsis not in parts else (parts[0],) * len(value)
        for index, (kind, each) in enumerate(zip(kinds, value, strict=False)):
            _refuse_unknown(kind, each, f"{path}[{index}]")
    elif isinstance(hint, type) and _is_record(hint) and isinstance(value, dict):
        fields = _fields(hint)
        for key, each in value.items():
            if key not in fields:
                raise msgspec.ValidationError(
                    f"`{hint.__name__}` has no field {key!r} - at `{path}`"
                )
            _refuse_unknown(fields[key], each, f"{path}.{key}")


def _fits_shape(hint: Any, value: Any) -> bool:
    origin = typing.get_origin(hint) or hint
    if origin is dict or (isinstance(origin, type) and _is_record(origin)):
        return isinstance(value, dict)
    return origin in _CONTAINERS and isinstance(value, list | tuple | set | frozenset)
