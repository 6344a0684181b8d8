"""How long a text, a list or a dict may be."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from envweave.codec.spec import Mismatch, short
from envweave.errors import DefinitionError


@dataclass(frozen=True, slots=True)
class Length:
    """Limits of a length; both ends are included, and a `high` of `None` is open."""

    low: int = 0
    high: int | None = None

    def __post_init__(self) -> None:
        for name, end in (("min_length", self.low), ("max_length", self.high)):
            if end is not None and (type(end) is not int or end < 0):
                raise DefinitionError(f"{name} must be a whole number of 0 or more, got {end!r}.")
        if self.high is not None and self.high < self.low:
            raise DefinitionError(f"No length is between {self.low} and {self.high}.")

    @property
    def is_open(self) -> bool:
        """Whether every length is allowed."""
        return self.low == 0 and self.high is None

    def check(self, value: Sized) -> None:
        """Raise `Mismatch` unless the value has such a length."""
        count = len(value)
        if count < self.low or (self.high is not None and count > self.high):
            raise Mismatch(f"{short(value)} has a length of {count}, not {self}")

    def draw(self, rng: np.random.Generator, reach: int) -> int:
        """Draw a length; an open end lies `reach` beyond the lowest one."""
        high = self.low + reach if self.high is None else min(self.high, self.low + reach)
        return int(rng.integers(self.low, high, endpoint=True))

    def schema(self, low: str, high: str) -> dict[str, Any]:
        """Return the words of JSON Schema for it."""
        said: dict[str, Any] = {} if self.low == 0 else {low: self.low}
        return said if self.high is None else {**said, high: self.high}

    def __str__(self) -> str:
        if self.high is None:
            return f"at least {self.low}"
        if self.low == 0:
            return f"at most {self.high}"
        return f"{self.low}" if self.low == self.high else f"between {self.low} and {self.high}"


ANY_LENGTH = Length()
