"""The workers of a vector: waited for together, found lost, and replaced."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

from envweave.errors import (
    EnvironmentLostError,
    EnvWeaveError,
    ForkError,
    StateFailedError,
    format_error,
)
from envweave.lifetime import OwnerProcess
from envweave.session.episodes import Position, advance_seed, with_autoreset
from envweave.types import EpisodeEnd, ResetResult, State
from envweave.vector.arguments import ResetKwargs
from envweave.vector.columns import Layout
from envweave.vector.process.row_state import MergedRows, RowState, from_results, from_worker
from envweave.vector.process.shard_worker import ShardWorker
from envweave.vector.process.shared_columns import SharedColumns
from envweave.vector.process.turns import STEP_ALL, EventFd, TurnSlot, TurnTable
from envweave.vector.process.vector_worker import PackedSnapshot, ResetOutcomes, StepExtras
from envweave.workers.launch import CLOSE_S, WorkerLostError
from envweave.workers.main import WorkerInfo
from envweave.workers.pickling import pack
from envweave.workers.shared_memory import SharedMemory

ATTEMPTS = 3
"""How often to start a new worker in place of a lost one if the new ones are lost too."""


@final
class WorkerShard:
    """Some rows of a vector, and the worker that runs them.

    Args:
        slot: The worker's slot in the table of turns.
        rows: Which rows.
        start: Starts a worker, without waiting until it is ready.
        release: Releases what its workers have in common, when the last one has ended.
        timeout_s: How long one call of an environment may take.

    Attributes:
        rows: Which rows.
        worker: The process that runs them; `None` after it was lost.
        running: The rows whose step is in progress.
        queue: The actions that wait until the worker is free.
        ends: How the episodes that were lost with a worker ended, until they are returned.
        fresh: The outcomes of the resets that a new worker began with.
    """

    def __init__(
        self,
        slot: TurnSlot,
        rows: range,
        start: Callable[[], ShardWorker],
        release: Callable[[], None],
        timeout_s: float | None,
    ) -> None:
        self.rows = rows
        self.worker: ShardWorker | None = None
        self.running: Sequence[int] = ()
        self.queue: dict[int, Any] = {}
        self.ends: dict[int, EpisodeEnd] = {}
        self.fresh: dict[int, ResetResult[Any] | Exception] = {}
        self._turn = 0
        self._message: tuple[Any, ...] = ()  # that of the turn in progress
        self._slot = slot
        self._start = start
        self._release = release
        self._timeout_s = timeout_s
        self._positions: dict[int, Position] = {}  # of each row's stream of episodes
        self._unreported: dict[int, Position] = {}  # of those that begin with `fresh`
        self._shared: SharedColumns | None = None
        self._memory: SharedMemory | None = None
        self._fill: Callable[[int], Any] = lambda row: row
        self._respawning: threading.Thread | None = None
        self._loss = "its worker process was lost"  # why there is no worker

    # Starting, and starting over

    def launch(self) -> None:
        """Start a process, without waiting for it.

        Raises:
            WorkerLostError: It ended at once.
        """
        self.worker = self._start()

    def await_ready(self) -> WorkerInfo:
        """Wait until the worker's environments are made.

        Raises:
            WorkerLostError: It ended first.
            EnvWeaveError: One of them could not be made.
        """
        info: WorkerInfo = self._worker().reply()
        return info

    def share(
        self, shared: SharedColumns, memory: SharedMemory, fill: Callable[[int], Any]
    ) -> None:
        """Fix the columns. `fill` returns a row's last observation, when a worker is replaced.

        Raises:
            WorkerLostError: The worker is gone.
        """
        self._shared, self._memory, self._fill = shared, memory, fill
        # Before their first episode, environments have shown nothing that columns can be made of.
        self._send_shared({row: fill(row) for row in self.rows if row not in self._positions})

    def _send_shared(self, fill: Mapping[int, Any]) -> None:
        assert self._shared is not None
        assert self._memory is not None
        self._worker().share(self._shared, self._memory, fill, self._timeout_s)

    def respawn(self, resets: ResetKwargs, notify: Callable[[], None]) -> None:
        """Start a new worker, in a thread, that continues where the last one was lost.

        It begins with these resets. `fresh` holds their outcomes when `notify` is called.
        """

        def run() -> None:
            try:
                self.fresh |= self._respawn(resets)
            finally:
                self._respawning = None
                notify()

        self._respawning = threading.Thread(target=run, name="envweave-respawn", daemon=True)
        self._respawning.start()

    def _respawn(self, resets: ResetKwargs) -> dict[int, ResetResult[Any] | Exception]:
        failure = ""
        for _ in range(ATTEMPTS):
            try:
                return self._start_over(resets)
            except Exception as error:  # noqa: BLE001 - raised where the outcome is awaited
                if self.worker is not None:
                    self.worker.process.end()
                    self.worker = None
                ours = isinstance(error, WorkerLostError | EnvWeaveError)
                failure = str(error) if ours else format_error(error)
                if not isinstance(error, WorkerLostError) or error.offender is not None:
                    break  # it would fail again
        self._loss = f"a new worker process could not take over: {failure}"
        return {row: EnvironmentLostError(self._loss) for row in resets}

    def _start_over(self, resets: ResetKwargs) -> dict[int, ResetResult[Any] | Exception]:
        self.launch()
        self.await_ready()
        self._unreported.clear()  # they were lost with the last worker
        self.call("resume_from", self._positions)
        outcomes = self._reset(resets) if resets else {}
        if self._shared is not None:
            begun = {row for row, start in outcomes.items() if isinstance(start, ResetResult)}
            self._send_shared({row: self._fill(row) for row in self.rows if row not in begun})
        return outcomes

    @property
    def is_respawning(self) -> bool:
        """Whether a new worker is being started."""
        return self._respawning is not None

    def await_respawn(self) -> bool:
        """Wait for a new worker that is being started; return whether there is a worker."""
        while (respawning := self._respawning) is not None:
            respawning.join(0.2)  # a Ctrl-C that comes just before a wait does not end it
        return self.worker is not None

    def respawned(self, resets: ResetKwargs) -> dict[int, ResetResult[Any] | Exception]:
        """Return the outcomes of the resets that a new worker began with."""
        self.await_respawn()
        return {row: self.take_fresh(row) for row in resets}

    def take_fresh(self, row: int) -> Any:
        """Return the outcome of the reset that a new worker began a row with, to report it."""
        if row in self._unreported:
            self._positions[row] = self._unreported.pop(row)
        return self.fresh.pop(row, None)

    # Calls

    def call(self, *message: Any) -> Any:
        """Send the worker a message, and return its reply.

        Raises:
            WorkerLostError: It is gone.
        """
        worker = self._worker()
        worker.send(*message, timeout_s=self._timeout_s)
        return worker.reply(*message, timeout_s=self._timeout_s)

    def _reset(self, resets: ResetKwargs) -> dict[int, ResetResult[Any] | Exception]:
        """Begin an episode in each of these rows, without reporting it yet."""
        self.send_reset(resets)
        reply = self._receive_reset(resets)
        self._unreported |= reply.positions
        return reply.outcomes

    def send_reset(self, resets: ResetKwargs) -> None:
        """Have the worker begin an episode in each of these rows.

        Raises:
            WorkerLostError: The worker is gone.
        """
        # A row whose new episode was never reported goes back to where the caller stands.
        back = {row: self._positions[row] for row in resets if row in self._unreported}
        self._message = "reset", resets, back
        self._worker().send(*self._message, timeout_s=self._timeout_s)

    def receive_reset(self, resets: ResetKwargs) -> dict[int, ResetResult[Any] | Exception]:
        """Return the outcomes of a reset that was sent.

        Raises:
            WorkerLostError: The worker is gone.
        """
        reply = self._receive_reset(resets)
        self._positions |= reply.positions
        for row in resets:
            self._unreported.pop(row, None)
        return reply.outcomes

    def _receive_reset(self, resets: ResetKwargs) -> ResetOutcomes:
        try:
            reply: ResetOutcomes = self._reply()
        except WorkerLostError as loss:
            late = loss.offender
            if late in resets and late in self._positions:
                seed = resets[late].get("seed")
                self._positions[late] = advance_seed(self._positions[late], seed)
            raise
        return reply

    def restore(self, points: Mapping[int, Any]) -> dict[int, ResetResult[Any] | Exception]:
        """Have the worker continue from a point in each of these rows.

        Raises:
            WorkerLostError: The worker is gone.
        """
        back = {row: self._positions[row] for row in points if row in self._unreported}
        reply: ResetOutcomes = self.call("restore", points, back)
        self._positions |= reply.positions
        for row in points:
            self._unreported.pop(row, None)
        return reply.outcomes

    def pack_actions(self, actions: Sequence[Any]) -> bytes:
        """Return what `step_all` will send for these actions."""
        return pack(("step", actions)) if self.worker is None else self.worker.pack("step", actions)

    def step_all(self, actions: Sequence[Any] | None, packed: bytes | None) -> None:
        """Have the worker step every row.

        Args:
            actions: One for each row; `None` if they are in their shared column.
            packed: What `pack_actions` returned for them, if that was called.

        Raises:
            WorkerLostError: It is gone.
        """
        worker = self._worker()
        self._turn, self.running = worker.next_turn(), self.rows
        worker.drain(self._timeout_s)
        if actions is None:
            worker.start_turn(STEP_ALL)
        else:
            self._message = "step", actions
            worker.send(*self._message, packed=packed, timeout_s=self._timeout_s)

    def step_queued(self) -> None:
        """Have the worker step the rows in the queue whose episode is not lost.

        Raises:
            WorkerLostError: It is gone.
        """
        rows = {row: action for row, action in self.queue.items() if row not in self.ends}
        if not rows:
            return
        worker = self._worker()
        self._turn, self.running = worker.next_turn(), list(rows)
        self.queue = {row: action for row, action in self.queue.items() if row not in rows}
        self._message = "step_some", rows
        worker.send(*self._message, timeout_s=self._timeout_s)

    @property
    def awaited(self) -> tuple[int, int]:
        """Which shared word to read for the step in progress, and the value to wait for."""
        return self._slot.done, self._turn

    def check_deadline(self, timeout_s: float) -> float:
        """Return how many seconds the code that is running has left.

        Raises:
            WorkerLostError: None, so its worker was ended.
        """
        return self._worker().process.check_deadline(timeout_s)

    @property
    def is_done(self) -> bool:
        """Whether the step in progress is done."""
        return bool(self.running) and self._worker().has_done(self._turn)

    @property
    def is_plain(self) -> bool:
        """Whether the shared columns hold everything about the step that is done."""
        return not self._worker().has_more

    def take(self) -> MergedRows:
        """Return the step that is done.

        Raises:
            WorkerLostError: The worker is gone.
        """
        worker = self._worker()
        extras: StepExtras | None = self._reply() if worker.has_more else None
        self._message = ()
        if extras is not None:
            self._positions |= extras.positions
        assert self._shared is not None
        return from_worker(self.running, self._shared, extras)

    def recover(self) -> None:
        """After an interrupt, forget a step that was not sent to the worker."""
        if self.running and (self.worker is None or self.worker.process.has_ended):
            return  # it will be found lost
        if self.running and not self._worker().has_begun(self._turn):
            self.running = ()

    def _reply(self) -> Any:
        """Return the reply to the last message, which no environment can refuse.

        Raises:
            WorkerLostError: The worker is gone, or cannot reply.
        """
        try:
            return self._worker().reply(*self._message, timeout_s=self._timeout_s)
        except WorkerLostError:
            raise
        except Exception as error:
            raise WorkerLostError(f"its worker cannot reply: {format_error(error)}") from error

    def _worker(self) -> ShardWorker:
        if self.worker is None:
            raise WorkerLostError(self._loss)
        return self.worker

    def end(self) -> None:
        """End the worker at once, also one that is being started."""
        while (respawning := self._respawning) is not None:
            if self.worker is not None:
                self.worker.process.kill()
            respawning.join(0.05)
        if self.worker is not None:
            self.worker.process.end()
        self._release()
        self._shared = None


BUSY_S = 2.0
"""How long a step in progress may take before `close` ends its worker."""


class FinishedStep(NamedTuple):
    """A step of some rows that is about to be returned.

    Attributes:
        shard: Whose rows.
        part: The step itself.
        is_lost: Whether it reports episodes that were lost with a worker.
    """

    shard: WorkerShard
    part: MergedRows
    is_lost: bool


@final
class WorkerPool:
    """The shards of a vector.

    A worker that is lost, killed, or ended for taking too long ends the episodes of its rows.
    With `autoreset` a new one is started at once, which begins their next episodes; otherwise
    when they are reset. Meanwhile the other workers go on.
    """

    def __init__(
        self,
        shards: Sequence[WorkerShard],
        rows: RowState,
        turns: TurnTable,
        event: EventFd,
        *,
        spins: int,
        autoreset: bool,
        timeout_s: float | None,
    ) -> None:
        self.shards = list(shards)
        self._rows = rows
        self._words = turns.words
        self._turns = turns
        self._event = event
        self._spins = spins
        self._autoreset = autoreset
        self._timeout_s = timeout_s
        self._is_closed = False
        self._owner = OwnerProcess()

    @property
    def layout(self) -> Layout:
        """How observations are laid out in columns."""
        return self._rows.layout

    def by_shard(self, rows: Mapping[int, Any]) -> Iterator[tuple[WorkerShard, dict[int, Any]]]:
        """Iterate over the shards that hold these rows, each with its own rows."""
        for shard in self.shards:
            part = {row: value for row, value in rows.items() if row in shard.rows}
            if part:
                yield shard, part

    def call(self, shard: WorkerShard, *message: Any) -> Any:
        """Make a call that changes nothing; a lost worker is replaced first.

        Raises:
            EnvironmentLostError: No worker can be started.
        """
        failure: WorkerLostError | None = None
        for _ in range(2):  # a worker may be found lost only when it does not reply
            self._await_worker(shard)
            try:
                return shard.call(*message)
            except WorkerLostError as loss:
                self.lose(shard, loss)
                failure = loss
        raise EnvironmentLostError(f"Environments {_span(shard.rows)}: {failure}.")

    def _await_worker(self, shard: WorkerShard) -> None:
        """Wait for a new worker, if the last was lost."""
        self._check_alive(shard)
        if not shard.await_respawn():
            self._respawn(shard, {})
            shard.await_respawn()

    def reset(self, resets: ResetKwargs) -> dict[int, ResetResult[Any] | Exception]:
        """Begin an episode in each of these rows; a failure takes the place of its result."""
        outcomes: dict[int, ResetResult[Any] | Exception] = {}
        pending = []
        for shard, part in self.by_shard(resets):
            self._check_alive(shard)
            has_worker = shard.await_respawn()
            for row in part:
                shard.ends.pop(row, None)
                shard.fresh.pop(row, None)
            try:
                if has_worker:
                    shard.send_reset(part)
                else:
                    self._respawn(shard, part)
                receive = shard.receive_reset if has_worker else shard.respawned
                pending.append((shard, part, receive))
            except WorkerLostError as loss:
                outcomes |= self._lost_in_reset(shard, part, loss)
        for shard, part, receive in pending:
            try:
                outcomes |= receive(part)
            except WorkerLostError as loss:
                outcomes |= self._lost_in_reset(shard, part, loss)
        return outcomes

    def _check_alive(self, shard: WorkerShard) -> None:
        """Find out whether a worker was lost while it was idle."""
        if shard.worker is not None and not shard.is_respawning and shard.worker.process.is_gone:
            self.lose(shard, shard.worker.process.lost())

    def state(self, shard: WorkerShard) -> list[State]:
        """Return the state of each of a shard's environments.

        Raises:
            StateFailedError: They were lost, and that was not reported yet.
        """
        self._check_alive(shard)
        try:
            if not shard.ends:
                self._await_worker(shard)
                states: list[State] = shard.call("state")
                return states
        except WorkerLostError as loss:
            self.lose(shard, loss)
        cause = next((end.cause for end in shard.ends.values()), "no worker process can be started")
        raise StateFailedError(f"Environments {_span(shard.rows)}: {cause}.")

    def snapshot(self, row: int) -> PackedSnapshot:
        """Return a point of the episode running in a row.

        Raises:
            ForkError: It cannot be copied, or was lost with its worker.
        """
        ((shard, _),) = self.by_shard({row: None})
        self._check_alive(shard)
        try:
            if row not in shard.ends:
                self._await_worker(shard)
                point: PackedSnapshot = shard.call("snapshot", row)
                return point
        except WorkerLostError as loss:
            self.lose(shard, loss)
        cause = shard.ends[row].cause if row in shard.ends else "its worker process is gone"
        raise ForkError(f"The episode was lost: {cause}.")

    def restore(self, points: Mapping[int, Any]) -> dict[int, ResetResult[Any] | Exception]:
        """Continue from a point in each of these rows; a failure takes the place of its result."""
        outcomes: dict[int, ResetResult[Any] | Exception] = {}
        for shard, part in self.by_shard(points):
            for row in part:
                shard.ends.pop(row, None)
                shard.fresh.pop(row, None)
            try:
                self._await_worker(shard)
                outcomes |= shard.restore(part)
            except WorkerLostError as loss:
                self.lose(shard, loss)
                outcomes |= {
                    row: ForkError(f"The environment was lost while it was restored: {loss}.")
                    for row in part
                }
        return outcomes

    def _lost_in_reset(
        self, shard: WorkerShard, part: ResetKwargs, loss: WorkerLostError
    ) -> dict[int, Exception]:
        self.lose(shard, loss)
        failure = f"The environment was lost while it was reset: {loss}."
        return {row: EnvironmentLostError(failure) for row in part}

    # Steps

    @property
    def is_calm(self) -> bool:
        """Whether every worker is there and idle, and nothing is left to report."""
        return not any(
            shard.running
            or shard.queue
            or shard.ends
            or shard.is_respawning
            or shard.worker is None
            for shard in self.shards
        )

    def pack_actions(self, actions: Sequence[Any]) -> list[bytes]:
        """Return what `step_all` will send to each worker for these actions of all rows."""
        return [
            shard.pack_actions(actions[shard.rows.start : shard.rows.stop]) for shard in self.shards
        ]

    def step_all(
        self, actions: Sequence[Any] | None, packed: Sequence[bytes] | None = None
    ) -> None:
        """Have the workers step every row, while `is_calm`.

        Args:
            actions: Those of all rows of the vector; `None` if they are in their shared column.
            packed: What `pack_actions` returned for them, if that was called.
        """
        for i, shard in enumerate(self.shards):
            rows = shard.rows
            try:
                shard.step_all(
                    None if actions is None else actions[rows.start : rows.stop],
                    None if packed is None else packed[i],
                )
            except WorkerLostError as loss:
                self.lose(shard, loss)

    def await_all(self) -> bool:
        """Wait for the step of all rows; return whether the shared columns hold all of it."""
        for shard in self.shards:
            if shard.running and shard.worker is not None:
                shard.worker.await_soon()
            while shard.running and not shard.is_done:
                self.wait([shard], None)
        return all(shard.running and shard.is_plain for shard in self.shards)

    def ack_all(self) -> None:
        """Forget a step of all rows that was returned."""
        for shard in self.shards:
            shard.running = ()

    def send(self, actions: Mapping[int, Any]) -> None:
        """Have these rows take a step, as soon as their worker is free."""
        for shard, part in self.by_shard(actions):
            shard.queue |= part
            self._dispatch(shard)

    def dispatch(self) -> None:
        """Have free workers go on with their queue; `send` may have been interrupted."""
        for shard in self.shards:
            self._dispatch(shard)

    def _dispatch(self, shard: WorkerShard) -> None:
        if shard.queue and not shard.running and not shard.is_respawning:
            try:
                shard.step_queued()
            except WorkerLostError as loss:
                self.lose(shard, loss)

    def collect(self, collected: Sequence[FinishedStep]) -> Iterator[FinishedStep]:
        """Iterate over the steps that are done and not collected yet."""
        held = {row for step in collected for row in step.part.rows}
        for shard in self.shards:
            try:
                if shard.is_done and shard.running[0] not in held:
                    yield FinishedStep(shard, shard.take(), is_lost=False)
            except WorkerLostError as loss:
                self.lose(shard, loss)
            if shard.ends and not shard.is_respawning:
                rows = [row for row in shard.queue if row in shard.ends and row not in held]
                if rows:
                    yield FinishedStep(shard, self._lost(shard, rows), is_lost=True)

    def _lost(self, shard: WorkerShard, rows: Sequence[int]) -> MergedRows:
        state, fresh = self._rows, shard.fresh
        return from_results(
            {row: with_autoreset(state.lost(row, shard.ends[row]), fresh.get(row)) for row in rows},
            state.layout,
        )

    def ack(self, step: FinishedStep) -> None:
        """Forget a step that was returned, and have the worker go on with its queue."""
        shard = step.shard
        if step.is_lost:
            for row in step.part.rows:
                shard.take_fresh(row)
                for rows in (shard.queue, shard.ends):
                    rows.pop(row, None)
        else:
            shard.running = ()
        self._dispatch(shard)

    def wait(self, busy: Sequence[WorkerShard], timeout_s: float | None) -> None:
        """Wait until one of these shards is done, or one has a new worker, or the time is up."""
        awaited, words = [shard.awaited for shard in busy], self._words
        for _ in range(self._spins if busy else 1):
            for index, turn in awaited:
                if words[index] >= turn:
                    return
        self._sleep([shard.worker for shard in busy if shard.worker is not None], timeout_s)

    def _sleep(self, workers: Sequence[ShardWorker], timeout_s: float | None) -> None:
        """Sleep until a worker is done, a new one is there, or one is found lost."""
        left = timeout_s
        for shard in self.shards:
            if shard.running and shard.worker is not None and shard.worker.process.has_ended:
                self.lose(shard, shard.worker.process.lost())
                return
            if self._timeout_s is not None and shard.running:
                try:
                    allowed = shard.check_deadline(self._timeout_s)
                except WorkerLostError as loss:
                    self.lose(shard, loss)
                    return
                left = allowed if left is None else min(left, allowed)
        poll = select.poll()
        poll.register(self._event.fileno(), select.POLLIN)
        for worker in workers:
            worker.notify_when_done()
            if not worker.process.has_ended:
                poll.register(worker.process.poll_fd(), select.POLLIN)
        ready = {fd for fd, _ in poll.poll(None if left is None else max(left, 0.0) * 1000 + 1)}
        if self._event.fileno() in ready:
            self._event.clear()
            return
        for shard in self.shards:
            process = None if shard.worker is None else shard.worker.process
            if process is not None and shard.running and process.poll_fd() in ready:
                self.lose(shard, process.lost())

    def lose(self, shard: WorkerShard, loss: WorkerLostError) -> None:
        """Record that a worker is gone, and start a new one if an autoreset is due."""
        if shard.worker is not None:
            shard.worker.process.end()
            shard.worker = None
        shard.queue = {**dict.fromkeys(shard.running), **shard.queue}
        shard.running = ()
        shard.ends |= {row: loss.end_of(row) for row in shard.rows if row in self._rows.live}
        if self._autoreset and not self._is_closed:
            self._respawn(shard, {row: {} for row in shard.ends})

    def _respawn(self, shard: WorkerShard, resets: ResetKwargs) -> None:
        shard.respawn(resets, self._event.notify)

    def recover(self) -> set[int]:
        """After an interrupt, return the rows whose step can still be received."""
        owed: set[int] = set()
        for shard in self.shards:
            shard.recover()
            owed.update(shard.running, shard.queue)
        return owed

    def close(self) -> list[Exception]:
        """Have every worker close its environments and end; return what failed."""
        if not self._event.fds or not self._owner.is_current:
            return []  # it is closed, or belongs to the process that this one was forked from
        self._is_closed = True
        failures: list[Exception] = []
        deadline = time.monotonic() + BUSY_S
        try:
            idle = [shard.worker for shard in self.shards if self._becomes_idle(shard, deadline)]
            for worker in idle:
                if worker is not None:
                    worker.request_close()
            deadline = time.monotonic() + CLOSE_S
            for worker in idle:
                if worker is not None:
                    failure = worker.await_close(deadline - time.monotonic())
                    failures += [] if failure is None else [failure]
        finally:
            for shard in self.shards:
                shard.end()
            self._event.close()
            self._turns.close()
        return failures

    def _becomes_idle(self, shard: WorkerShard, deadline: float) -> bool:
        """Wait for a step in progress until the deadline; return whether the worker is idle."""
        worker = shard.worker
        if worker is None or worker.process.has_ended or shard.is_respawning:
            return False
        process_fd = worker.process.poll_fd()
        poll = select.poll()
        poll.register(self._event.fileno(), select.POLLIN)
        poll.register(process_fd, select.POLLIN)
        while worker.is_busy:
            left = deadline - time.monotonic()
            if left <= 0 or any(fd == process_fd for fd, _ in poll.poll(left * 1000)):
                return False
            self._event.clear()
        try:
            if shard.running:
                shard.take()
        except WorkerLostError:
            return False
        return True


def _span(rows: range) -> str:
    return str(rows.start) if len(rows) == 1 else f"{rows.start} to {rows.stop - 1}"
