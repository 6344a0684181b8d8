"""Batches: what a vector environment returns, as columns over environments."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar, final, overload

import numpy as np
from numpy.typing import NDArray

from envweave.session.snapshot import snapshot
from envweave.types import NeedAction, Request, ResetResult, StepResult
from envweave.vector.columns import Columns, Layout, lent, owned, replaced

T = TypeVar("T")


@final
class once(Generic[T]):  # noqa: N801 - reads as `property` does
    """`functools.cached_property` without its lock, which batches do not need.

    In Python 3.11 the lock is half of what a column of a batch costs, and a batch has six.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    def __get__(self, owner: Any, cls: type | None = None) -> T:
        if owner is None:
            return self  # type: ignore[return-value] # the property itself, for `help()`
        value = owner.__dict__[self._name] = self._make(owner)
        return value


NO_OBSERVATION = (
    "A batch has no `observation`. Use `current` to act on, and `successor` to learn from."
)
_NOTHING: Mapping[int, Any] = {}
_BOOL, _FLOAT = np.dtype(np.bool_), np.dtype(np.float64)
OVER = "its episode is over"
"""Why an environment without autoreset is idle."""


class Tick(NamedTuple):
    """One step of many environments, as a transport recorded it. It is never changed.

    Attributes:
        layout: How observations are laid out in columns.
        ids: The environment of each row.
        successor: The columns of the observations that the step led to.
        shown: The same by row; `None` where the columns hold everything.
        rewards: The reward of each row.
        special: The result of each row whose step was not an ordinary one.
        infos: The info of each ordinary row that has one.
        step_index: The index of each step in its episode, less the clock.
        episodes: The episode of each row.
        tasks: The task of each row's episode.
        clock: Added to every step index, so that one array serves many ticks.
    """

    layout: Layout
    ids: Sequence[int]
    successor: Columns
    shown: Sequence[Any] | None
    rewards: Sequence[float] | NDArray[np.float64]
    special: Mapping[int, StepResult[Any]]
    infos: Mapping[int, dict[str, Any]]
    step_index: NDArray[np.int64]
    episodes: Sequence[str | None]
    tasks: Sequence[str | None]
    clock: int = 0


@final
class NonEmptyInfos(Mapping[int, dict[str, Any]]):
    """The infos that are not empty, by row.

    Attributes:
        rows: The infos of all rows.
    """

    __slots__ = ("rows",)

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.rows = rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        if 0 <= row < len(self.rows) and self.rows[row]:
            return self.rows[row]
        raise KeyError(row)

    def __iter__(self) -> Iterator[int]:
        return (i for i, info in enumerate(self.rows) if info)

    def __len__(self) -> int:
        return len(list(iter(self)))


