"""Specs of single values: numbers, texts, choices, arrays, and instances of a class."""

from __future__ import annotations

import math
import string
from collections.abc import Iterable
from typing import Any, final

import numpy as np

from envweave.codec.spec import Mismatch, Spec

_TEXT = string.ascii_letters + string.digits + " "


@final
class Integer(Spec):
    """A whole number within bounds. A bool is none."""

    def __init__(self, low: int | None = None, high: int | None = None) -> None:
        self.low, self.high = low, high
        self._low = -math.inf if low is None else low
        self._high = math.inf if high is None else high

    def read(self, value: Any) -> int:
        """Take an int or a numpy integer."""
        if type(value) is not int:
            if isinstance(value, np.ndarray) and value.ndim == 0:
                value = value[()]
            if not isinstance(value, np.integer | int) or isinstance(value, bool):
                raise Mismatch(f"{value!r} is not an int")
            value = int(value)
        if not self._low <= value <= self._high:
            raise Mismatch(f"{value!r} is not {_between(self.low, self.high)}")
        return value  # type: ignore[no-any-return] # an int by now

    def sample(self, rng: np.random.Generator) -> int:
        """Draw evenly; an open end lies 1,000 beyond the other one, or beyond 0."""
        low, high = _ends(self.low, self.high, 1000)
        return int(rng.integers(int(low), int(high), endpoint=True))

    def json_schema(self) -> dict[str, Any]:
        """Describe an integer."""
        return _bounded({"type": "integer"}, self.low, self.high)

    def __repr__(self) -> str:
        return f"Integer({self.low}, {self.high})"


@final
class Real(Spec):
    """A number within bounds. An int is one, a bool is none."""

    def __init__(self, low: float | None = None, high: float | None = None) -> None:
        self.low, self.high = low, high
        self._bounded = low is not None or high is not None

    def read(self, value: Any) -> float:
        """Take a float, an int or a numpy number."""
        if type(value) is not float:
            if isinstance(value, np.ndarray) and value.ndim == 0:
                value = value[()]
            if isinstance(value, bool) or not isinstance(
                value, float | int | np.floating | np.integer
            ):
                raise Mismatch(f"{value!r} is not a number")
            value = float(value)
        if self._bounded and not (
            (self.low is None or self.low <= value) and (self.high is None or value <= self.high)
        ):
            raise Mismatch(f"{value!r} is not {_between(self.low, self.high)}")
        return value  # type: ignore[no-any-return] # a float by now

    def sample(self, rng: np.random.Generator) -> float:
        """Draw evenly; an open end lies 1 beyond the other one, or beyond 0."""
        low, high = _ends(self.low, self.high, 1.0)
        return float(rng.uniform(low, high))

    def json_schema(self) -> dict[str, Any]:
        """Describe a number."""
        return _bounded({"type": "number"}, self.low, self.high)

    def __repr__(self) -> str:
        return f"Real({self.low}, {self.high})"


@final
class Boolean(Spec):
    """True or false, and no number in their place."""

    def read(self, value: Any) -> bool:
        """Take a bool or a numpy bool."""
        if isinstance(value, bool | np.bool_):
            return bool(value)
        raise Mismatch(f"{value!r} is not a bool")

    def sample(self, rng: np.random.Generator) -> bool:
        """Draw evenly."""
        return bool(rng.integers(2))

    def json_schema(self) -> dict[str, Any]:
        """Describe a boolean."""
        return {"type": "boolean"}

    def __repr__(self) -> str:
        return "Boolean()"


@final
class Text(Spec):
    """A string, or with `binary` bytes."""

    def __init__(self, *, binary: bool = False) -> None:
        self.binary = binary
        self._kind: type = bytes if binary else str

    def read(self, value: Any) -> Any:
        """Take a string as it is."""
        if isinstance(value, self._kind):
            return value
        raise Mismatch(f"{value!r} is not a {self._kind.__name__}")

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw up to 16 letters, digits and blanks."""
        letters = [_TEXT[i] for i in rng.integers(len(_TEXT), size=int(rng.integers(17)))]
        return "".join(letters).encode() if self.binary else "".join(letters)

    def json_schema(self) -> dict[str, Any]:
        """Describe a string."""
        return {"type": "string", **({"contentEncoding": "base64"} if self.binary else {})}

    def __repr__(self) -> str:
        return f"Text(binary={self.binary})"


@final
class Choice(Spec):
    """One of a few values: a `Literal`, an `Enum` by member or value, or `None`."""

    def __init__(self, values: Iterable[Any], *, enum: type | None = None) -> None:
        self.values = list(values)
        self._enum = enum
        # 1 == True, so a choice is known by its type as well.
        self._known = {(type(value), value): value for value in self.values}
        if enum is not None:
            self._known |= {(type(value.value), value.value): value for value in self.values}

    def read(self, value: Any) -> Any:
        """Take exactly one of the values; for an Enum its plain value too."""
        try:
            return self._known[type(value), value]
        except (KeyError, TypeError):
            if isinstance(value, np.generic):
                return self.read(value.item())
            shown = ", ".join(repr(getattr(one, "value", one)) for one in self.values)
            raise Mismatch(f"{value!r} is not one of {shown}") from None

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw evenly."""
        return self.values[int(rng.integers(len(self.values)))]

    def json_schema(self) -> dict[str, Any]:
        """Describe an enumeration."""
        return {"enum": [value.value if self._enum else value for value in self.values]}

    def __repr__(self) -> str:
        return f"Choice({self.values!r})"


