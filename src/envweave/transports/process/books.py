"""What the trainer knows of rows that run elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from envweave.session.keeping import keep
from envweave.session.outcomes import refused_row
from envweave.transports.process.gathering import chosen_rows
from envweave.transports.process.rebuilding import RebuiltRows
from envweave.transports.trail import lost_result
from envweave.types import (
    AutoResetReady,
    EpisodeEnd,
    NeedAction,
    ResetResult,
    StepResult,
    ToolCallRequest,
)
from envweave.vector.batch import StepBatch, Tick
from envweave.vector.columns import Arrays, Columns, Layout, Listed, replaced
from envweave.vector.reset_batch import Standing


@final
class Books:
    """Where every row stands: what it showed last, in which episode, at which step.

    Batches refer to the lists, so these are copied before they are written to.
    """

    def __init__(self, num_envs: int, *, several_agents: bool) -> None:
        self.num_envs = num_envs
        self._everyone = list(range(num_envs))
        self._several_agents = several_agents
        self.layout: Layout = Listed()
        self.columns: Columns = None  # what to act on next; nobody writes to it
        self.live: set[int] = set()  # whose episode is running
        self._steps = np.zeros(num_envs, np.int64)  # of each episode, less the clock
        self._clock = 0
        self._episodes: list[str | None] = [None] * num_envs
        self._tasks: list[str | None] = [None] * num_envs
        self._rewards: Sequence[float] | NDArray[np.float64] = [math.nan] * num_envs
        self._infos: dict[int, dict[str, Any]] = {}
        self._shown: dict[int, Any] = {}  # the last observations that came as objects

    def fix(self, layout: Layout, observations: Sequence[Any]) -> None:
        """Fix the columns."""
        self.layout = layout
        self.columns = layout.gather(observations)

    def start(self, began: Mapping[int, ResetResult[Any] | AutoResetReady[Any]]) -> None:
        """Book the first observations of new episodes."""
        if not began:
            return
        self._steps = self._steps.copy()
        self._episodes, self._tasks = list(self._episodes), list(self._tasks)
        shown = {}
        self._infos = dict(self._infos)
        for row, one in began.items():
            self._steps[row] = -self._clock
            self._episodes[row], self._tasks[row] = one.episode_id, one.task_id
            if isinstance(one, AutoResetReady):
                shown[row], self._infos[row] = one.initial_obs, one.initial_info
            else:
                shown[row], self._infos[row] = one.observation, one.info
        self.live.update(began)
        self._shown |= shown
        if self.columns is not None:
            self.columns = replaced(self.columns, shown, self.layout)

    def last(self, row: int) -> Any:
        """Return what a row showed last, as its environment gave it."""
        if row in self._shown:
            return keep(self._shown[row])
        rows = RebuiltRows(self.layout, self.columns, self._rewards, self._infos, {})
        return keep(rows[row])

    def standing(self, row: int) -> Standing:
        """Return where a row stands."""
        return Standing(self.last(row), self._step(row), self._episodes[row], self._tasks[row])

    def _step(self, row: int) -> int:
        return int(self._steps[row]) + self._clock

    def lost(self, row: int, end: EpisodeEnd) -> StepResult[Any]:
        """Return the last result of an episode whose environment is gone."""
        about = SimpleNamespace(
            step_index=self._step(row) + 1,
            episode_id=self._episodes[row],
            task_id=self._tasks[row],
        )
        return lost_result(self.last(row), end, about, several_agents=self._several_agents)

    def refused(
        self, row: int, error: Exception, waiting: tuple[ToolCallRequest, ...]
    ) -> StepResult[Any]:
        """Return the row of a batch whose action was refused, with one agent."""
        last = self.last(row)
        asked = (NeedAction(last, keep(self._infos.get(row, {}).get("action_mask"))),)
        about = SimpleNamespace(
            step_index=self._step(row), episode_id=self._episodes[row], task_id=self._tasks[row]
        )
        return refused_row(error, last, asked, waiting, about, several_agents=False)

    def plain_batch(self, successor: Columns, rewards: NDArray[np.float64]) -> StepBatch:
        """Book a step of all rows that columns hold all of, and return it as a batch."""
        self._clock += 1
        self.columns, self._rewards = successor, rewards
        self._infos, self._shown = {}, {}
        tick = Tick(
            self.layout,
            self._everyone,
            successor,
            None,
            rewards,
            {},
            {},
            self._steps,
            self._episodes,
            self._tasks,
            self._clock,
        )
        return StepBatch(tick, successor)

    def batch(
        self,
        rows: Sequence[int],
        successor: Columns,
        rewards: list[float],
        special: Mapping[int, StepResult[Any]],
        infos: Mapping[int, dict[str, Any]],
        whole: Mapping[int, Any],
    ) -> StepBatch:
        """Book a step of some rows, and return it as a batch.

        Args:
            rows: Which rows, in the batch's order.
            successor: The columns of what they show, in that order.
            rewards: What they earned, in that order.
            special: The results of those that were no ordinary step, by row.
            infos: The infos of the others, by row.
            whole: What the columns do not hold all of, by row.
        """
        is_all = list(rows) == self._everyone
        place = {row: k for k, row in enumerate(rows)} if not is_all else None
        at = (lambda row: row) if place is None else place.__getitem__
        chosen = slice(None) if is_all else np.array(rows, np.int64)
        self._steps = self._steps.copy()
        self._steps[chosen] += 1
        for row, result in special.items():
            self._steps[row] = result.step_index - self._clock
            rewards[at(row)] = math.nan if result.reward is None else result.reward
        here = {at(row): info for row, info in infos.items()}
        seen = {at(row): one for row, one in whole.items()}
        episodes, tasks = self._episodes, self._tasks
        tick = Tick(
            self.layout,
            rows,
            successor,
            None
            if isinstance(self.layout, Arrays)
            else RebuiltRows(self.layout, successor, rewards, here, seen),
            rewards,
            {at(row): result for row, result in special.items()},
            here,
            self._steps[chosen],
            episodes if is_all else [episodes[row] for row in rows],
            tasks if is_all else [tasks[row] for row in rows],
            self._clock,
        )
        self._look(rows, successor, rewards, infos, whole, is_all=is_all)
        self._shown |= {row: result.observation for row, result in special.items()}
        self._infos |= {row: one.info for row, one in special.items() if not self._several_agents}
        self.live.difference_update(row for row, result in special.items() if result.done)
        self.start({row: one.ready for row, one in special.items() if one.ready is not None})
        current = self.columns if is_all else chosen_rows(self.columns, chosen)
        return StepBatch(tick, current)

    def _look(
        self,
        rows: Sequence[int],
        successor: Columns,
        rewards: list[float],
        infos: Mapping[int, dict[str, Any]],
        whole: Mapping[int, Any],
        *,
        is_all: bool,
    ) -> None:
        """Keep what rows show now."""
        if is_all:
            self.columns, self._rewards = successor, rewards
            self._infos, self._shown = dict(infos), dict(whole)
            return
        self.columns = _written(self.columns, rows, successor)
        kept = list(self._rewards)
        for row, reward in zip(rows, rewards, strict=True):
            kept[row] = reward
            self._infos.pop(row, None)
            self._shown.pop(row, None)
        self._rewards = kept
        self._infos.update(infos)
        self._shown |= whole


def _written(columns: Columns, rows: Sequence[int], values: Columns) -> Columns:
    """Return a copy of columns with those of some rows in their places."""
    if isinstance(columns, dict):
        return {name: _written(column, rows, values[name]) for name, column in columns.items()}
    changed = columns.copy()
    if isinstance(changed, list):
        for row, value in zip(rows, values, strict=True):
            changed[row] = value
    else:
        changed[rows] = values
        changed.flags.writeable = False
    return changed
