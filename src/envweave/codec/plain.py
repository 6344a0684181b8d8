"""From the author's objects to plain data: dicts, lists, numbers and texts."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np


def to_plain(value: Any) -> Any:
    """Return `value` as plain data that shares nothing with it.

    Dataclasses and requests become dicts (a request keeps its `type`), arrays become nested
    lists, numpy scalars become numbers. Bytes stay bytes. An object the codec does not know
    becomes its `repr`.
    """
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else str(key): to_plain(one) for key, one in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(one) for one in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        fields = {name: to_plain(getattr(value, name)) for name in value.__struct_fields__}
        return fields if tag is None else {value.__struct_config__.tag_field: tag, **fields}
    if isinstance(value, enum.Enum):
        return to_plain(value.value)
    return repr(value)
