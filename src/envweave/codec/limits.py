"""The limits that the marks of an `Annotated` hint put on a number or an array."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from envweave.codec.leaves import Array, Integer
from envweave.codec.spec import Bounds
from envweave.errors import DefinitionError


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits as hints give them; `None` is an open end.

    Attributes:
        low: The lowest number that is allowed.
        high: The highest number that is allowed.
        above: A number that all must lie above.
        below: A number that all must lie below.
        shape: The shape of an array.
        dtype: The dtype of an array.
        are_ours: Whether a `Bounds` gave some, which must then mean something.
    """

    low: Any = None
    high: Any = None
    above: Any = None
    below: Any = None
    shape: tuple[int, ...] | None = None
    dtype: Any = None
    are_ours: bool = False

    def within(self, marks: Iterable[Any]) -> Limits:
        """Return these limits, narrowed by the marks of an `Annotated`."""
        limits = self
        for mark in marks:
            if isinstance(mark, Bounds):
                limits = replace(
                    limits,
                    low=_pick(max, limits.low, mark.low),
                    high=_pick(min, limits.high, mark.high),
                    shape=limits.shape if mark.shape is None else mark.shape,
                    dtype=limits.dtype if mark.dtype is None else mark.dtype,
                    are_ours=True,
                )
                continue
            # msgspec.Meta and annotated_types share these names; pydantic's Field holds a list
            # of the latter.
            limits = replace(
                limits,
                low=_pick(max, limits.low, getattr(mark, "ge", None)),
                high=_pick(min, limits.high, getattr(mark, "le", None)),
                above=_pick(max, limits.above, getattr(mark, "gt", None)),
                below=_pick(min, limits.below, getattr(mark, "lt", None)),
            )
            inner = getattr(mark, "metadata", None)
            limits = limits.within(inner) if isinstance(inner, list) else limits
        return limits

    def integer(self, info: Any = None) -> Integer:
        """Return the spec of whole numbers within these limits, and within those of a dtype."""
        self._refuse_array()
        low, high = self._whole()
        if info is not None:
            low, high = _pick(max, low, int(info.min)), _pick(min, high, int(info.max))
        return Integer(low, high)

    def real(self) -> tuple[float | None, float | None]:
        """Return the lowest and the highest float within these limits."""
        self._refuse_array()
        return self._real(float)

    def array(self, dtype: Any) -> Array:
        """Return the spec of arrays within these limits; `dtype` is the hint's own."""
        spec = Array(self.shape, dtype if self.dtype is None else self.dtype)
        if spec.dtype is not None and spec.dtype.kind in "iu":
            return Array(spec.shape, spec.dtype, *self._whole())
        kind = float if spec.dtype is None or spec.dtype.kind != "f" else spec.dtype.type
        return Array(spec.shape, spec.dtype, *self._real(kind))

    def _whole(self) -> tuple[int | None, int | None]:
        low = None if _open(self.low) else math.ceil(self.low)
        high = None if _open(self.high) else math.floor(self.high)
        above = None if _open(self.above) else math.floor(self.above) + 1
        below = None if _open(self.below) else math.ceil(self.below) - 1
        return _pick(max, low, above), _pick(min, high, below)

    def _real(self, kind: Any) -> tuple[Any, Any]:
        above = None if self.above is None else np.nextafter(kind(self.above), kind(np.inf))
        below = None if self.below is None else np.nextafter(kind(self.below), kind(-np.inf))
        low = _pick(max, self.low, None if above is None else above.item())
        high = _pick(min, self.high, None if below is None else below.item())
        return low, high

    def _refuse_array(self) -> None:
        if self.shape is not None or self.dtype is not None:
            raise DefinitionError("Bounds of a single number have neither shape nor dtype.")


def _open(bound: Any) -> bool:
    return bound is None or bound in (-math.inf, math.inf)


def _pick(choose: Any, one: Any, other: Any) -> Any:
    return choose(one, other) if one is not None and other is not None else _first(one, other)


def _first(one: Any, other: Any) -> Any:
    return other if one is None else one


NO_LIMITS = Limits()
