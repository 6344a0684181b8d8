"""What a reset of a vector environment returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, overload

import numpy as np
from numpy.typing import NDArray

from envweave.session.keeping import keep
from envweave.types import Request, ResetResult
from envweave.vector.batch import NO_OBSERVATION, place_of
from envweave.vector.columns import Columns, owned
from envweave.vector.once import once


class Standing(NamedTuple):
    """Where an environment stands between two calls."""

    observation: Any
    step_index: int
    episode_id: str | None
    task_id: str | None


class ResetBatch:
    """The outcome of a reset, with a row for every environment: all of them can be acted on.

    It has the columns of a `StepBatch`. In the rows of environments that were left out of
    `reset(ids=…)` they say where each stands, with no info and no requests. No row has a
    reward, and none is done.

    Attributes:
        ids: Which environment each row is of: all of them, in order.
        began: Where an episode began.
    """

    def __init__(
        self,
        began: Mapping[int, ResetResult[Any]],
        others: Mapping[int, Standing],
        idle: Collection[int],
        current: Columns,
    ) -> None:
        count = len(began) + len(others)
        self._began = began
        self._others = others
        self._idle = idle
        self.ids: NDArray[np.int64] = np.arange(count)
        self.began: NDArray[np.bool_] = np.array([i in began for i in range(count)], np.bool_)
        self._shown = current
        self._give: Callable[[Columns], Columns] = owned

    @property
    def observation(self) -> NoReturn:
        """Refuse, as `StepBatch.observation` does."""
        raise AttributeError(NO_OBSERVATION)

    obs = observation

    @once
    def current(self) -> Columns:
        """What to act on next."""
        return self._give(self._shown)

    @once
    def successor(self) -> Columns:
        """The same: no step has led anywhere."""
        return self._give(self._shown)

    @property
    def reward(self) -> NDArray[np.float64]:
        """NaN: nothing was earned."""
        return np.full(len(self), math.nan)

    @property
    def terminated(self) -> NDArray[np.bool_]:
        """Nowhere."""
        return np.zeros(len(self), np.bool_)

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """Nowhere."""
        return np.zeros(len(self), np.bool_)

    @property
    def done(self) -> NDArray[np.bool_]:
        """Nowhere; `needs_reset` says where no episode is running."""
        return np.zeros(len(self), np.bool_)

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Everywhere, as in a `ResetResult`."""
        return np.ones(len(self), np.bool_)

    @property
    def refused(self) -> NDArray[np.bool_]:
        """Nowhere."""
        return np.zeros(len(self), np.bool_)

    @property
    def bootstrap(self) -> NDArray[np.bool_]:
        """Everywhere."""
        return np.ones(len(self), np.bool_)

    @property
    def needs_reset(self) -> NDArray[np.bool_]:
        """Where no episode is running, since that environment was left out."""
        return np.array([i in self._idle for i in range(len(self))], np.bool_)

    @property
    def step_index(self) -> NDArray[np.int64]:
        """How many steps each episode has behind it: 0 where one began."""
        return np.array([row.step_index for row in self._rows()], np.int64)

    @property
    def episode_id(self) -> list[str | None]:
        """The episode of each row."""
        return [row.episode_id for row in self._rows()]

    @property
    def task_id(self) -> list[str | None]:
        """What each row's episode is about."""
        return [row.task_id for row in self._rows()]

    @property
    def infos(self) -> list[dict[str, Any]]:
        """The info of each row; empty where no episode began."""
        return [r.info if (r := self._began.get(i)) else {} for i in range(len(self))]

    @property
    def requests(self) -> list[list[Request]]:
        """The requests of each row; none where no episode began."""
        return [r.requests if (r := self._began.get(i)) else [] for i in range(len(self))]

    def _rows(self) -> Iterator[ResetResult[Any] | Standing]:
        return (self._began.get(i) or self._others[i] for i in range(len(self)))

    def __len__(self) -> int:
        return len(self.began)

    @overload
    def __getitem__(self, index: int) -> ResetResult[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[ResetResult[Any]]: ...
    def __getitem__(self, index: int | slice) -> ResetResult[Any] | list[ResetResult[Any]]:
        """Return one row, or the rows of a slice, as a single environment would have given it."""
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        i = place_of(index, len(self))
        if i in self._began:
            return self._began[i]
        stands = self._others[i]
        row = ResetResult(
            keep(stands.observation),
            requests=(),
            episode_id=stands.episode_id,
            task_id=stands.task_id,
        )
        row.step_index = stands.step_index
        return row

    def __iter__(self) -> Iterator[ResetResult[Any]]:
        return (self[i] for i in range(len(self)))
