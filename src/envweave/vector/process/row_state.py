"""The caller's view of rows that run in other processes, and of their steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from envweave.session.episodes import lost_result
from envweave.session.results import refused_row
from envweave.session.snapshot import snapshot
from envweave.types import (
    AutoResetReady,
    EpisodeEnd,
    NeedAction,
    ResetResult,
    StepResult,
    ToolCallRequest,
)
from envweave.vector.batch import RowStatus, StepBatch, Tick, tick_of
from envweave.vector.columns import Arrays, Columns, Fields, Layout, Listed, Numbers, replaced
from envweave.vector.process.lazy_rows import RebuiltRows
from envweave.vector.process.shared_columns import SharedColumns
from envweave.vector.process.vector_worker import StepExtras

_NOTHING = StepExtras({}, {}, [], {}, {})


class MergedRows(NamedTuple):
    """One step of some rows.

    Attributes:
        rows: Which rows, in order.
        columns: Their observations; views of shared memory, until they are stepped again.
        rewards: Their rewards.
        special: The results of those whose step was not an ordinary one, by row.
        infos: The infos of the others, by row.
        whole: Observations that the columns hold only in part, by row.
    """

    rows: Sequence[int]
    columns: Columns
    rewards: list[float]
    special: Mapping[int, StepResult[Any]]
    infos: Mapping[int, dict[str, Any]]
    whole: Mapping[int, Any]


def from_worker(
    rows: Sequence[int], shared: SharedColumns, extras: StepExtras | None
) -> MergedRows:
    """Return the step that a worker has written to the shared columns."""
    extras = _NOTHING if extras is None else extras
    chosen: Any = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
    rewards: list[float] = shared.rewards[chosen].tolist()
    if len(extras.special) == len(rows):
        columns = shared.layout.gather([extras.special[row].observation for row in rows])
    else:
        columns = _read(shared.layout, chosen, iter(shared.leaves), iter(extras.lists))
    return MergedRows(rows, columns, rewards, extras.special, extras.infos, extras.whole)


def from_caller(batch: StepBatch) -> MergedRows:
    """Return the step of the rows that the caller's own thread steps."""
    tick = tick_of(batch)
    ids = tick.ids
    whole: dict[int, Any] = {}
    if tick.shown is not None and not isinstance(tick.layout, Arrays):
        whole = dict(zip(ids, tick.shown, strict=True))
    return MergedRows(
        ids,
        tick.successor,
        list(tick.rewards),
        {ids[k]: result for k, result in tick.special.items()},
        {ids[k]: info for k, info in tick.infos.items()},
        whole,
    )


def from_results(results: Mapping[int, StepResult[Any]], layout: Layout) -> MergedRows:
    """Return a step of rows from their results."""
    columns = layout.gather([result.observation for result in results.values()])
    return MergedRows(list(results), columns, [0.0] * len(results), results, {}, {})


def gather(layout: Layout, parts: Sequence[MergedRows]) -> MergedRows:
    """Return one step of all the rows, with columns of its own."""
    columns = _joined(layout, [part.columns for part in parts])
    if len(parts) == 1:
        return parts[0]._replace(columns=columns)
    rows: list[int] = []
    rewards: list[float] = []
    special: dict[int, StepResult[Any]] = {}
    infos: dict[int, dict[str, Any]] = {}
    whole: dict[int, Any] = {}
    for part in parts:
        rows += part.rows
        rewards += part.rewards
        special |= part.special
        infos |= part.infos
        whole |= part.whole
    return MergedRows(rows, columns, rewards, special, infos, whole)


def sorted_by_row(step: MergedRows) -> MergedRows:
    """Return the same step with its rows in order."""
    rows = list(step.rows)
    if rows == sorted(rows):
        return step
    order = sorted(range(len(rows)), key=rows.__getitem__)
    return step._replace(
        rows=[rows[k] for k in order],
        columns=chosen_rows(step.columns, order),
        rewards=[step.rewards[k] for k in order],
    )


def chosen_rows(columns: Columns, rows: Any) -> Columns:
    """Return some rows of columns, in this order."""
    if isinstance(columns, dict):
        return {name: chosen_rows(column, rows) for name, column in columns.items()}
    return [columns[row] for row in rows] if isinstance(columns, list) else columns[rows]


