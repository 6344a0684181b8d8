"""Records the episodes of a vector: the caller's thread copies columns, the writer's makes rows.

With `forkable=True` each row has a log of its running episode besides, as one environment has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter, time
from typing import Any, final

import numpy as np

from envweave.codec.containers import NOT_SHOWN
from envweave.environment import Interface
from envweave.errors import ActionError, EnvWeaveError, ForkError
from envweave.recording.episode_log import EpisodeLog
from envweave.recording.events import (
    RESTORE_BEGAN,
    TakenBatch,
    TakenResult,
    TakenStep,
    pack,
    pack_result,
)
from envweave.recording.recorder import LoggedEpisodes, LoggedSnapshot, as_fork, as_logged
from envweave.recording.replaying import (
    Difference,
    EpisodeReplay,
    ReplayCall,
    ReplayReset,
    ReplayStep,
)
from envweave.recording.writer import RunWriter
from envweave.types import (
    EpisodeEnd,
    Observation,
    ResetResult,
    State,
    StepResult,
    Tasks,
    ToolResult,
)
from envweave.vector.arguments import ResetKwargs
from envweave.vector.batch import RowStatus, StepBatch, Tick, tick_of
from envweave.vector.columns import Arrays, Columns, Fields, Layout, Numbers
from envweave.vector.process.lazy_rows import RebuiltRows
from envweave.vector.transport import BatchTransport, TakesArrays
from envweave.wire.encoding import MSGPACK

RESTORED = EpisodeEnd("truncated", cause=RESTORE_BEGAN)


@final
class RecordedBatchTransport:
    """Carries the calls of a `VectorEnv`, and records or logs them.

    Args:
        transport: Carries them.
        writer: Records them, if they are recorded; closed with this.
        num_envs: The number of environments.
        is_logged: Whether to keep the running episode of each row, so that environments that
            cannot be copied are forked by playing it again.
    """

    def __init__(
        self,
        transport: BatchTransport,
        writer: RunWriter | None,
        num_envs: int,
        *,
        is_logged: bool = False,
    ) -> None:
        self._transport = transport
        self._writer = writer
        self._is_logged = is_logged
        starts = _StartsAndEnds(writer)
        self._rows = [
            LoggedEpisodes(transport.interface, EpisodeLog(starts) if is_logged else starts, row)
            for row in range(num_envs)
        ]
        self._everyone = list(range(num_envs))
        self._given: tuple[bytes, frozenset[int]] = b"", frozenset()
        self._sent: dict[int, tuple[Any, bool]] = {}  # the actions in flight, by row
        self.interface: Interface = transport.interface
        if isinstance(transport, TakesArrays):
            self._admit_array = transport.admit_array
            self.admit_array = self._take_array

    @property
    def tasks(self) -> Tasks | None:
        """The tasks of its episodes."""
        return self._transport.tasks

    @property
    def columns(self) -> Columns:
        """What to act on next. Must not be written to."""
        return self._transport.columns

    @property
    def receivable(self) -> set[int]:
        """The environments with a step that was sent and can still be received."""
        return self._transport.receivable

    def fix(self, layout: Layout, observations: Sequence[Any]) -> None:
        """Fix the columns, at the first reset of all."""
        self._transport.fix(layout, observations)

    def check_reset(self, resets: ResetKwargs) -> None:
        """Refuse what `reset` would refuse."""
        self._transport.check_reset(resets)

    def reset(self, resets: ResetKwargs) -> dict[int, ResetResult[Any] | Exception]:
        """Begin an episode in each of these."""
        began_s = perf_counter()
        outcomes = self._transport.reset(resets)
        duration_s = perf_counter() - began_s
        for row, outcome in outcomes.items():
            if isinstance(outcome, Exception):
                self._rows[row].events.failed(outcome)
            else:
                self._rows[row].began(outcome, duration_s, resets[row])
        return outcomes

    def row_status(self, ids: Sequence[int]) -> list[RowStatus]:
        """Return the status of these environments."""
        return self._transport.row_status(ids)

    def admit(self, ids: Sequence[int], actions: Sequence[Any]) -> Sequence[Any]:
        """Return the actions in the form for the authors' `step`, or refuse."""
        answers: frozenset[int] = frozenset()
        if ToolResult in set(map(type, actions)):
            answers = frozenset(i for i, one in enumerate(actions) if type(one) is ToolResult)
        given = pack(list(actions)), answers
        admitted = self._transport.admit(ids, actions)
        self._given = given
        if self._is_logged:
            for row, action in zip(ids, actions, strict=True):
                self._rows[row].keep_action(action)
        return admitted

    def _take_array(self, actions: Any) -> list[Any] | None:
        admitted = self._admit_array(actions)
        if admitted is not None:
            self._given = pack(actions), frozenset()
            if self._is_logged:
                for episodes in self._rows:
                    episodes.keep_action(None)  # a row of the array is as good as it
        return admitted

    def step(self, actions: Sequence[Any]) -> StepBatch:
        """Step each environment once."""
        given, answers = self._given
        batch = self._transport.step(actions)
        self._record(batch, given, answers)
        return batch

    def send(self, ids: Sequence[int], actions: Sequence[Any]) -> None:
        """Have these environments take a step each."""
        given, answers = self._given
        unpacked = MSGPACK.decode(given)
        self._transport.send(ids, actions)
        self._sent.update(
            {row: (unpacked[place], place in answers) for place, row in enumerate(ids)}
        )

    def recv(self, min_ready: int, timeout_s: float | None) -> StepBatch:
        """Wait for the first `min_ready` steps; return all that are done, the oldest first."""
        batch = self._transport.recv(min_ready, timeout_s)
        taken = [self._sent.pop(row, (None, False)) for row in batch.ids.tolist()]
        answers = frozenset(place for place, (_, is_answer) in enumerate(taken) if is_answer)
        given = pack([action for action, _ in taken])
        self._record(batch, given, answers)
        return batch

    def _record(self, batch: StepBatch, actions: bytes, answers: frozenset[int]) -> None:
        if self._is_logged:
            given = MSGPACK.decode(actions)
            for place, result in enumerate(batch):
                events = self._rows[tick_of(batch).ids[place]].events
                events.stepped(pack(given[place]), result, 0.0, is_answer=place in answers)
        if self._writer is not None:
            self._write(self._writer, batch, actions, answers)

    def _write(
        self, writer: RunWriter, batch: StepBatch, actions: bytes, answers: frozenset[int]
    ) -> None:
        tick = tick_of(batch)
        observations, rows = _observations(tick)
        special = {place: pack_result(result) for place, result in tick.special.items()}
        columns = pack(
            (
                list(tick.ids),
                tick.rewards if isinstance(tick.rewards, np.ndarray) else list(tick.rewards),
                dict(tick.infos),
                tick.step_index + tick.clock,
                list(tick.episodes),
                special,
            )
        )
        taken = TakenBatch(time(), actions, answers, columns, observations, rows)
        size = len(columns) + len(observations) + len(actions)
        writer.put(taken, size, len(tick.ids))
        if special and any(result.end is not None for result in tick.special.values()):
            writer.hurry()

    def state(self) -> list[State]:
        """Return the state of each environment."""
        return self._transport.state()

    def snapshot(self, row: int) -> LoggedSnapshot:
        """Return a point of the episode running in a row."""
        try:
            return self._rows[row].taken(self._transport.snapshot(row), None)
        except ForkError as refusal:
            return self._rows[row].taken(None, refusal)

    def restore(self, points: Mapping[int, Any]) -> dict[int, ResetResult[Any] | Exception]:
        """Continue from a point in each of these rows; a failure takes the place of its result."""
        began_s = perf_counter()
        logged = {row: as_logged(point) for row, point in points.items()}
        for row in points:
            self._rows[row].events.ended(RESTORED)
        copied = {row: one.state for row, one in logged.items() if one.state is not None}
        outcomes = self._transport.restore(copied) if copied else {}
        replays: dict[int, EpisodeReplay] = {}
        refusals: dict[int, ForkError | None] = {}
        for row, point in logged.items():
            outcome = outcomes.get(row)
            if isinstance(outcome, ResetResult):
                self._rows[row].restored(outcome, began_s, point)
            elif outcome is None or isinstance(outcome, ForkError):
                refusals[row] = outcome
                try:
                    replays[row] = self._rows[row].replay(point, outcome, self.tasks)
                except ForkError as error:
                    outcomes[row] = error
        for row, difference in self._replay(replays).items():
            about = logged[row], refusals[row], began_s
            try:
                outcomes[row] = self._rows[row].replayed(replays[row], difference, *about)
            except ForkError as error:
                outcomes[row] = error
        return outcomes

    def _replay(self, replays: Mapping[int, EpisodeReplay]) -> dict[int, Difference | None]:
        """Play episodes again, all at once; return the first difference of each."""
        running = {row: replay.calls() for row, replay in replays.items()}
        calls = {row: next(one) for row, one in running.items()}
        differences: dict[int, Difference | None] = {}
        while calls:
            for row, outcome in self._call(calls).items():
                try:
                    if isinstance(outcome, Exception):
                        calls[row] = running[row].throw(outcome)
                    else:
                        calls[row] = running[row].send(outcome)
                except StopIteration as stop:
                    del calls[row]
                    differences[row] = stop.value
        return differences

    def _call(self, calls: Mapping[int, ReplayCall]) -> dict[int, StepResult[Any] | Exception]:
        """Make one call of each replay; return the result or the error of each."""
        outcomes: dict[int, StepResult[Any] | Exception] = {}
        resets = {
            row: as_fork(one.params) for row, one in calls.items() if isinstance(one, ReplayReset)
        }
        if resets:
            outcomes.update(self._transport.reset(resets))
        admitted: dict[int, Any] = {}
        for row, call in calls.items():
            if isinstance(call, ReplayStep):
                try:
                    (admitted[row],) = self._transport.admit([row], [call.action])
                except EnvWeaveError as error:
                    outcomes[row] = error
        if admitted:
            self._transport.send(list(admitted), list(admitted.values()))
            batch = self._transport.recv(len(admitted), None)
            for row, result in zip(tick_of(batch).ids, batch, strict=True):
                outcomes[row] = result if result.refused is None else ActionError(result.refused)
        return outcomes

    def close(self) -> None:
        """Release everything, and end the recording. May be called twice."""
        try:
            self._transport.close()
        finally:
            if self._writer is not None:
                self._writer.close()


