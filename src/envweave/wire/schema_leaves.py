"""Specs of single values and arrays from JSON Schema, which comes from a stranger."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from envweave.codec import AnySpec, Spec
from envweave.codec.leaves import Array, Choice, Text
from envweave.codec.lengths import Length
from envweave.codec.patterns import Pattern
from envweave.errors import DefinitionError

_MAX_SIZE = 2**28
_MAX_LENGTH = 2**16
_MAX_PATTERN = 1000
_MAX_EXAMPLES = 100
_DTYPES = frozenset(
    ["bool", "float16", "float32", "float64", "complex64", "complex128"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    + [f">{kind}" for kind in ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")]
)


def choice(values: Any) -> Spec:
    """Return one of a few values."""
    if not isinstance(values, list) or not values:
        return AnySpec()
    return Choice(values, stands_in=True)


def text_in(value: Any) -> str:
    """Return a text; an empty one in the place of anything else."""
    return value if isinstance(value, str) else ""


def _number(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else None


def bounds(schema: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the lowest and the highest number that a schema allows."""
    low, high = _number(schema.get("minimum")), _number(schema.get("maximum"))
    above = _number(schema.get("exclusiveMinimum"))
    below = _number(schema.get("exclusiveMaximum"))
    if above is not None:
        low = max(_next(above, math.inf), -math.inf if low is None else low)
    if below is not None:
        high = min(_next(below, -math.inf), math.inf if high is None else high)
    return low, high


def _next(bound: float, towards: float) -> float:
    return math.nextafter(float(bound), towards)


def whole_bounds(schema: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the lowest and the highest whole number that a schema allows."""
    low, high = _number(schema.get("minimum")), _number(schema.get("maximum"))
    above = _number(schema.get("exclusiveMinimum"))
    below = _number(schema.get("exclusiveMaximum"))
    lows = [math.ceil(low)] if low is not None else []
    lows += [math.floor(above) + 1] if above is not None else []
    highs = [math.floor(high)] if high is not None else []
    highs += [math.ceil(below) - 1] if below is not None else []
    return max(lows, default=None), min(highs, default=None)


def unit(schema: Mapping[str, Any]) -> float | None:
    """Return what a schema's numbers are a multiple of."""
    said = _number(schema.get("multipleOf"))
    return said if said is not None and 0 < said < math.inf else None


def whole_unit(schema: Mapping[str, Any]) -> int | None:
    """Return what a schema's whole numbers are a multiple of."""
    said = unit(schema)
    return int(said) if said is not None and said >= 1 and int(said) == said else None


def length(schema: Mapping[str, Any], low: str, high: str) -> Length:
    """Return how long a value may be; what cannot be meant well says nothing."""
    least, most = (schema.get(name) for name in (low, high))
    least = least if type(least) is int and 0 <= least <= _MAX_LENGTH else 0
    return Length(least, most if type(most) is int and most >= least else None)


def text(schema: Mapping[str, Any]) -> Text:
    """Return texts or bytes.

    A pattern that may take long to look for is left to the server, which looks for it anyway.
    """
    if schema.get("contentEncoding") == "base64":
        said = schema.get("x-bytes")
        said = said if isinstance(said, dict) else {}
        return Text(binary=True, length=length(said, "min", "max"))
    lengths, pattern = length(schema, "minLength", "maxLength"), schema.get("pattern")
    if isinstance(pattern, str) and len(pattern) <= _MAX_PATTERN:
        examples = schema.get("examples")
        try:
            wanted = Pattern(pattern)
        except DefinitionError:
            return Text(length=lengths)
        return Text(
            length=lengths,
            pattern=wanted,
            examples=examples[:_MAX_EXAMPLES] if isinstance(examples, list) else (),
            checks_pattern=wanted.is_simple,
        )
    return Text(length=lengths, format=text_in(schema.get("format")) or None)


def array_of(said: Any) -> Spec:
    """Return an array by what `x-array` says of it."""
    if not isinstance(said, dict):
        return AnySpec()
    dtype, shape = said.get("dtype"), said.get("shape")
    if dtype is not None and text_in(dtype) not in _DTYPES:
        return AnySpec()
    if shape is not None:
        if not isinstance(shape, list) or len(shape) > 32:
            return AnySpec()
        if not all(type(n) is int and 0 <= n <= _MAX_SIZE for n in shape):
            return AnySpec()
        if math.prod(shape) > _MAX_SIZE:
            return AnySpec()
        shape = tuple(shape)
    ends = [
        _bound(said[name], infinite, dtype, shape) if name in said else None
        for name, infinite in (("low", -math.inf), ("high", math.inf))
    ]
    return Array(shape, dtype, *ends, clips=said.get("clips") is True)


def _bound(said: Any, infinite: float, dtype: str | None, shape: tuple[int, ...] | None) -> Any:
    if not isinstance(said, list):
        return infinite if said is None else _number(said)
    kind = np.dtype(dtype or "float64")
    filled = np.array(_filled(said, infinite), kind if kind.kind in "biuf" else None)
    return filled if shape is None else np.broadcast_to(filled, shape)


def _filled(said: Any, infinite: float) -> Any:
    if isinstance(said, list):
        return [_filled(one, infinite) for one in said]
    return infinite if said is None else said