class StepBatch:
    """The outcome of one step of many environments.

    Its arrays are the caller's own, unless the vector was made with `copy=False`.
    """

    def __init__(self, tick: Tick, current: Columns) -> None:
        self._tick = tick
        self._current = current
        self._special = tick.special
        self._export: Callable[[Columns], Columns] = owned

    @once
    def ids(self) -> NDArray[np.int64]:
        """The environment of each row."""
        return np.array(self._tick.ids, np.int64)

    @once
    def successor(self) -> Columns:
        """What to learn from: the true successor of each step, the final observation at an end."""
        return self._export(self._tick.successor)

    @once
    def current(self) -> Columns:
        """What to act on next: the new episode's first observation after an autoreset."""
        return self._export(self._current)

    @property
    def observation(self) -> NoReturn:
        """Raise: one name would hide which of two observations is meant."""
        raise AttributeError(NO_OBSERVATION)

    obs = observation

    @once
    def reward(self) -> NDArray[np.float64]:
        """The reward of each step; NaN where it is not scored yet, or not valid."""
        return np.array(self._tick.rewards, _FLOAT)

    @once
    def terminated(self) -> NDArray[np.bool_]:
        """Where the task ended the episode."""
        return self._mark(lambda result: bool(result.terminated))

    @once
    def truncated(self) -> NDArray[np.bool_]:
        """Where a limit ended the episode."""
        return self._mark(lambda result: bool(result.truncated))

    @property
    def done(self) -> NDArray[np.bool_]:
        """Where the episode is over."""
        return self.terminated | self.truncated

    @once
    def valid(self) -> NDArray[np.bool_]:
        """Where the step may be learned from: nothing failed that the agent did not cause."""
        return ~self._mark(lambda result: not result.valid)

    @once
    def refused(self) -> NDArray[np.bool_]:
        """Where the environment refused the action: no step was taken, and `valid` is false.

        The row is unchanged, and `batch[i].refused` has the reason.
        """
        return self._mark(lambda result: result.refused is not None)

    @property
    def bootstrap(self) -> NDArray[np.bool_]:
        """Where the value of `successor` counts: valid and not terminated."""
        return self.valid & ~self.terminated

    @property
    def idle(self) -> dict[int, str]:
        """The environments whose episode is over and no new one has begun, and why."""
        if not self._special:
            return {}
        special = self._special.items()
        return {self._tick.ids[i]: _why(r) for i, r in special if r.done and r.ready is None}

    @once
    def needs_reset(self) -> NDArray[np.bool_]:
        """Where the episode is over and no new one has begun."""
        return self._mark(lambda result: result.done and result.ready is None)

    def _mark(self, claim: Any) -> NDArray[np.bool_]:
        marks = np.zeros(len(self._tick.ids), _BOOL)
        if self._special:
            for i, result in self._special.items():
                marks[i] = claim(result)
        return marks

    @property
    def step_index(self) -> NDArray[np.int64]:
        """The index of each step in its episode, from 1."""
        return self._tick.step_index + self._tick.clock

    @property
    def episode_id(self) -> list[str | None]:
        """The episode each row belongs to."""
        return list(self._tick.episodes)

    @property
    def task_id(self) -> list[str | None]:
        """The task of each row's episode."""
        return list(self._tick.tasks)

    @once
    def infos(self) -> list[dict[str, Any]]:
        """The info of each row."""
        given, rows = self._tick.infos, range(len(self))
        if isinstance(given, NonEmptyInfos):
            infos = [info or {} for info in given.rows]
        else:
            infos = [given.get(i) or {} for i in rows] if given else [{} for _ in rows]
        for i, result in self._special.items():
            infos[i] = result.info
        return infos

    @property
    def requests(self) -> list[list[Request]]:
        """The requests of each row, made on access."""
        tick = self._tick
        rows: Iterable[Any] = tick.shown if tick.shown is not None else _rows(tick.successor)
        masks = [info.get("action_mask") for info in self.infos] if tick.infos else repeat(None)
        # What an ordinary row asks for, as in `StepResult.needs`, for all of them in C.
        needs = map(NeedAction, rows, masks, np.asarray(tick.rewards, _FLOAT).tolist())
        requests: list[list[Request]] = [[need] for need in needs]
        for i, result in self._special.items():
            requests[i] = result.requests
        return requests

    def __len__(self) -> int:
        return len(self._tick.ids)

    @overload
    def __getitem__(self, index: int) -> StepResult[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[StepResult[Any]]: ...
    def __getitem__(self, index: int | slice) -> StepResult[Any] | list[StepResult[Any]]:
        """Return one row, or the rows of a slice, as a single environment would return it."""
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        i = row_index(index, len(self))
        if i in self._special:
            return self._special[i]
        tick = self._tick
        return StepResult(
            tick.successor[i, ...].copy() if tick.shown is None else tick.shown[i],
            float(tick.rewards[i]),
            info=tick.infos.get(i),
            episode_id=tick.episodes[i],
            step_index=int(tick.step_index[i]) + tick.clock,
            task_id=tick.tasks[i],
        )

    def __iter__(self) -> Iterator[StepResult[Any]]:
        return (self[i] for i in range(len(self)))


def tick_of(batch: StepBatch) -> Tick:
    """Return the recorded step, for code that sends or joins batches."""
    return batch._tick  # noqa: SLF001 - not for users of a batch


def lend(batch: Any) -> None:
    """Have a batch return the vector's own columns, read-only and valid until the next call."""
    batch._export = lent  # noqa: SLF001 - the vector's own, as `tick_of`


def batch_of(results: Sequence[StepResult[Any]], ids: Sequence[int], layout: Layout) -> StepBatch:
    """Return a batch of results that were made one by one.

    Every observation has been checked against the layout by its own session.
    """
    shown = [result.observation for result in results]
    fresh = {i: r.current for i, r in enumerate(results) if r.ready is not None}
    successor = layout.gather(shown)
    return StepBatch(
        Tick(
            layout,
            ids,
            successor,
            shown,
            [_number(result.reward) for result in results],
            dict(enumerate(results)),
            _NOTHING,
            np.array([result.step_index for result in results], np.int64),
            [result.episode_id for result in results],
            [result.task_id for result in results],
        ),
        replaced(successor, fresh, layout) if fresh else successor,
    )


def _rows(columns: NDArray[Any]) -> list[NDArray[Any]]:
    """Return the rows of an array, for the caller to write to."""
    kept = columns.copy()
    return list(kept) if kept.ndim > 1 else [kept[i, ...] for i in range(len(kept))]


def row_index(index: Any, count: int) -> int:
    """Return the index of a row, counted from the end if negative."""
    try:
        i = operator.index(index)
    except TypeError:
        i = None
    if i is None or isinstance(index, bool):
        raise TypeError(f"Rows of a batch are indexed by integers or slices, not by {index!r}.")
    if not -count <= i < count:
        raise IndexError(f"Row {i} is out of range: the batch has {count} rows.")
    return i % count


def _why(result: StepResult[Any]) -> str:
    failure = result.info.get("reset_error")
    return OVER if failure is None else f"its autoreset failed: {failure}"


def _number(reward: float | None) -> float:
    return math.nan if reward is None else reward


class RowStatus(NamedTuple):
    """The status of an environment between two calls."""

    observation: Any
    step_index: int
    episode_id: str | None
    task_id: str | None


class ResetBatch:
    """The outcome of a reset or a restore, with a row for every environment.

    It has the columns of a `StepBatch`. The rows of environments that were left out with `ids=…`
    show their current status, with no info and no requests. No row has a
    reward, and none is done.

    Attributes:
        ids: The environment of each row: all of them, in order.
        began: Where an episode began.
    """

    def __init__(
        self,
        began: Mapping[int, ResetResult[Any]],
        others: Mapping[int, RowStatus],
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
        self._export: Callable[[Columns], Columns] = owned

    @property
    def observation(self) -> NoReturn:
        """Raise, as `StepBatch.observation` does."""
        raise AttributeError(NO_OBSERVATION)

    obs = observation

    @once
    def current(self) -> Columns:
        """What to act on next."""
        return self._export(self._shown)

    @once
    def successor(self) -> Columns:
        """The same as `current`: no step was taken."""
        return self._export(self._shown)

    @property
    def reward(self) -> NDArray[np.float64]:
        """NaN everywhere: no step was taken."""
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
        """Where no episode is running: the environment was left out and is idle."""
        return np.array([i in self._idle for i in range(len(self))], np.bool_)

    @property
    def step_index(self) -> NDArray[np.int64]:
        """How many steps each episode has taken: 0 after a reset, those of then after a restore."""
        return np.array([row.step_index for row in self._rows()], np.int64)

    @property
    def episode_id(self) -> list[str | None]:
        """The episode of each row."""
        return [row.episode_id for row in self._rows()]

    @property
    def task_id(self) -> list[str | None]:
        """The task of each row's episode."""
        return [row.task_id for row in self._rows()]

    @property
    def infos(self) -> list[dict[str, Any]]:
        """The info of each row; empty where no episode began."""
        return [r.info if (r := self._began.get(i)) else {} for i in range(len(self))]

    @property
    def requests(self) -> list[list[Request]]:
        """The requests of each row; none where no episode began."""
        return [r.requests if (r := self._began.get(i)) else [] for i in range(len(self))]

    def _rows(self) -> Iterator[ResetResult[Any] | RowStatus]:
        return (self._began.get(i) or self._others[i] for i in range(len(self)))

    def __len__(self) -> int:
        return len(self.began)

    @overload
    def __getitem__(self, index: int) -> ResetResult[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[ResetResult[Any]]: ...
    def __getitem__(self, index: int | slice) -> ResetResult[Any] | list[ResetResult[Any]]:
        """Return one row, or the rows of a slice, as a single environment would return it."""
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        i = row_index(index, len(self))
        if i in self._began:
            return self._began[i]
        status = self._others[i]
        row = ResetResult(
            snapshot(status.observation),
            requests=(),
            episode_id=status.episode_id,
            task_id=status.task_id,
        )
        row.step_index = status.step_index
        return row

    def __iter__(self) -> Iterator[ResetResult[Any]]:
        return (self[i] for i in range(len(self)))
