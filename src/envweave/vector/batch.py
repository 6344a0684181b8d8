"""What a vector environment returns: columns over environments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NoReturn, final

import numpy as np
from numpy.typing import NDArray

from envweave.types import Request, StepResult
from envweave.vector.columns import Columns, Layout


class Batch:
    """What both batches share: the rows, and what to act on. Columns are the caller's own."""

    def __init__(self, results: Sequence[StepResult[Any]], layout: Layout) -> None:
        self._results = list(results)
        self._layout = layout

    @cached_property
    def current(self) -> Columns:
        """What to act on next: the new episode's first observation after an autoreset."""
        return self._layout.gather([result.current for result in self._results])

    @property
    def observation(self) -> NoReturn:
        """Refuse: one name would hide which of two observations is meant."""
        raise AttributeError(
            "A batch has no `observation`. Use `current` to act on, and `successor` to learn from."
        )

    @cached_property
    def episode_id(self) -> list[str | None]:
        """The episode each row belongs to."""
        return [result.episode_id for result in self._results]

    @cached_property
    def task_id(self) -> list[str | None]:
        """What each row's episode is about."""
        return [result.task_id for result in self._results]

    @cached_property
    def infos(self) -> list[dict[str, Any]]:
        """The info of each row."""
        return [result.info for result in self._results]

    @property
    def requests(self) -> list[list[Request]]:
        """The requests of each row, made when looked at."""
        return [result.requests for result in self._results]

    def __len__(self) -> int:
        return len(self._results)

    def __getitem__(self, index: int) -> StepResult[Any]:
        return self._results[index]

    def __iter__(self) -> Iterator[StepResult[Any]]:
        return iter(self._results)


@final
class ResetBatch(Batch):
    """The outcome of a reset: what to act on, for every environment.

    Attributes:
        ids: Which environments began an episode; the others are shown as they stand.
    """

    def __init__(
        self, results: Sequence[StepResult[Any]], layout: Layout, ids: Sequence[int]
    ) -> None:
        super().__init__(results, layout)
        self.ids: NDArray[np.int64] = np.array(ids, np.int64)


@final
class StepBatch(Batch):
    """The outcome of one step of many environments."""

    @cached_property
    def successor(self) -> Columns:
        """What to learn from: the true successor of each step, the final one at an end."""
        return self._layout.gather([result.observation for result in self._results])

    @cached_property
    def reward(self) -> NDArray[np.float64]:
        """What each step earned; NaN where it is not scored yet, or not valid."""
        return np.array([_number(result.reward) for result in self._results], np.float64)

    @cached_property
    def terminated(self) -> NDArray[np.bool_]:
        """Where the task ended the episode."""
        return np.array([result.terminated for result in self._results], np.bool_)

    @cached_property
    def truncated(self) -> NDArray[np.bool_]:
        """Where a limit ended the episode."""
        return np.array([result.truncated for result in self._results], np.bool_)

    @property
    def done(self) -> NDArray[np.bool_]:
        """Where the episode is over."""
        return self.terminated | self.truncated

    @cached_property
    def valid(self) -> NDArray[np.bool_]:
        """Where the step may be learnt from: nothing failed that the agent did not cause."""
        return np.array([result.valid for result in self._results], np.bool_)

    @property
    def bootstrap(self) -> NDArray[np.bool_]:
        """Where the value of `successor` counts: valid and not terminated."""
        return self.valid & ~self.terminated

    @cached_property
    def needs_reset(self) -> NDArray[np.bool_]:
        """Where the episode is over and no new one has begun."""
        return np.array([r.done and r.ready is None for r in self._results], np.bool_)

    @cached_property
    def step_index(self) -> NDArray[np.int64]:
        """Which step of its episode each was, from 1."""
        return np.array([result.step_index for result in self._results], np.int64)


def _number(reward: Any) -> float:
    return float("nan") if reward is None else float(reward)
