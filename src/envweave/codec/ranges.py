"""Bounds of numbers: in words, in JSON Schema, and where to draw between them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from envweave.codec.spec import short
from envweave.errors import DefinitionError


def refuse_empty(low: Any, high: Any) -> None:
    """Refuse bounds that no number lies between; `None` is an open end.

    Raises:
        DefinitionError: There is no such number.
    """
    lowest = -math.inf if low is None else low
    highest = math.inf if high is None else high
    # Said this way round, so that NaN as a bound is refused too.
    fits = np.all((lowest <= highest) & (lowest != math.inf) & (highest != -math.inf))
    if not fits:
        raise DefinitionError(f"No number is {between(low, high)}.")


def between(low: Any, high: Any) -> str:
    """Return "at least 0", "at most 1" or "between 0 and 1"."""
    if low is None or high is None:
        return f"at most {short(high)}" if low is None else f"at least {short(low)}"
    return f"between {short(low)} and {short(high)}"


def bounded(schema: dict[str, Any], low: Any, high: Any) -> dict[str, Any]:
    """Return the schema with its bounds; an infinite one says nothing."""
    if low is not None and low != -math.inf:
        schema["minimum"] = low
    if high is not None and high != math.inf:
        schema["maximum"] = high
    return schema


def ends(low: Any, high: Any, reach: Any) -> tuple[Any, Any]:
    """Return where to draw between: an open end lies `reach` beyond the other one, or 0."""
    low = None if low == -math.inf else low
    high = None if high == math.inf else high
    if low is None:
        return (-reach if high is None else high - reach), (reach if high is None else high)
    return low, low + reach if high is None else high
