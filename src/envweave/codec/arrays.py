"""The spec of a numpy array."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, final

import numpy as np

from envweave.codec.spec import Mismatch, Spec, between, bounded, ends, refuse_empty, short_repr
from envweave.errors import DefinitionError


@final
class ArraySpec(Spec):
    """A numpy array of one dtype and shape, within bounds. NaN is never within bounds.

    With `clips`, values beyond the bounds are allowed, as in Gymnasium, where a `Box` action may
    exceed its space and the environment clips it.
    """

    def __init__(
        self,
        shape: Iterable[int] | None = None,
        dtype: Any = None,
        low: Any = None,
        high: Any = None,
        *,
        clips: bool = False,
    ) -> None:
        refuse_empty(low, high)
        self.shape = None if shape is None else tuple(shape)
        if self.shape is None and (np.ndim(low) or np.ndim(high)):
            self.shape = np.broadcast_shapes(np.shape(low), np.shape(high))
        self.dtype = None if dtype is None else _dtype(dtype)
        if self.dtype is not None and self.dtype.kind in "biu":
            lowest, highest = _reach(self.dtype)
            refuse_empty(low, highest)
            refuse_empty(lowest, high)
        self.low, self.high, self.clips = low, high, clips
        self._low, self._high = self._as_held(low), self._as_held(high)
        self._whole: tuple[Any, Any] | None = None

    def _as_held(self, bound: Any) -> Any:
        """A bound rounded to this dtype, so that the bound itself is within."""
        if bound is None or self.dtype is None or self.dtype.kind != "f":
            return bound
        with np.errstate(over="ignore"):
            return np.asarray(bound).astype(self.dtype)[()]

    def read(self, value: Any) -> np.ndarray[Any, Any]:
        """Take an array, or nested lists of numbers, that convert without loss of kind."""
        if type(value) is np.ndarray and value.dtype == self.dtype and value.shape == self.shape:
            array = value
        else:
            array = self._convert(value)
        if not self.clips and not (
            (self._low is None or bool((array >= self._low).all()))
            and (self._high is None or bool((array <= self._high).all()))
        ):
            raise Mismatch(f"{short_repr(array)} is not {between(self.low, self.high)}")
        return array

    def _convert(self, value: Any) -> np.ndarray[Any, Any]:
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, RuntimeError):
            raise Mismatch(f"{short_repr(value)} is not an array") from None
        if array.dtype.kind not in "biufc":
            raise Mismatch(f"{short_repr(value)} is not an array of numbers")
        if self.dtype is not None and array.dtype != self.dtype:
            array = self._cast(array, self.dtype)
        if self.shape is not None and array.shape != self.shape:
            # Nested lists don't determine the dimensions after an empty one.
            if 0 not in self.shape or array.shape != self.shape[: self.shape.index(0) + 1]:
                raise Mismatch(f"shape {array.shape} is not {self.shape}")
            array = array.reshape(self.shape)
        return array

    def _cast(self, array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        same_kind = array.dtype.kind in "iu" or np.can_cast(array.dtype, dtype, "same_kind")
        if array.size and not same_kind:
            raise Mismatch(f"dtype {array.dtype} does not convert to {dtype}")
        with np.errstate(over="ignore"):
            cast = array.astype(dtype)
        if dtype.kind in "biu":
            fits = np.array_equal(cast, array)
        else:
            fits = np.array_equal(np.isfinite(cast), np.isfinite(array))
        if not fits:
            raise Mismatch(f"{short_repr(array)} does not fit into {dtype}")
        return cast

    def sample(self, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """Draw uniformly within the bounds; for an unknown shape, up to four in a row.

        An open end lies 1 beyond the other, or beyond 0; for integers 1,000, as far as the
        dtype goes.
        """
        dtype = self.dtype or np.dtype(np.float64)
        shape = (int(rng.integers(1, 5)),) if self.shape is None else self.shape
        if dtype.kind in "biu":
            if self._whole is None:
                self._whole = self._whole_ends(dtype)
            kind = np.uint8 if dtype.kind == "b" else dtype.type
            drawn = rng.integers(*self._whole, size=shape, dtype=kind, endpoint=True)
            return np.asarray(drawn, dtype)
        low, high = _real_ends(self._low, self._high)
        share = rng.random(shape)
        return np.asarray(np.clip(low * (1 - share) + high * share, low, high)).astype(dtype)

    def _whole_ends(self, dtype: np.dtype[Any]) -> tuple[Any, Any]:
        lowest, highest = _reach(dtype)

        def draw_between(low: Any, high: Any) -> tuple[int, int]:
            low, high = ends(low, high, 1000)
            return max(math.ceil(low), lowest), min(math.floor(high), highest)

        # With Python ints: float64 cannot represent the ends of the 64-bit integers.
        low, high = np.broadcast_arrays(*(np.asarray(b, object) for b in (self.low, self.high)))
        if low.ndim == 0:
            return draw_between(low.item(), high.item())
        pairs = [draw_between(*pair) for pair in zip(low.ravel(), high.ravel(), strict=True)]
        kind = np.uint8 if dtype.kind == "b" else dtype.newbyteorder("=")
        both = np.array(pairs, kind).reshape(*low.shape, 2)
        return both[..., 0], both[..., 1]

    def json_schema(self) -> dict[str, Any]:
        """Describe nested arrays of numbers."""
        if self.shape is None:
            return {"type": "array"}
        kind = (self.dtype or np.dtype(np.float64)).kind
        item: dict[str, Any] = {
            "type": {"b": "boolean", "i": "integer", "u": "integer"}.get(kind, "number")
        }
        if np.ndim(self.low) == 0 and np.ndim(self.high) == 0:
            item = bounded(item, _plain(self._low), _plain(self._high))
        for length in reversed(self.shape):
            item = {"type": "array", "items": item, "minItems": length, "maxItems": length}
        return item

    def __repr__(self) -> str:
        low, high = short_repr(self.low), short_repr(self.high)
        return f"ArraySpec({self.shape}, {self.dtype}, {low}, {high})"


def _dtype(dtype: Any) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise DefinitionError(f"{dtype!r} is not a numpy dtype: {error}.") from None
    return found


def _reach(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The lowest and the highest integer of a dtype."""
    if dtype.kind == "b":
        return 0, 1
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _real_ends(low: Any, high: Any) -> tuple[Any, Any]:
    low = np.asarray(-np.inf if low is None else low, np.float64)
    high = np.asarray(np.inf if high is None else high, np.float64)
    base = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high - 1, -1.0))
    return base, np.where(np.isfinite(high), high, base + np.where(np.isfinite(low), 1, 2))


def _plain(bound: Any) -> Any:
    return bound.item() if isinstance(bound, np.generic | np.ndarray) else bound