@final
class Array(Spec):
    """A numpy array of one dtype and shape, within bounds.

    With `clips`, values beyond the bounds are the environment's business, as in Gymnasium,
    where a `Box` action may exceed its space and the environment clips it.
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
        self.shape = None if shape is None else tuple(shape)
        self.dtype = None if dtype is None else np.dtype(dtype)
        self.low, self.high, self.clips = low, high, clips

    def read(self, value: Any) -> np.ndarray[Any, Any]:
        """Take an array, or nested lists of numbers, that convert without loss of kind."""
        if type(value) is np.ndarray and value.dtype == self.dtype and value.shape == self.shape:
            array = value
        else:
            array = self._convert(value)
        if not self.clips:
            for bound, beyond in ((self.low, np.less), (self.high, np.greater)):
                if bound is not None and bool(np.any(beyond(array, bound))):
                    raise Mismatch(f"{_short(array)} is not {_between(self.low, self.high)}")
        return array

    def _convert(self, value: Any) -> np.ndarray[Any, Any]:
        try:
            array = np.asarray(value)
        except (ValueError, TypeError):
            raise Mismatch(f"{_short(value)} is not an array") from None
        if array.dtype.kind not in "biufc":
            raise Mismatch(f"{_short(value)} is not an array of numbers")
        if self.dtype is not None and array.dtype != self.dtype:
            if not np.can_cast(array.dtype, self.dtype, "same_kind") and array.dtype.kind != "i":
                raise Mismatch(f"dtype {array.dtype} does not convert to {self.dtype}")
            converted = array.astype(self.dtype)
            if self.dtype.kind in "iu" and not np.array_equal(converted, array):
                raise Mismatch(f"{_short(array)} does not fit into {self.dtype}")
            array = converted
        if self.shape is not None and array.shape != self.shape:
            raise Mismatch(f"shape {array.shape} is not {self.shape}")
        return array

    def sample(self, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """Draw evenly within the bounds; an open end lies 1 beyond the other, or beyond 0."""
        dtype = self.dtype or np.dtype(np.float64)
        shape = self.shape or ()
        if dtype.kind == "b":
            return rng.integers(2, size=shape).astype(dtype)
        low, high = _array_ends(self.low, self.high)
        if dtype.kind in "iu":
            return rng.integers(
                np.broadcast_to(low, shape).astype(np.int64),
                np.broadcast_to(high, shape).astype(np.int64),
                endpoint=True,
            ).astype(dtype)
        return rng.uniform(low, high, size=shape).astype(dtype)

    def json_schema(self) -> dict[str, Any]:
        """Describe nested arrays of numbers."""
        kind = (self.dtype or np.dtype(np.float64)).kind
        item: dict[str, Any] = {
            "type": {"b": "boolean", "i": "integer", "u": "integer"}.get(kind, "number")
        }
        if np.ndim(self.low) == 0 and np.ndim(self.high) == 0:
            item = _bounded(item, _plain(self.low), _plain(self.high))
        if self.shape is None:
            return {"type": "array"}
        for length in reversed(self.shape):
            item = {"type": "array", "items": item, "minItems": length, "maxItems": length}
        return item

    def __repr__(self) -> str:
        return f"Array({self.shape}, {self.dtype}, {_short(self.low)}, {_short(self.high)})"


@final
class Instance(Spec):
    """An object of a class the codec knows nothing more about."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def read(self, value: Any) -> Any:
        """Take an instance of the class."""
        if isinstance(value, self.cls):
            return value
        raise Mismatch(f"{_short(value)} is not a {self.cls.__name__}")

    def sample(self, rng: np.random.Generator) -> Any:  # noqa: ARG002 - the spec's signature
        """Make one without arguments."""
        return self.cls()

    def json_schema(self) -> dict[str, Any]:
        """Describe by title alone."""
        return {"title": self.cls.__name__}

    def __repr__(self) -> str:
        return f"Instance({self.cls.__name__})"


def _between(low: Any, high: Any) -> str:
    if low is None or high is None:
        return f"at most {_short(high)}" if low is None else f"at least {_short(low)}"
    return f"between {_short(low)} and {_short(high)}"


def _bounded(schema: dict[str, Any], low: Any, high: Any) -> dict[str, Any]:
    if low is not None and math.isfinite(low):
        schema["minimum"] = low
    if high is not None and math.isfinite(high):
        schema["maximum"] = high
    return schema


def _ends(low: float | None, high: float | None, reach: float) -> tuple[float, float]:
    if low is None and high is None:
        return -reach, reach
    if low is None:
        assert high is not None
        return high - reach, high
    return low, low + reach if high is None else high


def _array_ends(low: Any, high: Any) -> tuple[Any, Any]:
    low = np.asarray(-np.inf if low is None else low, np.float64)
    high = np.asarray(np.inf if high is None else high, np.float64)
    base = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high - 1, -1.0))
    return base, np.where(np.isfinite(high), high, base + np.where(np.isfinite(low), 1, 2))


def _plain(bound: Any) -> Any:
    return bound.item() if isinstance(bound, np.generic | np.ndarray) else bound


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + "..."
