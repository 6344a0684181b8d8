"""The seeds of a session's episodes."""

from __future__ import annotations

import operator
import secrets
from typing import Any

from envweave.errors import SeedError

_MASK = 0xFFFFFFFFFFFFFFFF


def episode_seed(base: int, k: int) -> int:
    """Return the seed of the k-th episode of the stream that begins with `base`.

    It keeps no state, so a replacement environment needs `(base, k)` and no generator.
    """
    if k == 0:
        return base
    z = (base * 0x9E3779B97F4A7C15 + k * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) & 0x7FFFFFFF


def draw_seed() -> int:
    """Draw the base of a stream from the system, never from the global generators."""
    return secrets.randbits(31)


def read_seed(seed: Any) -> int:
    """Return a caller's seed as an int.

    Raises:
        SeedError: It is no whole number of 0 or more.
    """
    try:
        value = operator.index(seed)
    except TypeError:
        value = -1
    if value < 0 or isinstance(seed, bool):
        raise SeedError(f"seed={seed!r} is not a whole number of 0 or more.")
    return value
