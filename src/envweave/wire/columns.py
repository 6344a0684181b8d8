"""The actions and observations of many steps as columns, if they are of one kind, and as rows.

A column per field is much faster to write and read than a dict per row, and one array of all rows
than an array per row.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final, overload

import numpy as np

from envweave.codec.containers import NOT_SHOWN
from envweave.errors import WireError
from envweave.types import Observation
from envweave.wire.arrays import stack_rows


@final
class ActionBatch(Sequence[dict[str, Any]]):
    """Actions that have the same fields, as a column for each; a row is a dict of its fields.

    Attributes:
        columns: The columns by field, of one length.
    """

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns = columns

    @overload
    def __getitem__(self, row: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, row: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, row: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        """Return one action, or some of them."""
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        return {name: column[row] for name, column in self.columns.items()}

    def __len__(self) -> int:
        """Return the number of actions."""
        return len(next(iter(self.columns.values()), ()))


Shown: TypeAlias = Any
"""A list of observations, one array of them all, or a dict of such columns by field."""

_PARTS = operator.attrgetter("reward", "done", "truncated", "metadata")
_Getters: TypeAlias = dict[str, Callable[[Any], Any]]


def columns_of(
    observations: list[Any], rewards: Sequence[Any], infos: Sequence[Mapping[str, Any]]
) -> tuple[Shown, bool]:
    """Return observations as columns if they are of one kind, otherwise unchanged.

    Also returns whether all other fields of each are implied by its step: `reward` and `metadata`
    are its reward and info, and `done` and `truncated` are false.
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
    except Exception:  # noqa: BLE001 - a field was deleted, or is an author's property
        return observations, False
    return columns, is_implied


@functools.lru_cache(maxsize=256)
def _getters(kind: Any) -> _Getters:
    """Return getters for the fields of a class, if it can be sent in columns; else none."""
    hidden = NOT_SHOWN if issubclass(kind, Observation) else frozenset()
    if not dataclasses.is_dataclass(kind):
        return {}
    names = [field.name for field in dataclasses.fields(kind)]
    if any(name.startswith("_") for name in names):
        return {}  # they are not sent in a row either
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
    together = stack_rows(values) if type(values[0]) is np.ndarray else None
    return values if together is None else together


def count_of(shown: Shown) -> int:
    """Return the number of observations.

    Raises:
        WireError: They are not columns, or of different lengths.
    """
    if type(shown) is list:
        return len(shown)
    if isinstance(shown, np.ndarray) and shown.ndim:
        return len(shown)
    if isinstance(shown, dict):
        counts = {count_of(one) for one in shown.values() if not isinstance(one, dict)}
        if len(counts) == 1 and not any(isinstance(one, dict) for one in shown.values()):
            return counts.pop()
    raise WireError("The frame has observations that are not valid columns.")


def rows_of(
    shown: Shown, rewards: Sequence[Any], infos: Mapping[int, Mapping[Any, Any]], *, implied: bool
) -> list[Any]:
    """Return observations one by one, as each would have been sent by itself."""
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
