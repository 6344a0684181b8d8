"""Encodes objects that MessagePack and JSON cannot."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import logging
import os
import sys
import uuid
from collections.abc import Mapping, Sequence, Set
from typing import Any, final

import msgspec
import numpy as np
from msgspec.msgpack import Ext

from envweave.errors import format_error
from envweave.types.tasks import Private
from envweave.wire import arrays

ARRAY, INT, COMPLEX, TEXT = 1, 2, 3, 4
"""Our MessagePack extensions; `TEXT` is a string with lone surrogates."""

MAX_DEPTH = 100
"""How deep lists and dicts may be nested in a sanitized message."""

_MAX_REPR = 10_000
_NATIVE = (
    bytearray,
    memoryview,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    uuid.UUID,
)
_logger = logging.getLogger("envweave.wire")
_warned: set[str] = set()


@final
class _ExtKey:
    """A hashable wrapper of an extension, for keys of dicts."""

    def __init__(self, ext: Ext) -> None:
        self.ext = ext


def encode_fallback(value: Any) -> Any:
    """Return what MessagePack writes in place of a value that it does not know.

    Never raises, whatever the value's own code does.
    """
    if isinstance(value, np.ndarray):
        flat = arrays.as_contiguous(value)
        return arrays.to_lists(value) if flat is None else Ext(ARRAY, arrays.pack(flat))
    if isinstance(value, complex):
        return Ext(COMPLEX, np.array(value, "<c16").tobytes())
    if isinstance(value, _ExtKey):
        return value.ext
    return encode_without_extensions(value)


def encode_without_extensions(value: Any) -> Any:
    """Return the same for an encoder without extensions."""
    if isinstance(value, np.ndarray):
        return arrays.to_lists(value)
    if isinstance(value, Private):
        return {"withheld": True} if value else {}
    if isinstance(value, np.generic):
        return _scalar(value)
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, bytes):
        return memoryview(value)
    if isinstance(value, BaseException):
        return format_error(value)
    try:
        return _opened(value)
    except Exception as error:  # noqa: BLE001 - an author's code
        _logger.debug("%s could not be encoded: %s", type(value).__name__, format_error(error))
        return repr_of(value)


def _scalar(value: np.generic) -> Any:
    if value.dtype.kind in "mM":
        return str(value)
    if value.dtype.kind == "f":
        return float(value)  # `item` of a longdouble returns no float
    item = complex(value) if value.dtype.kind == "c" else value.item()
    return repr_of(value) if isinstance(item, np.generic) else item


def _opened(value: Any) -> Any:
    """The contents of a container, model, path or tensor; the `repr` of anything else."""
    if isinstance(value, type):
        return repr_of(value)
    if isinstance(value, Mapping):
        return dict(value.items())
    if isinstance(value, Sequence | Set):
        return list(value)
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return value.model_dump(warnings=False)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "__array__"):  # a tensor of another library
        return np.asarray(value)
    return repr_of(value)


def repr_of(value: Any) -> str:
    """Return a value's `repr`, which is sent in its place."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if kind not in _warned and len(_warned) < 1000:
        _warned.add(kind)
        _logger.warning("Values of %s have no wire form. They are sent as their repr.", kind)
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - an author's __repr__
        return f"<{kind}, whose repr failed with {type(error).__name__}>"
    return text if len(text) <= _MAX_REPR else text[: _MAX_REPR - 3] + "..."


def sanitized(value: Any) -> Any:
    """Return a message in a form that can always be encoded.

    It is slower than encoding the message directly, so that is tried first. Integers beyond 64
    bits and strings with lone surrogates become extensions. A value that contains itself, or is
    nested deeper than `MAX_DEPTH`, is replaced by a note.
    """
    return _sanitized(value, ())


def _sanitized(value: Any, within: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, bool | float | bytes | Ext):
        return value
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, str):
        return _text(str.__str__(value))
    if isinstance(value, int):
        return _whole(int.__int__(value))
    if id(value) in within:
        return f"<a {type(value).__name__} within itself>"
    if len(within) >= MAX_DEPTH:
        return f"<a {type(value).__name__} nested too deeply>"
    within = (*within, id(value))
    if isinstance(value, dict):
        return {_key(key, within): _sanitized(one, within) for key, one in list(value.items())}
    if isinstance(value, list | tuple | set | frozenset):
        return [_sanitized(one, within) for one in list(value)]
    if isinstance(value, msgspec.Struct) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    ):
        return {name: _sanitized(one, within) for name, one in _fields(value)}
    return value if isinstance(value, _NATIVE) else _sanitized(encode_fallback(value), within)


def _fields(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        tag: list[Any] = [] if config.tag is None else [(config.tag_field, config.tag)]
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return [*tag, *((sent, getattr(value, name)) for sent, name in names)]
    return [
        (field.name, getattr(value, field.name))
        for field in dataclasses.fields(value)
        if hasattr(value, field.name)
    ]


def _key(key: Any, within: tuple[int, ...]) -> Any:
    return _frozen(_sanitized(key, within))


def _frozen(key: Any) -> Any:
    """A hashable form of a key."""
    if isinstance(key, list):
        return tuple(_frozen(one) for one in key)
    if isinstance(key, Ext):
        return _ExtKey(key)
    return str(key) if isinstance(key, dict) else key


def _text(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        return Ext(TEXT, value.encode("utf-8", "surrogatepass"))
    return value


def _whole(value: int) -> Any:
    if -(2**63) <= value < 2**64:
        return value
    size = (value.bit_length() + 8) // 8
    return Ext(INT, value.to_bytes(size, "little", signed=True))
