"""How tests compare values: with their types, and NaN equal to NaN."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np


def same(left: Any, right: Any) -> bool:
    """Compare by value and type: NaN equals NaN, arrays by dtype, shape and content.

    Dataclass fields with `compare=False` are ignored.
    """
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        if type(left) is not type(right) or left.dtype != right.dtype:
            return False
        return np.array_equal(left, right, equal_nan=left.dtype.kind in "fc")
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, msgspec.Struct) and type(left) is type(right):
        fields = left.__struct_fields__
        return all(same(getattr(left, name), getattr(right, name)) for name in fields)
    if dataclasses.is_dataclass(left) and not isinstance(left, type):
        if type(left) is not type(right):
            return False
        names = [field.name for field in dataclasses.fields(left) if field.compare]
        return all(same(getattr(left, name), getattr(right, name)) for name in names)
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(left, pydantic.BaseModel):
        return type(left) is type(right) and same(dict(left), dict(right))
    return bool(left == right)
