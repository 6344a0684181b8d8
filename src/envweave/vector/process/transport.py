"""`backend="process"`: a vector's rows in worker processes, and one shard in the caller's own.

    caller ──actions in shared columns, a turn──▶ worker: steps its rows, writes the columns
           ◀────────a turn, and a message with what columns cannot hold────────┘

While the workers run, the caller's thread steps a shard itself, unless there is a deadline to
watch, or the caller asked for a number of workers. That shard also shows what steps cost without
workers: if they would be faster, a warning is logged once.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, final

import numpy as np
from numpy.typing import NDArray

from envweave.codec import AnySpec, Mismatch
from envweave.codec.scalars import IntSpec
from envweave.errors import ActionError, EnvWeaveError, ToolCallOpenError
from envweave.lifetime import CloseGuard
from envweave.session import Session
from envweave.types import ResetResult, State, StepResult, ToolResult
from envweave.vector import BatchTransport, StepBatch
from envweave.vector.arguments import ResetKwargs
from envweave.vector.batch import RowStatus, Tick, tick_of
from envweave.vector.columns import Arrays, Columns, Layout
from envweave.vector.process.action_columns import action_columns
from envweave.vector.process.row_state import (
    MergedRows,
    RowState,
    from_caller,
    from_results,
    gather,
    sorted_by_row,
)
from envweave.vector.process.shared_columns import SharedColumns
from envweave.vector.process.vector_worker import PackedSnapshot, restore_packed
from envweave.vector.process.worker_pool import FinishedStep, WorkerPool
from envweave.workers.launch import WorkerLostError
from envweave.workers.main import WorkerInfo
from envweave.workers.pickling import check_actions, specs_in, unpicklable_action
from envweave.workers.shared_memory import SharedMemory

logger = logging.getLogger("envweave.vector")

TRIAL_STEPS = 200
"""After how many steps to compare the time they took with that of a vector in this process."""


class LocalShard(BatchTransport, Protocol):
    """The rows that the caller's own thread steps: the first ones."""

    sessions: Sequence[Session]


