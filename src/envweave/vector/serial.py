"""`mode="serial"`: many sessions of one kind, stepped in one loop.

An ordinary step (a number for a reward, no end, nothing emitted) is recorded by column: the
author's step is called row by row, and everything else is done once for the batch. A few passes in
C over what the steps returned (`split_outcomes`) find that all rows are ordinary; only if one is
not are rows checked one by one. Every other step goes to its row's own `Session`, so that there is
one set of rules; a property test shows that both paths give equal results.
"""

from __future__ import annotations

import math
import operator
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, compress
from math import nan
from typing import Any, NamedTuple, TypeAlias, final

import msgspec
import numpy as np
from numpy.typing import NDArray

from envweave.codec import Mismatch
from envweave.errors import ActionError, BadReturnError, EnvWeaveError, ToolCallOpenError
from envweave.session import Phase, Session, SyncDriver
from envweave.session.session import SessionSnapshot
from envweave.session.snapshot import is_shallow_immutable, snapshot, snapshot_info
from envweave.types import Observation, ResetResult, State, StepResult, Tasks, ToolResult
from envweave.vector.arguments import ResetKwargs
from envweave.vector.batch import NonEmptyInfos, RowStatus, StepBatch, Tick, batch_of
from envweave.vector.columns import (
    Arrays,
    Columns,
    Fields,
    Layout,
    LayoutMismatchError,
    Listed,
    replaced,
)

Rare: TypeAlias = dict[int, Exception | None]
"""The rows that their sessions must conclude, with what their authors' code raised, if it did."""

BLANK: tuple[Any, ...] = (None, nan, False, False, {})
"""Takes the place of the outcome of a step that raised."""

_NUMBERS = (float, int, np.floating, np.integer, np.bool_)
_PARTS = operator.attrgetter("reward", "done", "truncated", "metadata")
# Compares flags in one go, and strictly: only bools are encoded as bools.
_pack = msgspec.msgpack.Encoder().encode
_TRUE, _FALSE = _pack(True), _pack(False)  # noqa: FBT003 - the values themselves


class StepColumns(NamedTuple):
    """The ordinary parts of many steps. In the rows of `rare` they mean nothing.

    Attributes:
        observations: The authors' own objects.
        rewards: A float for each row.
        infos: Those that are not empty; authors hold no reference to them.
    """

    observations: Sequence[Any]
    rewards: NDArray[np.float64]
    infos: Mapping[int, dict[str, Any]]


_NO_INFOS: Mapping[int, dict[str, Any]] = {}


def split_outcomes(outcomes: list[Any], rare: Rare) -> StepColumns:
    """Return the columns of these outcomes, and add to `rare` the rows that are not ordinary.

    Where none is added and there are infos, the list is emptied.
    """
    observations, earned, terminated, truncated, infos = _split(outcomes, rare)
    _add_ends(terminated, truncated, rare)
    rewards = _numbers(earned, rare)
    missing = np.isnan(rewards).tobytes()
    if 1 in missing:  # a third of what `any` of an array costs
        for i in compress(range(len(missing)), missing):
            rare.setdefault(i, None)
    return StepColumns(observations, rewards, _keep_infos(infos, outcomes, rare))


def _split(outcomes: Sequence[Any], rare: Rare) -> Sequence[Sequence[Any]]:
    """Return observations, rewards, two flags and infos, each for all rows."""
    kinds = list(map(type, outcomes))
    try:
        if kinds.count(tuple) == len(kinds):
            parts = tuple(zip(*outcomes, strict=True))
            if len(parts) == 5:
                return parts
        elif all(issubclass(kind, Observation) for kind in set(kinds)):
            return tuple(outcomes), *zip(*map(_PARTS, outcomes), strict=True)
    except Exception:  # noqa: BLE001, S110 - an author's property, or tuples of many lengths
        pass  # found again row by row
    return list(zip(*[_row(i, one, rare) for i, one in enumerate(outcomes)], strict=True))


def _row(i: int, outcome: Any, rare: Rare) -> tuple[Any, ...]:
    try:
        if type(outcome) is tuple and len(outcome) == 5:
            return outcome
        if isinstance(outcome, Observation):
            return outcome, *_PARTS(outcome)
        if type(outcome) is StepResult and outcome.end is None and not outcome.events:
            return tuple(outcome)
    except Exception as error:  # noqa: BLE001 - an author's property
        rare.setdefault(i, error)
    rare.setdefault(i, None)
    return BLANK