@final
class _StartsAndEnds:
    """Passes on the starts and ends of a row's episodes; the steps of all rows are one event."""

    def __init__(self, writer: RunWriter | None) -> None:
        self._writer = writer

    def put(self, taken: Any, size: int) -> None:
        """Pass an event on, if it is not a step."""
        if self._writer is not None and not isinstance(taken, TakenStep | TakenResult):
            self._writer.put(taken, size)

    def hurry(self) -> None:
        """Have what was put written at once."""
        if self._writer is not None:
            self._writer.hurry()

    def close(self) -> None:
        """Do nothing: the rows share a writer."""


def _observations(tick: Tick) -> tuple[bytes, _Rows | None]:
    """Return a packed copy of a tick's observations, and how to take rows out of it."""
    shown = tick.shown
    if isinstance(shown, list | tuple):
        return pack(shown), None
    whole = dict(shown.whole) if isinstance(shown, RebuiltRows) else {}
    return pack((tick.successor, whole)), _Rows(tick.layout)


@final
class _Rows:
    """Takes plain observations out of unpacked columns, on the writer's thread."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def __call__(
        self, packed: Any, rewards: Any, infos: Mapping[int, Any], count: int
    ) -> list[Any]:
        columns, whole = packed
        rows = _rows(self._layout, columns, count)
        layout = self._layout
        if isinstance(layout, Fields) and issubclass(layout.kind, Observation):
            for i, row in enumerate(rows):
                hidden = {
                    "reward": float(rewards[i]),
                    "done": False,
                    "truncated": False,
                    "metadata": infos.get(i, {}),
                }
                row.update({name: hidden[name] for name in NOT_SHOWN if name in hidden})
        for place, one in whole.items():
            rows[place] = one
        return rows


def _rows(layout: Layout, columns: Any, count: int) -> list[Any]:
    if isinstance(layout, Fields):
        parts = {name: _rows(one, columns[name], count) for name, one in layout.columns.items()}
        return [{name: column[i] for name, column in parts.items()} for i in range(count)]
    if isinstance(layout, Numbers):
        return columns.tolist() if isinstance(columns, np.ndarray) else list(columns)
    if isinstance(layout, Arrays):
        return [columns[i, ...] for i in range(count)]
    return list(columns)
