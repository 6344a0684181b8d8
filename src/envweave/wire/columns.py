"""The observations of many steps: as columns where they are of one kind, and as rows again.

A column by field is much quicker to write and to read than a dict a row, and an array of all rows
than an array a row.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from envweave.codec.spaces import NOT_SHOWN
from envweave.errors import WireError
from envweave.types import Observation
from envweave.wire.arrays import stacked

Shown: TypeAlias = Any
"""A list of observations; or one array of them all; or by field a list, or such an array."""

_PARTS = operator.attrgetter("reward", "done", "truncated", "metadata")
_Getters: TypeAlias = dict[str, Callable[[Any], Any]]


def columns_of(
    observations: list[Any], rewards: Sequence[Any], infos: Sequence[Mapping[str, Any]]
) -> tuple[Shown, bool]:
    """Return observations as columns if they are of one kind, and else as they are.

    Also returns whether each has besides its columns nothing but what its step implies: the
    reward and the info, as `reward` and `metadata`, and `done` and `truncated`, which are false.
    """
    if not observations:
        return observations, False
    kind: Any = type(observations[0])
    if kind is np.ndarray:
        return _column(observations), False
    getters = _getters(kind)
    if not getters or list(map(type, observations)).count(kind) < len(observations):
        return observations, False
    is_implied = issubclass(kind, Observation)
    try:
        if is_implied and not _are_implied(observations, rewards, infos):
            return observations, False
        columns = {name: _column(list(map(get, observations))) for name, get in getters.items()}
    except Exception:  # noqa: BLE001 - a field was deleted, or is somebody's own property
        return observations, False
    return columns, is_implied


@functools.lru_cache(maxsize=256)
def _getters(kind: Any) -> _Getters:
    """Return what reads the fields of a class that can be shown in columns; else nothing."""
    hidden = NOT_SHOWN if issubclass(kind, Observation) else frozenset()
    if not dataclasses.is_dataclass(kind):
        return {}
    names = [field.name for field in dataclasses.fields(kind)]
    if any(name.startswith("_") for name in names):
        return {}  # nor would they travel in a row
    return {name: operator.attrgetter(name) for name in names if name not in hidden}


def _are_implied(
    observations: list[Any], rewards: Sequence[Any], infos: Sequence[Mapping[str, Any]]
) -> bool:
    earned, done, truncated, metadata = zip(*map(_PARTS, observations), strict=True)
    flags = done + truncated
    return (
        set(map(type, earned)) == {float}
        and earned == tuple(rewards)
        and set(map(type, flags)) == {bool}
        and not any(flags)
        and metadata == tuple(infos)
    )


def _column(values: list[Any]) -> Any:
    together = stacked(values) if type(values[0]) is np.ndarray else None
    return values if together is None else together


def count_of(shown: Shown) -> int:
    """Return how many observations are shown.

    Raises:
        WireError: They are no columns, or of different lengths.
    """
    if type(shown) is list:
        return len(shown)
    if isinstance(shown, np.ndarray) and shown.ndim:
        return len(shown)
    if isinstance(shown, dict):
        counts = {count_of(one) for one in shown.values() if not isinstance(one, dict)}
        if len(counts) == 1 and not any(isinstance(one, dict) for one in shown.values()):
            return counts.pop()
    raise WireError("The frame holds observations that are no columns.")


def rows_of(
    shown: Shown, rewards: Sequence[Any], infos: Mapping[int, Mapping[Any, Any]], *, implied: bool
) -> list[Any]:
    """Return observations one by one, as each would have travelled by itself."""
    if not isinstance(shown, dict):
        return _cells(shown)
    columns = [_cells(column) for column in shown.values()]
    rows = [dict(zip(shown, cells, strict=True)) for cells in zip(*columns, strict=True)]
    if implied:
        for i, row in enumerate(rows):
            metadata = dict(infos.get(i, {}))
            row |= {"reward": rewards[i], "done": False, "truncated": False, "metadata": metadata}
    return rows


def _cells(column: Any) -> list[Any]:
    if isinstance(column, np.ndarray):
        return [column[i, ...].copy() for i in range(len(column))]
    return list(column)
