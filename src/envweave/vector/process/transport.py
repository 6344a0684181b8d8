"""`backend="process"`: a vector's rows in worker processes, and one share in the caller's own.

    caller ──actions in a shared column, a turn──▶ worker: steps its rows, writes the columns
           ◀──────────a turn; a message where columns cannot hold it all───────────┘

While the workers run, the caller's thread steps a share itself, unless there is a deadline to
watch, or the caller asked for a number of workers.
"""

from __future__ import annotations

import atexit
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from envweave.codec import AnySpec, Mismatch
from envweave.codec.scalars import IntSpec
from envweave.errors import ActionError, EnvWeaveError, ToolCallOpenError
from envweave.session import Session
from envweave.types import ResetResult, State, StepResult, ToolResult
from envweave.vector import BatchTransport, StepBatch
from envweave.vector.arguments import Wanted
from envweave.vector.batch import Standing, Tick, tick_of
from envweave.vector.columns import Arrays, Columns, Layout, LayoutMismatchError
from envweave.vector.process.row_state import (
    MergedRows,
    RowState,
    from_caller,
    from_results,
    gather,
    sorted_by_row,
)
from envweave.vector.process.shared_memory import SharedColumns, SharedMemory, action_layout
from envweave.vector.process.vector_worker import WorkerInfo
from envweave.vector.process.worker_pool import Taken, WorkerPool
from envweave.workers.deadline_marks import specs_in
from envweave.workers.pickling import check_actions
from envweave.workers.worker_process import WorkerLostError


class Share(BatchTransport, Protocol):
    """The rows that the caller's own thread steps: the first ones."""

    sessions: Sequence[Session]