def _add_ends(terminated: Sequence[Any], truncated: Sequence[Any], rare: Rare) -> None:
    """Add the rows with a flag that is not false, or is not a bool."""
    count = len(terminated)
    quiet = _quiet(count)
    try:
        packed = _pack((terminated, truncated))
    except Exception:  # noqa: BLE001 - whatever an author takes for a flag
        packed = b""
    if packed == quiet:
        return
    if packed.replace(_TRUE, _FALSE) == quiet.replace(_TRUE, _FALSE):  # all of them are bools
        for end in (1 + len(quiet) // 2, len(quiet)):  # each column is a header, and a byte a row
            at = packed.find(_TRUE, end - count, end)
            while at >= 0:
                rare.setdefault(at - (end - count), None)
                at = packed.find(_TRUE, at + 1, end)
        return
    for i, flags in enumerate(zip(terminated, truncated, strict=True)):
        if not all(map(_is_false, flags)):
            rare.setdefault(i, None)


@lru_cache
def _quiet(count: int) -> bytes:
    return _pack(((False,) * count, (False,) * count))


def _is_false(flag: Any) -> bool:
    return flag is False or (type(flag) is np.bool_ and not flag)


@lru_cache
def _pack_into(count: int) -> Callable[..., None]:
    return struct.Struct(f"{count}d").pack_into


def _numbers(earned: Sequence[Any], rare: Rare) -> NDArray[np.float64]:
    rewards = bytearray(8 * len(earned))
    try:
        _pack_into(len(earned))(rewards, 0, *earned)  # as `float` does, but not from text
    except Exception:  # noqa: BLE001 - whatever an author takes for a reward
        return np.array([_number(i, one, rare) for i, one in enumerate(earned)], np.float64)
    return np.frombuffer(rewards)


def _number(i: int, reward: Any, rare: Rare) -> float:
    if isinstance(reward, _NUMBERS):
        try:
            return float(reward)
        except OverflowError:
            pass  # a huge int; its session reports it
    rare.setdefault(i, None)
    return nan


def _keep_infos(
    infos: Sequence[Any], outcomes: list[Any], rare: Rare
) -> Mapping[int, dict[str, Any]]:
    try:
        if not any(infos):
            return _NO_INFOS
        if set(map(type, infos)) == {dict}:
            keys = set().union(*infos)
            if "reward_parts" not in keys and "action_mask" not in keys:
                if not rare:
                    # An info that nothing else refers to needs no copy: a third of the cost.
                    outcomes.clear()
                    if max(map(sys.getrefcount, infos)) <= UNSHARED_IN_COLUMN:
                        return NonEmptyInfos(infos)
                return NonEmptyInfos(list(map(dict.copy, infos)))
    except Exception:  # noqa: BLE001, S110 - whatever an author takes for an info
        pass  # found again row by row
    return NonEmptyInfos([_info(i, info, rare) for i, info in enumerate(infos)])


def _info(i: int, info: Any, rare: Rare) -> dict[str, Any]:
    try:
        if not info:
            return {}
        if type(info) is dict and "reward_parts" not in info:
            return snapshot_info(info)
        rare.setdefault(i, None)
    except Exception as error:  # noqa: BLE001 - from an author's `__bool__` or `__len__`
        rare.setdefault(i, error)
    return {}


def _unshared_in_column() -> int:
    """Return the reference count of an object that only a column refers to."""
    column = ({"held": 1}, {"held": 2})
    return max(map(sys.getrefcount, column))


UNSHARED_IN_COLUMN = _unshared_in_column()


_RareOutcome: TypeAlias = tuple[Any, Exception | None]
_Chunk: TypeAlias = tuple[StepColumns, Mapping[int, _RareOutcome]]

_CHUNK = 256
"""How many outcomes are held at once.

Beyond 700 new objects the garbage collector looks at all of them, and moves those that live on to
generations in which it looks at the whole heap: for 4,096 rows, most of the time of a step.
"""


def _step_rows(
    steps: Sequence[Callable[[Any], Any]],
    actions: Sequence[Any],
    boxes: Sequence[Sequence[Any]],
    rows: Sequence[int],
) -> _Chunk:
    """Step these rows; afterwards only their authors may hold other references to the parts."""
    outcomes: list[Any] = []
    rare: Rare = {}
    for step, action in zip(steps, actions, strict=True):
        try:
            outcomes.append(step(action))
        except Exception as error:  # noqa: BLE001 - the author's code; this row's alone
            rare[len(outcomes)] = error
            outcomes.append(BLANK)
    if any(boxes):
        for k, box in enumerate(boxes):
            if box:
                rare.setdefault(k, None)
    columns = split_outcomes(outcomes, rare)
    if not rare:
        return columns, {}
    return columns, {rows[k]: (outcomes[k], rare[k]) for k in sorted(rare)}


def _join(chunks: list[_Chunk]) -> _Chunk:
    """Return the columns and rare outcomes of consecutive rows as one; the list is emptied."""
    columns, rare = zip(*chunks, strict=True)
    chunks.clear()  # its rows must not look as if their author still held them
    observations = tuple(chain.from_iterable(one.observations for one in columns))
    infos: Mapping[int, dict[str, Any]] = _NO_INFOS
    if any(isinstance(one.infos, NonEmptyInfos) for one in columns):
        infos = NonEmptyInfos(list(chain.from_iterable(map(_info_rows, columns))))
    joined = StepColumns(observations, np.concatenate([one.rewards for one in columns]), infos)
    return joined, {i: one for part in rare for i, one in part.items()}


def _info_rows(columns: StepColumns) -> Iterable[dict[str, Any]]:
    if isinstance(columns.infos, NonEmptyInfos):
        return columns.infos.rows
    return ({},) * len(columns.observations)


@final
class SessionRows:
    """The sync sessions of a vector, by row."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.sessions = list(sessions)
        self.drivers = [SyncDriver(session) for session in self.sessions]
        count = len(self.sessions)
        self._ids = range(count)
        self._steps = [session.environment.step for session in self.sessions]
        boxes = [session.events for session in self.sessions]
        self._chunks = [
            (boxes[start : start + _CHUNK], self._ids[start : start + _CHUNK])
            for start in range(0, count, _CHUNK)
        ]
        spec = self.sessions[0].interface.action_spec
        # Where any object is an action, a tool result that is not waited for still is not one.
        self._read_all = None if spec.contains(ToolResult("")) else spec.read_all
        self._layout: Layout = Listed()
        self._unknown: Sequence[Any] = (BLANK,) * count
        self._fitting: Sequence[Any] = self._unknown  # authors' objects that fit the columns
        self._last_raw: Any = None  # the last row's object, which shows whether they come again
        # For authors who reuse one array: what fitted still fits. Tuples compare their items by
        # identity first, and comparing different arrays of several numbers raises: a tenth of
        # the cost of checking every dtype and shape.
        self._refills: Arrays | None = None
        self._shown: Sequence[Any] | None = (
            None  # the last observations, if the columns don't hold them
        )
        self._may_change = True  # whether an author can write to an observation
        self._infos: Mapping[int, dict[str, Any]] = {}  # of the last ordinary steps
        self._columns: Columns = None  # of the last observations; read-only
        self._tick = 0
        self._slow_path: set[int] = set()  # rows whose steps all go to their session
        # Batches refer to these, so they are copied before they are written to.
        self._offsets = np.zeros(count, np.int64)  # plus the tick, each episode's step count
        self._episodes: list[str | None] = [None] * count
        self._tasks: list[str | None] = [None] * count

    def fix(self, layout: Layout, observations: Sequence[Any]) -> None:
        """Fix the columns, at the first reset of all."""
        self._layout = layout
        self._columns = layout.gather(observations)
        self._shown = None if isinstance(layout, Arrays) else list(observations)
        self._may_change = isinstance(layout, Fields | Listed)
        if isinstance(layout, Arrays) and math.prod(layout.shape) > 1:
            self._refills = layout
        for session in self.sessions:
            session.check_observation = layout.check

    @property
    def columns(self) -> Columns:
        """What to act on next. Must not be written to."""
        return self._columns

    def reset(self, resets: ResetKwargs) -> dict[int, ResetResult[Any] | Exception]:
        """Begin an episode in each of these; a failure takes the place of its result."""
        return self._begin({i: partial(self.drivers[i].reset, **one) for i, one in resets.items()})

    def restore(self, points: Mapping[int, Any]) -> dict[int, ResetResult[Any] | Exception]:
        """Continue from a point in each of these; a failure takes the place of its result."""
        return self._begin({i: partial(self.drivers[i].restore, one) for i, one in points.items()})

    def _begin(
        self, calls: Mapping[int, Callable[[], ResetResult[Any]]]
    ) -> dict[int, ResetResult[Any] | Exception]:
        outcomes: dict[int, ResetResult[Any] | Exception] = {}
        for i, begin in calls.items():
            try:
                outcomes[i] = begin()
            except EnvWeaveError as error:
                outcomes[i] = error
        started = first_observations(outcomes)
        self._start(started)
        self._note_slow_path(started)
        return outcomes

    def snapshot(self, i: int) -> SessionSnapshot:
        """Return a point of the episode running in a row."""
        self._caught_up(i)
        return self.drivers[i].snapshot()

    def admit(self, ids: Sequence[int], actions: Sequence[Any]) -> list[Any]:
        """Return the actions in the form for the authors' `step`, or refuse; nothing changes."""
        if not self._slow_path and self._read_all is not None:
            try:
                return self._read_all(actions)
            except Mismatch:
                pass  # found again below, for a message that names the action
        return admit_each([self.sessions[i] for i in ids], actions)

    def step(self, actions: Sequence[Any]) -> StepBatch:
        """Step every environment once, with actions that were admitted."""
        if self._slow_path:
            return self.step_some(list(enumerate(actions)))
        if len(self._chunks) == 1:
            return self._record(*_step_rows(self._steps, actions, *self._chunks[0]))
        chunks = [
            _step_rows(self._steps[i : i + _CHUNK], actions[i : i + _CHUNK], boxes, rows)
            for i, (boxes, rows) in zip(range(0, len(actions), _CHUNK), self._chunks, strict=True)
        ]
        return self._record(*_join(chunks))

    def _record(self, columns: StepColumns, rare: Mapping[int, _RareOutcome]) -> StepBatch:
        special = {i: self._conclude(i, *outcome) for i, outcome in rare.items()}
        shown = self._copies(columns, special)
        try:
            successor = self._gather(columns.observations, shown)
        except LayoutMismatchError:
            shown = list(shown)
            for i in self._ids:
                if i not in special:
                    try:
                        self._layout.check(shown[i])
                    except BadReturnError as error:
                        special[i] = self._conclude(i, None, error)
                        shown[i] = special[i].observation
            successor = self._layout.gather(shown)
        self._note_fitting(columns.observations, special)
        for i, result in special.items():
            columns.rewards[i] = math.nan if result.reward is None else result.reward
        if refused := [i for i, result in special.items() if result.refused is not None]:
            self._offsets = self._offsets.copy()
            self._offsets[refused] -= 1  # no step was taken there
        self._infos = columns.infos
        self._columns = successor
        by_row = self._shown = None if self._shown is None else shown
        self._tick += 1
        tick = Tick(
            self._layout,
            self._ids,
            successor,
            by_row,
            columns.rewards,
            special,
            columns.infos,
            self._offsets,
            self._episodes,
            self._tasks,
            self._tick,
        )
        if special:
            self._start({i: r.current for i, r in special.items() if r.ready is not None})
            self._note_slow_path(special)
        return StepBatch(tick, self._columns)

    def _copies(self, columns: StepColumns, special: dict[int, StepResult[Any]]) -> Sequence[Any]:
        """Return the observations to show, copied where their author may still write to them."""
        if not special and not self._may_change:
            return columns.observations
        held = list(map(sys.getrefcount, columns.observations)) if self._may_change else []
        shown = list(columns.observations)
        for i, result in special.items():
            shown[i] = result.observation
        if not self._may_change:
            return shown
        infos = columns.infos
        for i, one in enumerate(columns.observations):
            is_ours = (
                held[i] <= UNSHARED_IN_COLUMN and i not in infos and is_shallow_immutable(type(one))
            )
            if i in special or is_ours:
                continue
            try:
                shown[i] = snapshot(one)
            except BadReturnError as error:
                special[i] = self._conclude(i, None, error)
                shown[i] = special[i].observation
        return shown

    def _gather(self, raw: Sequence[Any], shown: Sequence[Any]) -> Columns:
        if self._refills is not None and raw[0] is self._fitting[0]:
            try:
                if raw == self._fitting:
                    return self._refills.join(shown)
            except (TypeError, ValueError):
                pass  # some array is another object, or has another size now
        return self._layout.gather(shown)

    def _note_fitting(self, raw: Sequence[Any], special: Mapping[int, Any]) -> None:
        """Remember the authors' objects, which fit the columns, except those of these rows.

        Only if they come again, as the last row shows. New arrays are freed now: after the next
        steps they are no longer in the processor's cache.
        """
        if self._refills is None:
            return
        reuses, self._last_raw = raw[-1] is self._last_raw, raw[-1]
        if not reuses:
            self._fitting = self._unknown
        elif special:
            fitting = list(raw)
            for i in special:
                fitting[i] = self._fitting[i]
            self._fitting = tuple(fitting)
        else:
            self._fitting = raw

    def _conclude(self, i: int, outcome: Any, error: Exception | None) -> StepResult[Any]:
        """Have a row's session conclude its step, and begin the next episode if one is due."""
        session = self._caught_up(i)
        if isinstance(error, ActionError):
            return session.refused(session.refuse(error))
        result = session.conclude(outcome) if error is None else session.fail(error)
        session.info = result.info
        if not session.reset_due:
            return result
        return self.drivers[i].autoreset_if_due(result)

    def _caught_up(self, i: int) -> Session:
        """Return a row's session, updated with the ordinary steps that bypassed it."""
        session = self.sessions[i]
        if session.phase is Phase.LIVE and i not in self._slow_path:
            index = self._tick + self._offsets.item(i)
            if session.step_index != index:
                session.step_index, session.info = index, self._infos.get(i) or {}
            session.last = self._columns[i, ...] if self._shown is None else self._shown[i]
        return session

    def catch_up(self) -> None:
        """Update every session with the ordinary steps that bypassed it."""
        for i in self._ids:
            self._caught_up(i)

    def _start(self, started: Mapping[int, Any]) -> None:
        """Record the first observations of new episodes."""
        if not started:
            return
        self._offsets, self._episodes = self._offsets.copy(), list(self._episodes)
        self._tasks = list(self._tasks)
        self._shown = None if self._shown is None else list(self._shown)
        for i, observation in started.items():
            session = self.sessions[i]
            self._offsets[i] = session.step_index - self._tick  # of a restored episode, not 0
            self._steps[i] = (
                session.environment.step
            )  # of a new environment, if the last one failed
            self._episodes[i], self._tasks[i] = session.episode_id, session.task_id
            if self._shown is not None:
                self._shown[i] = observation
        if self._columns is not None:
            self._columns = replaced(self._columns, started, self._layout)

    def _note_slow_path(self, rows: Sequence[int] | Mapping[int, Any]) -> None:
        """Note which rows must be stepped by their sessions.

        Those of several agents, and those with a transform or an open tool call.
        """
        for i in rows:
            session = self.sessions[i]
            is_slow = (
                session.phase is Phase.TOOL
                or session.transform is not None
                or session.interface.possible_agents is not None
            )
            (self._slow_path.add if is_slow else self._slow_path.discard)(i)

    def step_some(self, sent: Sequence[tuple[int, Any]]) -> StepBatch:
        """Step these rows in order, each under its own session."""
        results: dict[int, StepResult[Any]] = {}
        for i, action in sent:
            session = self._caught_up(i)
            try:
                results[i] = result = self.drivers[i].step(action)
            except ActionError as error:
                results[i] = session.refused(error)
            else:
                session.info = result.info if result.ready is None else session.info
        # Rows share one clock; for a row, its start is where the clock meets its own count.
        self._offsets = self._offsets.copy()
        self._shown = None if self._shown is None else list(self._shown)
        for i, result in results.items():
            self._offsets[i] = result.step_index - self._tick
            if self._shown is not None:
                self._shown[i] = result.observation
        shown = {i: result.observation for i, result in results.items()}
        self._columns = replaced(self._columns, shown, self._layout)
        self._start({i: r.current for i, r in results.items() if r.ready is not None})
        self._note_slow_path(list(results))
        return batch_of(list(results.values()), list(results), self._layout)


def first_observations(outcomes: Mapping[int, ResetResult[Any] | Exception]) -> dict[int, Any]:
    """Return the first observation of each environment whose reset did not fail."""
    return {i: one.observation for i, one in outcomes.items() if isinstance(one, ResetResult)}


def admit_each(sessions: Sequence[Session], actions: Sequence[Any]) -> list[Any]:
    """Have each session admit its action; the index of a refused one is in the message."""
    admitted: list[Any] = []
    for session, action in zip(sessions, actions, strict=True):
        try:
            admitted.append(session.admit(action))
        except ActionError as error:
            text = str(error).removeprefix("action")
            raise ActionError(f"actions[{len(admitted)}]{text}") from None
        except ToolCallOpenError as error:
            raise ToolCallOpenError(f"actions[{len(admitted)}]: {error}") from None
    return admitted


def check_each(sessions: Sequence[Session], resets: ResetKwargs) -> None:
    """Refuse a reset that one of these would refuse, naming it; nothing changes."""
    for i, keywords in resets.items():
        try:
            sessions[i].check_reset(**keywords)
        except EnvWeaveError as error:
            raise type(error)(f"Environment {i}: {error}") from None


def row_status(session: Session) -> RowStatus:
    """Return the status of a session."""
    return RowStatus(session.last, session.step_index, session.episode_id, session.task_id)


@final
class SerialTransport:
    """Steps many sync sessions in the caller's thread, in order."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.sessions = list(sessions)
        self._rows = SessionRows(sessions)
        self._sent: list[tuple[int, Any]] = []
        self.interface = sessions[0].interface

    @property
    def tasks(self) -> Tasks | None:
        """What episodes can be about."""
        return self.sessions[0].tasks

    def fix(self, layout: Layout, observations: Sequence[Any]) -> None:
        """Fix the columns, at the first reset of all."""
        self._rows.fix(layout, observations)

    @property
    def columns(self) -> Columns:
        """What to act on next. Must not be written to."""
        return self._rows.columns

    @property
    def receivable(self) -> set[int]:
        """The environments with a step that was sent and not received yet."""
        return {i for i, _ in self._sent}

    def check_reset(self, resets: ResetKwargs) -> None:
        """Refuse what `reset` would refuse; nothing changes."""
        check_each(self._rows.sessions, resets)

    def reset(self, resets: ResetKwargs) -> dict[int, ResetResult[Any] | Exception]:
        """Begin an episode in each of these; a failure takes the place of its result."""
        return self._rows.reset(resets)

    def row_status(self, ids: Sequence[int]) -> list[RowStatus]:
        """Return the status of these environments."""
        self._rows.catch_up()
        return [row_status(self._rows.sessions[i]) for i in ids]

    def admit(self, ids: Sequence[int], actions: Sequence[Any]) -> list[Any]:
        """Return the actions in the form for the authors' `step`, or refuse; nothing changes."""
        return self._rows.admit(ids, actions)

    def step(self, actions: Sequence[Any]) -> StepBatch:
        """Step each environment once."""
        return self._rows.step(actions)

    def send(self, ids: Sequence[int], actions: Sequence[Any]) -> None:
        """Keep the actions; `recv` steps the environments."""
        self._sent.extend(zip(ids, actions, strict=True))

    def recv(self, min_ready: int, timeout_s: float | None) -> StepBatch:  # noqa: ARG002
        """Take the steps that were sent, in order; then all of them are ready."""
        sent, self._sent = self._sent, []
        return self._rows.step_some(sent)

    def state(self) -> list[State]:
        """Return the state of each environment."""
        self._rows.catch_up()
        return [session.state() for session in self._rows.sessions]

    def snapshot(self, row: int) -> SessionSnapshot:
        """Return a point of the episode running in a row."""
        return self._rows.snapshot(row)

    def restore(self, points: Mapping[int, Any]) -> dict[int, ResetResult[Any] | Exception]:
        """Continue from a point in each of these rows; a failure takes the place of its result."""
        return self._rows.restore(points)

    def close(self) -> None:
        """Close every environment; the first failure is raised when all are closed."""
        failures: list[BaseException] = []
        for driver in self._rows.drivers:
            try:
                driver.close()
            except BaseException as error:  # noqa: BLE001 - the others must be closed too
                failures.append(error)
        if failures:
            raise failures[0]
