"""Observations that are rebuilt from columns when they are accessed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from envweave.codec.containers import NOT_SHOWN
from envweave.types import Observation
from envweave.vector.columns import Arrays, Columns, Fields, Layout, Numbers

_PLAIN = {np.dtype(np.bool_), np.dtype(np.int64), np.dtype(np.float64)}
"""Columns of these dtypes hold Python's own numbers."""


def is_rebuildable(layout: Layout) -> bool:
    """Whether the columns hold everything of an observation of exactly this kind."""
    if not isinstance(layout, Fields):
        return True
    if layout.kind is not dict:
        names = {field.name for field in dataclasses.fields(layout.kind)}
        hidden = NOT_SHOWN if issubclass(layout.kind, Observation) else frozenset()
        if names - hidden != set(layout.columns):
            return False
    return all(map(is_rebuildable, layout.columns.values()))


def is_rebuilt(layout: Layout, observation: Any, reward: float, info: Any) -> bool:
    """Whether an observation can be rebuilt exactly from columns, reward and info."""
    if isinstance(observation, Observation) and not (
        observation.reward == reward
        and observation.done is False
        and observation.truncated is False
        and observation.metadata == info
    ):
        return False
    return _is_exactly(layout, observation)


def _is_exactly(layout: Layout, observation: Any) -> bool:
    if not isinstance(layout, Fields):
        return True
    return type(observation) is layout.kind and all(
        _is_exactly(column, layout.get(name)(observation))
        for name, column in layout.columns.items()
        if isinstance(column, Fields)
    )


@final
class RebuiltRows(Sequence[Any]):
    """The observations of a batch by row.

    Attributes:
        whole: Those that the columns hold only in part.
    """

    def __init__(
        self,
        layout: Layout,
        columns: Columns,
        rewards: Sequence[float] | NDArray[np.float64],
        infos: Mapping[int, dict[str, Any]],
        whole: Mapping[int, Any],
    ) -> None:
        self._layout = layout
        self._columns = columns
        self._rewards = rewards
        self._infos = infos
        self.whole = whole

    def __len__(self) -> int:
        return len(self._rewards)

    def __getitem__(self, index: Any) -> Any:
        if index in self.whole:
            return self.whole[index]
        observation = _rebuild(self._layout, self._columns, index)
        if isinstance(observation, Observation):
            hidden = {
                "reward": float(self._rewards[index]),
                "done": False,
                "truncated": False,
                "metadata": dict(self._infos.get(index, ())),
            }
            for name, value in hidden.items():
                object.__setattr__(observation, name, value)
        return observation


def _rebuild(layout: Layout, columns: Columns, index: int) -> Any:
    if isinstance(layout, Fields):
        parts = {n: _rebuild(one, columns[n], index) for n, one in layout.columns.items()}
        if layout.kind is dict:
            return parts
        record: Any = object.__new__(layout.kind)
        for name, value in parts.items():
            object.__setattr__(record, name, value)  # also into a frozen one
        return record
    if isinstance(layout, Numbers):
        return columns[index].item() if layout.dtype in _PLAIN else columns[index]
    if isinstance(layout, Arrays):
        return columns[index, ...].copy()
    return columns[index]
