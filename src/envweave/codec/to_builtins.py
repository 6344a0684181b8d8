"""From the author's objects to plain data: dicts, lists, numbers and strings."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

_PLAIN: tuple[Any, ...] = (str, int, float, bytes)


def to_plain(value: Any) -> Any:
    """Return `value` as plain data that shares nothing with it.

    Dataclasses, pydantic models and requests become dicts (a request keeps its `type`), arrays
    and tuples become lists, sets become lists in a fixed order, numpy scalars become numbers, an
    `Enum` member its value. Bytes stay bytes, and keys become strings. An object the codec does
    not know becomes its `repr`.
    """
    if value is None or type(value) in _PLAIN or type(value) is bool:
        return value
    if isinstance(value, enum.Enum):
        return to_plain(value.value)
    if isinstance(value, np.generic | np.ndarray):
        return _from_numpy(value)
    for kind in _PLAIN:
        if isinstance(value, kind):
            return kind.__new__(kind, value)
    if isinstance(value, Mapping):
        return {_key(key): to_plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted((to_plain(one) for one in value), key=repr)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        fields = {name: to_plain(getattr(value, name)) for name in value.__struct_fields__}
        return fields if tag is None else {value.__struct_config__.tag_field: tag, **fields}
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return to_plain(value.model_dump(warnings=False))
    return repr(value)


def _from_numpy(value: Any) -> Any:
    if value.dtype.kind in "biuSU":
        return value.tolist()
    if value.dtype.kind == "f":
        return value.astype(np.float64).tolist()  # a longdouble's own `tolist` returns no floats
    items = value.tolist()
    return to_plain(items) if type(items) is not type(value) else repr(value)


def _key(key: Any) -> str:
    plain = to_plain(key)
    return plain if isinstance(plain, str) else str(plain)