@final
class ProcessTransport:
    """Steps the rows of a vector in worker processes."""

    def __init__(
        self, fleet: WorkerPool, books: RowState, hello: WorkerInfo, own: Share | None, num_own: int
    ) -> None:
        self.interface = hello.interface
        self.tasks = hello.tasks
        self._fleet = fleet
        self._books = books
        self._own = own
        self._num_own = num_own
        self._memory: SharedMemory | None = None
        self._shared: SharedColumns | None = None
        spec = self.interface.action_spec
        self._several = self.interface.possible_agents is not None
        self._asked: set[int] = set()  # rows whose session must be asked about an action
        self._read = spec.read
        self._may_stay = any(isinstance(one, AnySpec) for one in specs_in(spec))
        # Where any object is an action, an answer that nobody waits for is still none.
        self._read_all = None if spec.contains(ToolResult("")) else spec.read_all
        self._sent: dict[int, Any] = {}  # the actions of our own rows that wait for their turn
        self._passed_over = False  # whether some of these waited while the workers' were enough
        self._unclosed = weakref.finalize(self, _dropped, fleet)
        self._unclosed.atexit = False
        atexit.register(fleet.close)

    # Between steps

    @property
    def columns(self) -> Columns:
        """What to act on next. Nobody writes to it."""
        return self._books.columns

    @property
    def owed(self) -> set[int]:
        """The rows whose step was sent for, and can still be received."""
        return self._fleet.mend() | set(self._sent)

    def fix(self, layout: Layout, observations: Sequence[Any]) -> None:
        """Fix the columns, at the first reset of all."""
        books = self._books
        books.fix(layout, observations)
        if self._memory is not None:  # the last time, it was interrupted
            self._memory.close()
        acts = action_layout(self.interface.action_spec)
        self._memory = SharedMemory.of(SharedColumns.size(layout, acts, books.num_envs))
        shared = self._shared = SharedColumns(self._memory, layout, acts, books.num_envs)
        if self._own is not None:
            self._own.fix(layout, observations[: self._num_own])
        for shard in self._fleet.shards:
            try:
                shard.share(shared, self._memory, books.last)
            except WorkerLostError as loss:
                self._fleet.lose(shard, loss)

    def check_reset(self, wanted: Wanted) -> None:
        """Refuse what `reset` would refuse; nothing changes."""
        refusals: dict[int, EnvWeaveError] = {}
        for row, keywords in wanted.items():
            if self._own is not None and row < self._num_own:
                try:
                    self._own.sessions[row].check_reset(**keywords)
                except EnvWeaveError as error:
                    refusals[row] = error
        for shard, part in self._fleet.by_shard(wanted):
            refusals |= self._fleet.ask(shard, "check", part)
        if refusals:
            row = min(refusals)
            raise type(refusals[row])(f"Environment {row}: {refusals[row]}")

    def reset(self, wanted: Wanted) -> dict[int, ResetResult[Any] | Exception]:
        """Begin an episode in each of these; a failure stands in its place."""
        self._books.live.difference_update(wanted)
        outcomes = self._fleet.reset(wanted)
        mine = {row: one for row, one in wanted.items() if row < self._num_own}
        if mine and self._own is not None:
            outcomes |= self._own.reset(mine)
        began = {row: one for row, one in outcomes.items() if isinstance(one, ResetResult)}
        self._books.start(began)
        self._note_asked(began)
        return {row: outcomes[row] for row in wanted}

    def standing(self, ids: Sequence[int]) -> list[Standing]:
        """Return where these environments stand."""
        return [self._books.standing(row) for row in ids]

    def state(self) -> list[State]:
        """Return the state of each environment."""
        states: list[State] = [] if self._own is None else self._own.state()
        for shard in self._fleet.shards:
            states += self._fleet.state(shard)
        return states

    # Actions

    def admit(self, ids: Sequence[int], actions: Sequence[Any]) -> list[Any]:
        """Return the actions as the authors' `step`s want them, or refuse; nothing changes."""
        admitted = self._admitted(ids, actions)
        if self._may_stay:
            check_actions(admitted)
        return admitted

    def _admitted(self, ids: Sequence[int], actions: Sequence[Any]) -> list[Any]:
        if not self._asked and not self._several and self._read_all is not None:
            try:
                return self._read_all(actions)
            except Mismatch:
                pass  # say it in words, and who it was
        admitted: list[Any] = []
        asked: dict[int, Any] = {}
        refusals: dict[int, EnvWeaveError] = {}
        for row, action in zip(ids, actions, strict=True):
            if self._several or row in self._asked:
                asked[row] = action
                admitted.append(action)
                continue
            try:
                admitted.append(self._admit_one(action))
            except ActionError as error:
                refusals[row] = error
                break
        refusals |= self._refused(asked)
        for place, row in enumerate(ids):
            if row in refusals:
                raise _placed(place, refusals[row])
        return admitted

    def admit_array(self, actions: NDArray[Any]) -> Any:
        """Return whole numbers that every environment takes as they are; else `None`."""
        spec = self.interface.action_spec
        if (
            self._asked
            or not isinstance(spec, IntSpec)
            or not np.can_cast(actions.dtype, np.int64)
            or actions.dtype.kind == "b"
            or actions.shape != (self._books.num_envs,)
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

    def _refused(self, asked: Mapping[int, Any]) -> dict[int, EnvWeaveError]:
        """Ask the sessions of these rows which actions they refuse."""
        refusals: dict[int, EnvWeaveError] = {}
        for row, action in asked.items():
            if self._own is not None and row < self._num_own:
                try:
                    self._own.sessions[row].admit(action)
                except EnvWeaveError as error:
                    refusals[row] = error
        for shard, part in self._fleet.by_shard(asked):
            live = {row: action for row, action in part.items() if row not in shard.ends}
            if live and shard.settle():
                try:
                    refusals |= shard.ask("admit", live)
                except WorkerLostError as loss:
                    self._fleet.lose(shard, loss)  # the step ends their episodes
        return refusals

    def _note_asked(self, results: Mapping[int, StepResult[Any]]) -> None:
        """Note whose tool call waits for an answer."""
        for row, result in results.items():
            (self._asked.add if result.tool_calls else self._asked.discard)(row)

    # Steps

    def step(self, actions: Any) -> StepBatch:
        """Step each environment once, with a list or an array of actions."""
        fleet, own = self._fleet, self._own
        if self._asked or self._several or not fleet.is_calm:
            everyone = range(self._books.num_envs)
            self.send(everyone, _listed(actions))
            return self._received(len(everyone), None, in_order=True)
        is_column = self._write(actions)
        fleet.step_all(None if is_column else actions)
        part: MergedRows | None = None
        if own is not None:
            batch = own.step(_listed(actions[: self._num_own]))
            tick = tick_of(batch)
            is_plain = isinstance(fleet.layout, Arrays) and not (tick.special or tick.infos)
            if is_plain and fleet.await_all():
                return self._plain(tick)
            part = from_caller(batch)
        elif isinstance(fleet.layout, Arrays) and fleet.await_all():
            return self._plain(None)
        return self._received(self._books.num_envs, None, part, in_order=True)

    def _write(self, actions: Any) -> bool:
        """Write the workers' actions to their column; return whether they have one."""
        shared, first = self._shared, self._num_own
        if shared is None or not shared.actions:
            return False
        try:
            column = actions[first:]
            if not isinstance(column, np.ndarray):
                column = shared.acts.gather(column)
        except LayoutMismatchError:
            return False
        shared.actions[0][first:] = column
        return True

    def _plain(self, own: Tick | None) -> StepBatch:
        """Return a step that columns hold all of."""
        assert self._shared is not None
        first, shared = self._num_own, self._shared
        rewards, columns = shared.rewards.copy(), shared.leaves[0].copy()
        if own is not None:
            rewards[:first], columns[:first] = own.rewards, own.successor
        columns.flags.writeable = False
        self._fleet.strike_all()
        return self._books.plain_batch(columns, rewards)

    def send(self, ids: Sequence[int], actions: Sequence[Any]) -> None:
        """Let these environments take a step each."""
        sent = dict(zip(ids, actions, strict=True))
        self._fleet.send({row: one for row, one in sent.items() if row >= self._num_own})
        self._sent |= {row: one for row, one in sent.items() if row < self._num_own}

    def recv(self, min_ready: int, timeout_s: float | None) -> StepBatch:
        """Wait for the first `min_ready` steps; return all that are done, the oldest first."""
        return self._received(min_ready, timeout_s)

    def _received(
        self,
        min_ready: int,
        timeout_s: float | None,
        own: MergedRows | None = None,
        *,
        in_order: bool = False,
    ) -> StepBatch:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        parts = [] if own is None else [own]
        fleet = self._fleet
        fleet.dispatch()
        if in_order and self._sent:
            parts.append(self._step_own(list(self._sent)))
        taken: list[Taken] = []
        count = sum(len(part.rows) for part in parts)
        while True:
            for one in fleet.collect(taken):
                taken.append(one)
                count += len(one.part.rows)
            left = None if deadline is None else deadline - time.monotonic()
            is_enough = count >= min_ready and not (self._passed_over and self._sent)
            if is_enough or (left is not None and left <= 0):
                break
            if self._sent:
                # One by one: a slow row of ours holds up the workers' rows once, not for all.
                parts.append(self._step_own([next(iter(self._sent))]))
                count += 1
                continue
            done = [one.shard for one in taken]
            fleet.wait([one for one in fleet.shards if one.running and one not in done], left)
        self._passed_over = bool(self._sent)
        parts += [one.part for one in taken] or ([] if parts else [from_results({}, fleet.layout)])
        step = gather(fleet.layout, parts)
        if in_order:
            step = sorted_by_row(step)
        # From here on nobody can receive them again: who is interrupted must reset.
        for one in taken:
            fleet.strike(one)
        self._note_asked(step.special)
        return self._books.batch(*step)

    def _step_own(self, rows: list[int]) -> MergedRows:
        """Step some rows of ours that were sent for."""
        assert self._own is not None
        self._own.send(rows, [self._sent.pop(row) for row in rows])
        return from_caller(self._own.recv(len(rows), None))

    def close(self) -> None:
        """Close every environment; the first failure is raised when all are closed."""
        if not self._unclosed.alive:
            return
        failures: list[BaseException] = []
        try:
            if self._own is not None:
                self._own.close()
        except Exception as error:  # noqa: BLE001 - the others must be closed too
            failures.append(error)
        finally:
            failures += self._fleet.close()
            self._shared = None
            if self._memory is not None:
                self._memory.close()
        # Only now: who interrupts this may call it again.
        self._unclosed.detach()
        atexit.unregister(self._fleet.close)
        if failures:
            raise failures[0]


def _listed(actions: Any) -> list[Any]:
    rows: list[Any] = actions.tolist() if isinstance(actions, np.ndarray) else actions
    return rows


def _placed(place: int, error: EnvWeaveError) -> EnvWeaveError:
    """Return a refusal that says which of the actions it is about."""
    if isinstance(error, ToolCallOpenError):
        return ToolCallOpenError(f"actions[{place}]: {error}")
    return type(error)(f"actions[{place}]{str(error).removeprefix('action')}")


def _dropped(fleet: WorkerPool) -> None:
    atexit.unregister(fleet.close)
    fleet.close()
    warnings.warn(
        f"A vector in {len(fleet.shards)} worker processes was dropped without close(). Use it "
        "in a `with` block, or close it.",
        ResourceWarning,
        stacklevel=1,
    )
