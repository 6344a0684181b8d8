"""Bounds of numbers and lengths: checked, in words, in JSON Schema, and for sampling."""

from __future__ import annotations

import math
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from envweave.codec.spec import Mismatch, short_repr
from envweave.errors import DefinitionError


def refuse_empty(low: Any, high: Any) -> None:
    """Refuse bounds with no number between them; `None` is an open end.

    Raises:
        DefinitionError: There is no such number.
    """
    lowest = -math.inf if low is None else low
    highest = math.inf if high is None else high
    # Written this way round so that a NaN bound is refused too.
    fits = np.all((lowest <= highest) & (lowest != math.inf) & (highest != -math.inf))
    if not fits:
        raise DefinitionError(f"No number is {between(low, high)}.")


def between(low: Any, high: Any) -> str:
    """Return "at least 0", "at most 1" or "between 0 and 1"."""
    if low is None or high is None:
        return f"at most {short_repr(high)}" if low is None else f"at least {short_repr(low)}"
    return f"between {short_repr(low)} and {short_repr(high)}"


def bounded(schema: dict[str, Any], low: Any, high: Any) -> dict[str, Any]:
    """Return the schema with its bounds; infinite ones are left out."""
    if low is not None and low != -math.inf:
        schema["minimum"] = low
    if high is not None and high != math.inf:
        schema["maximum"] = high
    return schema


def ends(low: Any, high: Any, reach: Any) -> tuple[Any, Any]:
    """Return the range to sample from: an open end lies `reach` beyond the other one, or 0."""
    low = None if low == -math.inf else low
    high = None if high == math.inf else high
    if low is None:
        return (-reach if high is None else high - reach), (reach if high is None else high)
    return low, low + reach if high is None else high


@dataclass(frozen=True, slots=True)
class Length:
    """Limits of a length, inclusive; a `high` of `None` means no upper limit."""

    low: int = 0
    high: int | None = None

    def __post_init__(self) -> None:
        for name, end in (("min_length", self.low), ("max_length", self.high)):
            if end is not None and (type(end) is not int or end < 0):
                raise DefinitionError(f"{name} must be an integer >= 0, got {end!r}.")
        if self.high is not None and self.high < self.low:
            raise DefinitionError(f"No length is between {self.low} and {self.high}.")

    @property
    def is_open(self) -> bool:
        """Whether every length is allowed."""
        return self.low == 0 and self.high is None

    def check(self, value: Sized) -> None:
        """Raise `Mismatch` unless the value's length is within the limits."""
        count = len(value)
        if count < self.low or (self.high is not None and count > self.high):
            raise Mismatch(f"{short_repr(value)} has a length of {count}, not {self}")

    def draw(self, rng: np.random.Generator, reach: int) -> int:
        """Draw a length; an open end lies `reach` beyond the lowest one."""
        high = self.low + reach if self.high is None else min(self.high, self.low + reach)
        return int(rng.integers(self.low, high, endpoint=True))

    def schema(self, low: str, high: str) -> dict[str, Any]:
        """Return it as JSON Schema keywords."""
        keywords: dict[str, Any] = {} if self.low == 0 else {low: self.low}
        return keywords if self.high is None else {**keywords, high: self.high}

    def __str__(self) -> str:
        if self.high is None:
            return f"at least {self.low}"
        if self.low == 0:
            return f"at most {self.high}"
        return f"{self.low}" if self.low == self.high else f"between {self.low} and {self.high}"


ANY_LENGTH = Length()
