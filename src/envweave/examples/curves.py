"""Curves over episodes: their moving average, and how they look on a terminal."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-=+*#@"


def moving_average(values: ArrayLike, window: int) -> NDArray[np.float64]:
    """Return, for each value, the mean of the last `window` up to it (fewer at the start)."""
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(values, np.float64))])
    last = np.arange(1, len(sums))
    first = np.maximum(0, last - window)
    averages: NDArray[np.float64] = (sums[last] - sums[first]) / (last - first)
    return averages


def sparkline(
    values: ArrayLike, *, low: float, high: float, width: int = 60, blocks: str = BLOCKS
) -> str:
    """Draw values between `low` and `high` as one line of at most `width` characters."""
    row = np.asarray(values, np.float64)
    if not len(row):
        return ""
    shown = [float(part.mean()) for part in np.array_split(row, min(width, len(row)))]
    top = len(blocks) - 1
    heights = [(value - low) / (high - low) * top for value in shown]
    return "".join(blocks[min(top, max(0, round(height)))] for height in heights)


def blocks_for(encoding: str | None) -> str:
    """Return the characters that a terminal of this encoding can show."""
    try:
        BLOCKS.encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return ASCII_BLOCKS
    return BLOCKS