def _read(layout: Layout, rows: Any, leaves: Any, lists: Any) -> Columns:
    if isinstance(layout, Fields):
        return {n: _read(one, rows, leaves, lists) for n, one in layout.columns.items()}
    return next(leaves)[rows] if isinstance(layout, Numbers | Arrays) else next(lists)


def _joined(layout: Layout, parts: list[Columns]) -> Columns:
    if isinstance(layout, Fields):
        return {
            name: _joined(column, [part[name] for part in parts])
            for name, column in layout.columns.items()
        }
    if isinstance(layout, Numbers | Arrays):
        joined = np.concatenate(parts)
        joined.flags.writeable = False
        return joined
    return [one for part in parts for one in part]


@final
class RowState:
    """The status of every row: its last observation, its episode and its step.

    Batches refer to the lists, so these are copied before they are written to.
    """

    def __init__(self, num_envs: int, *, several_agents: bool) -> None:
        self.num_envs = num_envs
        self._everyone = list(range(num_envs))
        self._several_agents = several_agents
        self.layout: Layout = Listed()
        self.columns: Columns = None  # what to act on next; read-only
        self.live: set[int] = set()  # the rows whose episode is running
        self._steps = np.zeros(num_envs, np.int64)  # of each episode, less the clock
        self._clock = 0
        self._episodes: list[str | None] = [None] * num_envs
        self._tasks: list[str | None] = [None] * num_envs
        self._rewards: Sequence[float] | NDArray[np.float64] = [math.nan] * num_envs
        self._infos: dict[int, dict[str, Any]] = {}
        self._shown: dict[int, Any] = {}  # the last observations that were received as objects

    def fix(self, layout: Layout, observations: Sequence[Any]) -> None:
        """Fix the columns."""
        self.layout = layout
        self.columns = layout.gather(observations)
        self._shown = dict(enumerate(observations))

    def start(self, began: Mapping[int, ResetResult[Any] | AutoResetReady[Any]]) -> None:
        """Record the first observations of new episodes."""
        if not began:
            return
        self._steps = self._steps.copy()
        self._episodes, self._tasks = list(self._episodes), list(self._tasks)
        shown = {}
        self._infos = dict(self._infos)
        for row, one in began.items():
            steps = 0 if isinstance(one, AutoResetReady) else one.step_index
            self._steps[row] = steps - self._clock
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
        """Return a row's last observation, as its environment returned it."""
        if row in self._shown:
            return snapshot(self._shown[row])
        rows = RebuiltRows(self.layout, self.columns, self._rewards, self._infos, {})
        return snapshot(rows[row])

    def row_status(self, row: int) -> RowStatus:
        """Return the status of a row."""
        return RowStatus(self.last(row), self._step(row), self._episodes[row], self._tasks[row])

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
        asked = (NeedAction(last, snapshot(self._infos.get(row, {}).get("action_mask"))),)
        about = SimpleNamespace(
            step_index=self._step(row), episode_id=self._episodes[row], task_id=self._tasks[row]
        )
        return refused_row(error, last, asked, waiting, about, several_agents=False)

    def plain_batch(self, successor: Columns, rewards: NDArray[np.float64]) -> StepBatch:
        """Record a step of all rows that the columns hold completely, and return it as a batch."""
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
        """Record a step of some rows, and return it as a batch.

        Args:
            rows: Which rows, in the batch's order.
            successor: The columns of their observations, in that order.
            rewards: Their rewards, in that order.
            special: The results of those whose step was not an ordinary one, by row.
            infos: The infos of the others, by row.
            whole: Observations that the columns hold only in part, by row.
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
        self._store(rows, successor, rewards, infos, whole, is_all=is_all)
        self._shown |= {row: result.observation for row, result in special.items()}
        self._infos |= {row: one.info for row, one in special.items() if not self._several_agents}
        self.live.difference_update(row for row, result in special.items() if result.done)
        self.start({row: one.ready for row, one in special.items() if one.ready is not None})
        current = self.columns if is_all else chosen_rows(self.columns, chosen)
        return StepBatch(tick, current)

    def _store(
        self,
        rows: Sequence[int],
        successor: Columns,
        rewards: list[float],
        infos: Mapping[int, dict[str, Any]],
        whole: Mapping[int, Any],
        *,
        is_all: bool,
    ) -> None:
        """Keep the observations, rewards and infos of rows."""
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
    """Return a copy of columns with other values in some rows."""
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