@final
class WorkerTrial:
    """Compares the first steps of a vector with what they would take in the caller's process.

    Args:
        name: The environment's name in the warning.
        num_envs: How many rows the vector has.
        num_local: How many of them the caller's thread steps.
    """

    _warned: ClassVar[set[str]] = set()  # names, each warned about once

    def __init__(self, name: str, num_envs: int, num_local: int) -> None:
        self._name = name
        self._num_envs = num_envs
        self._share = num_envs / num_local
        self._times_s: list[tuple[float, float]] = []

    def note(self, step_s: float, local_s: float) -> bool:
        """Note one step and the caller's part of it; return whether the trial is over."""
        self._times_s.append((step_s, local_s * self._share))
        if len(self._times_s) < TRIAL_STEPS:
            return False
        # Not the first ones: workers are still warming up.
        taken, here = map(statistics.median, zip(*self._times_s[TRIAL_STEPS // 4 :], strict=True))
        if here * 1.3 < taken and self._name not in self._warned:
            self._warned.add(self._name)
            logger.warning(
                "a step of %d %s takes %.0f µs with backend='process', but would take about "
                "%.0f µs in this process. Leave out backend='process' unless you need workers for "
                "isolation.",
                self._num_envs,
                self._name,
                taken * 1e6,
                here * 1e6,
            )
        return True


@final
class ProcessTransport:
    """Steps the rows of a vector in worker processes."""

    def __init__(
        self,
        pool: WorkerPool,
        rows: RowState,
        info: WorkerInfo,
        local: LocalShard | None,
        num_local: int,
    ) -> None:
        self.interface = info.interface
        self.tasks = info.tasks
        self._pool = pool
        self._rows = rows
        self._local = local
        self._num_local = num_local
        self._memory: SharedMemory | None = None
        self._shared: SharedColumns | None = None
        spec = self.interface.action_spec
        self._several = self.interface.possible_agents is not None
        self._open_calls: set[int] = set()  # rows whose session waits for a tool result
        self._read = spec.read
        self._may_be_unpicklable = any(isinstance(one, AnySpec) for one in specs_in(spec))
        self._acts = action_columns(spec)
        self._gathered: tuple[Any, Any] = (None, None)  # admitted actions, and their columns
        self._packed: tuple[Any, Any] = (None, None)  # the same with pickles
        # Where any object is an action, a tool result that is not waited for still is not one.
        self._read_all = None if spec.contains(ToolResult("")) else spec.read_all
        self._trial: WorkerTrial | None = None
        if num_local:
            self._trial = WorkerTrial(self.interface.name, rows.num_envs, num_local)
        self._local_s = 0.0  # how long the local rows took in the last step
        self._sent: dict[int, Any] = {}  # the actions of local rows that wait for their turn
        self._passed_over = False  # whether some of these waited while the workers' were enough
        self._unclosed = CloseGuard(
            self,
            pool.close,
            f"A vector in {len(pool.shards)} worker processes was dropped without close(). Use it "
            "in a `with` block, or close it.",
        )

    # Between steps

    @property
    def columns(self) -> Columns:
        """What to act on next. Must not be written to."""
        return self._rows.columns

    @property
    def receivable(self) -> set[int]:
        """The rows with a step that was sent and can still be received."""
        return self._pool.recover() | set(self._sent)

    def fix(self, layout: Layout, observations: Sequence[Any]) -> None:
        """Fix the columns, at the first reset of all."""
        rows = self._rows
        rows.fix(layout, observations)
        if self._memory is not None:  # it was interrupted the last time
            self._memory.close()
        size = SharedColumns.size(layout, self._acts, rows.num_envs)
        self._memory = SharedMemory.of(size)
        shared = self._shared = SharedColumns(self._memory, layout, self._acts, rows.num_envs)
        if self._local is not None:
            self._local.fix(layout, observations[: self._num_local])
        for shard in self._pool.shards:
            try:
                shard.share(shared, self._memory, rows.last)
            except WorkerLostError as loss:
                self._pool.lose(shard, loss)

    def check_reset(self, resets: ResetKwargs) -> None:
        """Refuse what `reset` would refuse; nothing changes."""
        refusals: dict[int, EnvWeaveError] = {}
        for row, keywords in resets.items():
            if self._local is not None and row < self._num_local:
                try:
                    self._local.sessions[row].check_reset(**keywords)
                except EnvWeaveError as error:
                    refusals[row] = error
        for shard, part in self._pool.by_shard(resets):
            refusals |= self._pool.call(shard, "check", part)
        if refusals:
            row = min(refusals)
            raise type(refusals[row])(f"Environment {row}: {refusals[row]}")

    def reset(self, resets: ResetKwargs) -> dict[int, ResetResult[Any] | Exception]:
        """Begin an episode in each of these rows; a failure takes the place of its result."""
        self._rows.live.difference_update(resets)
        outcomes = self._pool.reset(resets)
        local = {row: kwargs for row, kwargs in resets.items() if row < self._num_local}
        if local and self._local is not None:
            outcomes |= self._local.reset(local)
        return self._note_starts(outcomes)

    def row_status(self, ids: Sequence[int]) -> list[RowStatus]:
        """Return the status of these environments."""
        return [self._rows.row_status(row) for row in ids]

    def state(self) -> list[State]:
        """Return the state of each environment."""
        states: list[State] = [] if self._local is None else self._local.state()
        for shard in self._pool.shards:
            states += self._pool.state(shard)
        return states

    def snapshot(self, row: int) -> PackedSnapshot:
        """Return a point of the episode running in a row, which any worker can restore."""
        if self._local is not None and row < self._num_local:
            return PackedSnapshot.of(self._local.snapshot(row), self.interface.name)
        return self._pool.snapshot(row)

    def restore(self, points: Mapping[int, Any]) -> dict[int, ResetResult[Any] | Exception]:
        """Continue from a point in each of these rows; a failure takes the place of its result."""
        self._rows.live.difference_update(points)
        outcomes = self._pool.restore(points)
        local = {row: point for row, point in points.items() if row < self._num_local}
        if local and self._local is not None:
            outcomes |= restore_packed(self._local, local)
        return self._note_starts(outcomes)

    def _note_starts(
        self, outcomes: Mapping[int, ResetResult[Any] | Exception]
    ) -> dict[int, ResetResult[Any] | Exception]:
        """Record the episodes that began; return the outcomes in the order of rows."""
        began = {row: start for row, start in outcomes.items() if isinstance(start, ResetResult)}
        self._rows.start(began)
        self._note_open_calls(began)
        return {row: outcomes[row] for row in sorted(outcomes)}

    # Actions

    def admit(self, ids: Sequence[int], actions: Sequence[Any]) -> list[Any]:
        """Return the actions in the form for the authors' `step`, or refuse; nothing changes."""
        admitted = self._admit(ids, actions)
        if self._may_be_unpicklable:
            columns = self._acts.gather(admitted)
            self._gathered = admitted, columns
            if columns is None:
                self._pack(admitted)
        return admitted

    def _pack(self, actions: list[Any]) -> None:
        """Refuse actions that cannot be pickled; keep the pickles if these are a step of all."""
        if len(actions) != self._rows.num_envs:
            check_actions(actions)
            return
        if self._num_local:
            check_actions(actions[: self._num_local])
        try:
            self._packed = actions, self._pool.pack_actions(actions)
        except Exception as error:
            raise unpicklable_action(error) from error

    def _admit(self, ids: Sequence[int], actions: Sequence[Any]) -> list[Any]:
        if not self._open_calls and not self._several and self._read_all is not None:
            try:
                return self._read_all(actions)
            except Mismatch:
                pass  # found again below, for a message that names the action
        admitted: list[Any] = []
        by_session: dict[int, Any] = {}
        refusals: dict[int, EnvWeaveError] = {}
        for row, action in zip(ids, actions, strict=True):
            if self._several or row in self._open_calls:
                by_session[row] = action
                admitted.append(action)
                continue
            try:
                admitted.append(self._admit_one(action))
            except ActionError as error:
                refusals[row] = error
                break
        refusals |= self._refusals(by_session)
        for i, row in enumerate(ids):
            if row in refusals:
                raise _with_index(i, refusals[row])
        return admitted

    def admit_array(self, actions: NDArray[Any]) -> Any:
        """Return integers that every environment takes as they are; else `None`."""
        spec = self.interface.action_spec
        if (
            self._open_calls
            or not isinstance(spec, IntSpec)
            or not np.can_cast(actions.dtype, np.int64)
            or actions.dtype.kind == "b"
            or actions.shape != (self._rows.num_envs,)
            or not spec.contains(int(actions.min()))
            or not spec.contains(int(actions.max()))
        ):
            return None
        return actions

    def _admit_one(self, action: Any) -> Any:
        if type(action) is ToolResult:
            raise ActionError(f"action: no tool call {action.call_id!r} waits for an answer")
        try:
            return self._read(action)
        except Mismatch as mismatch:
            raise ActionError(mismatch.describe("action")) from None

    def _refusals(self, actions: Mapping[int, Any]) -> dict[int, EnvWeaveError]:
        """Return which of these actions the sessions of their rows refuse."""
        refusals: dict[int, EnvWeaveError] = {}
        for row, action in actions.items():
            if self._local is not None and row < self._num_local:
                try:
                    self._local.sessions[row].admit(action)
                except EnvWeaveError as error:
                    refusals[row] = error
        for shard, part in self._pool.by_shard(actions):
            live = {row: action for row, action in part.items() if row not in shard.ends}
            if live and shard.await_respawn():
                try:
                    refusals |= shard.call("admit", live)
                except WorkerLostError as loss:
                    self._pool.lose(shard, loss)  # the step ends their episodes
        return refusals

    def _note_open_calls(self, results: Mapping[int, StepResult[Any]]) -> None:
        """Note which rows have an open tool call."""
        for row, result in results.items():
            (self._open_calls.add if result.tool_calls else self._open_calls.discard)(row)

    # Steps

    def step(self, actions: Any) -> StepBatch:
        """Step each environment once, with a list or an array of actions."""
        if self._trial is None:
            return self._step(actions)
        began_s = time.perf_counter()
        batch = self._step(actions)
        if self._trial is not None and self._trial.note(
            time.perf_counter() - began_s, self._local_s
        ):
            self._trial = None
        return batch

    def _step(self, actions: Any) -> StepBatch:
        pool, local = self._pool, self._local
        if self._open_calls or self._several or not pool.is_calm:
            self._trial = None  # not the path that is measured
            everyone = range(self._rows.num_envs)
            self.send(everyone, _listed(actions))
            return self._receive(len(everyone), None, in_order=True)
        if self._write(actions):
            pool.step_all(None)
        else:
            admitted, packed = self._packed
            self._packed = (None, None)
            pool.step_all(actions, packed if admitted is actions else None)
        part: MergedRows | None = None
        if local is not None:
            began_s = time.perf_counter()
            batch = local.step(_listed(actions[: self._num_local]))
            self._local_s = time.perf_counter() - began_s
            tick = tick_of(batch)
            is_plain = isinstance(pool.layout, Arrays) and not (tick.special or tick.infos)
            if is_plain and pool.await_all():
                return self._plain(tick)
            part = from_caller(batch)
        elif isinstance(pool.layout, Arrays) and pool.await_all():
            return self._plain(None)
        return self._receive(self._rows.num_envs, None, part, in_order=True)

    def _write(self, actions: Any) -> bool:
        """Write the workers' actions to their shared columns; return whether these hold them."""
        if self._shared is None or not self._acts.kinds:
            return False
        first, columns = self._num_local, None
        admitted, gathered = self._gathered
        self._gathered = (None, None)
        if admitted is not actions:
            columns = self._acts.gather(actions[first:])
        elif gathered is not None:
            columns = [column[first:] for column in gathered]
        if columns is None:
            return False
        self._shared.write_actions(first, columns)
        return True

    def _plain(self, local: Tick | None) -> StepBatch:
        """Return a step that the columns hold completely."""
        assert self._shared is not None
        first, shared = self._num_local, self._shared
        rewards, columns = shared.rewards.copy(), shared.leaves[0].copy()
        if local is not None:
            rewards[:first], columns[:first] = local.rewards, local.successor
        columns.flags.writeable = False
        self._pool.ack_all()
        return self._rows.plain_batch(columns, rewards)

    def send(self, ids: Sequence[int], actions: Sequence[Any]) -> None:
        """Have these environments take a step each."""
        sent = dict(zip(ids, actions, strict=True))
        self._pool.send({row: action for row, action in sent.items() if row >= self._num_local})
        self._sent |= {row: action for row, action in sent.items() if row < self._num_local}

    def recv(self, min_ready: int, timeout_s: float | None) -> StepBatch:
        """Wait for the first `min_ready` steps; return all that are done, the oldest first."""
        return self._receive(min_ready, timeout_s)

    def _receive(
        self,
        min_ready: int,
        timeout_s: float | None,
        local: MergedRows | None = None,
        *,
        in_order: bool = False,
    ) -> StepBatch:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        parts = [] if local is None else [local]
        pool = self._pool
        pool.dispatch()
        if in_order and self._sent:
            parts.append(self._step_local(list(self._sent)))
        collected: list[FinishedStep] = []
        count = sum(len(part.rows) for part in parts)
        while True:
            for step in pool.collect(collected):
                collected.append(step)
                count += len(step.part.rows)
            left = None if deadline is None else deadline - time.monotonic()
            is_enough = count >= min_ready and not (self._passed_over and self._sent)
            if is_enough or (left is not None and left <= 0):
                break
            if self._sent:
                # One by one: a slow local row delays the workers' rows once, not for all.
                parts.append(self._step_local([next(iter(self._sent))]))
                count += 1
                continue
            done = [step.shard for step in collected]
            pool.wait([shard for shard in pool.shards if shard.running and shard not in done], left)
        self._passed_over = bool(self._sent)
        parts += [step.part for step in collected]
        merged = gather(pool.layout, parts or [from_results({}, pool.layout)])
        if in_order:
            merged = sorted_by_row(merged)
        # From here on they cannot be received again: after an interrupt, rows must be reset.
        for step in collected:
            pool.ack(step)
        self._note_open_calls(merged.special)
        return self._rows.batch(*merged)

    def _step_local(self, rows: list[int]) -> MergedRows:
        """Take the steps of some local rows that were sent."""
        assert self._local is not None
        self._local.send(rows, [self._sent.pop(row) for row in rows])
        return from_caller(self._local.recv(len(rows), None))

    def close(self) -> None:
        """Close every environment; the first failure is raised when all are closed."""
        if not self._unclosed.is_armed:
            return
        failures: list[BaseException] = []
        try:
            if self._local is not None:
                self._local.close()
        except Exception as error:  # noqa: BLE001 - the others must be closed too
            failures.append(error)
        finally:
            failures += self._pool.close()
            self._shared = None
            if self._memory is not None:
                self._memory.close()
        # Only now, so that it can be called again after an interrupt.
        self._unclosed.disarm()
        if failures:
            raise failures[0]


def _listed(actions: Any) -> list[Any]:
    rows: list[Any] = actions.tolist() if isinstance(actions, np.ndarray) else actions
    return rows


def _with_index(index: int, error: EnvWeaveError) -> EnvWeaveError:
    """Return a refusal that says which of the actions it is about."""
    if isinstance(error, ToolCallOpenError):
        return ToolCallOpenError(f"actions[{index}]: {error}")
    return type(error)(f"actions[{index}]{str(error).removeprefix('action')}")
