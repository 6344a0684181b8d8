"""All the workers of a vector: waited for at once, found lost, and replaced."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

from envweave.errors import EnvironmentLostError, EnvWeaveError, StateFailedError, format_error
from envweave.session.episodes import Position
from envweave.types import EpisodeEnd, ResetResult, State
from envweave.vector.arguments import Wanted
from envweave.vector.columns import Layout
from envweave.vector.episode_tracker import advance_seed, with_autoreset
from envweave.vector.process.row_state import MergedRows, RowState, from_results, from_worker
from envweave.vector.process.shared_memory import (
    STEP_ALL,
    EventFd,
    SharedColumns,
    SharedMemory,
    TurnTable,
)
from envweave.vector.process.vector_worker import Started, StepExtras, WorkerInfo
from envweave.workers.losses import end_of
from envweave.workers.worker_process import CLOSE_S, WorkerIPC, WorkerLostError, WorkerProcess

HOST = "envweave.vector.process.vector_worker:VectorWorker"

ATTEMPTS = 3
"""How often to start a new worker in place of a lost one, if the new ones are lost too."""


@final
class WorkerShard:
    """Some rows of a vector, and the worker that runs them.

    Attributes:
        rows: Which rows.
        worker: The process that runs them; `None` after it was lost.
        running: The rows whose step is under way.
        queue: The actions that wait for the worker to come back.
        ends: How the episodes ended that went with a worker, until somebody is told.
        fresh: What came of the resets that a new worker began with.
    """

    def __init__(
        self, seat: WorkerIPC, rows: range, definition: bytes, timeout_s: float | None
    ) -> None:
        self.rows = rows
        self.worker: WorkerProcess | None = None
        self.running: Sequence[int] = ()
        self.queue: dict[int, Any] = {}
        self.ends: dict[int, EpisodeEnd] = {}
        self.fresh: dict[int, ResetResult[Any] | Exception] = {}
        self._turn = 0
        self._told: tuple[Any, ...] = ()  # the message of the turn that is under way
        self._seat = seat
        self._definition = definition
        self._timeout_s = timeout_s
        self._positions: dict[int, Position] = {}  # of each row's stream of episodes
        self._untold: dict[int, Position] = {}  # of those that begin with `fresh`
        self._shared: SharedColumns | None = None
        self._memory: SharedMemory | None = None
        self._fill: Callable[[int], Any] = lambda row: row
        self._revival: threading.Thread | None = None

    # Starting, and starting over

    def launch(self) -> None:
        """Start a process, and don't wait for it.

        Raises:
            WorkerLostError: It ended at once.
        """
        self.worker = WorkerProcess(self._seat)
        self.worker.define(HOST, self._definition)

    def greet(self) -> WorkerInfo:
        """Wait until the worker's environments are made.

        Raises:
            WorkerLostError: It ended first.
            EnvWeaveError: One of them could not be made.
        """
        hello: WorkerInfo = self._worker().answer()
        return hello

    def share(
        self, shared: SharedColumns, memory: SharedMemory, fill: Callable[[int], Any]
    ) -> None:
        """Fix the columns. `fill` tells what a row showed last, when a worker is replaced.

        Raises:
            WorkerLostError: The worker is gone.
        """
        self._shared, self._memory, self._fill = shared, memory, fill
        self._tell_shared({})

    def _tell_shared(self, fill: Mapping[int, Any]) -> None:
        assert self._shared is not None
        assert self._memory is not None
        layout, count = self._shared.layout, len(self._shared.rewards)
        worker = self._worker()
        worker.tell("share", layout, self._shared.acts, count, fill, fd=self._memory.fd)
        worker.answer(timeout_s=self._timeout_s)

    def revive(self, wanted: Wanted, tell: Callable[[], None]) -> None:
        """Start a new worker, in a thread, that goes on where the last one was lost.

        It begins with these resets. `fresh` holds what came of them when `tell` is called.
        """

        def run() -> None:
            try:
                self.fresh |= self._revived(wanted)
            finally:
                self._revival = None
                tell()

        self._revival = threading.Thread(target=run, name="envweave-revival", daemon=True)
        self._revival.start()

    def _revived(self, wanted: Wanted) -> dict[int, ResetResult[Any] | Exception]:
        failure = ""
        for _ in range(ATTEMPTS):
            try:
                return self._start_over(wanted)
            except Exception as error:  # noqa: BLE001 - told to who waits for it
                if self.worker is not None:
                    self.worker.end()
                    self.worker = None
                ours = isinstance(error, WorkerLostError | EnvWeaveError)
                failure = str(error) if ours else format_error(error)
                if not isinstance(error, WorkerLostError) or error.offender is not None:
                    break  # it would fail again
        words = f"a new worker process could not take over: {failure}"
        return {row: EnvironmentLostError(words) for row in wanted}

    def _start_over(self, wanted: Wanted) -> dict[int, ResetResult[Any] | Exception]:
        self.launch()
        self.greet()
        self._untold.clear()  # they went with the last worker
        self.ask("resume_from", self._positions)
        outcomes = self._reset(wanted) if wanted else {}
        if self._shared is not None:
            begun = {row for row, one in outcomes.items() if isinstance(one, ResetResult)}
            self._tell_shared({row: self._fill(row) for row in self.rows if row not in begun})
        return outcomes

    @property
    def is_reviving(self) -> bool:
        """Whether a new worker is on its way."""
        return self._revival is not None

    def settle(self) -> bool:
        """Wait for a new worker that is on its way; return whether one is there."""
        while (revival := self._revival) is not None:
            revival.join(0.2)  # a Ctrl-C that comes just before a wait does not end it
        return self.worker is not None

    def revived(self, wanted: Wanted) -> dict[int, ResetResult[Any] | Exception]:
        """Return what came of the resets that a new worker began with."""
        self.settle()
        return {row: self.take_fresh(row) for row in wanted}

    def take_fresh(self, row: int) -> Any:
        """Return what came of the reset that a new worker began a row with, to tell of it."""
        if row in self._untold:
            self._positions[row] = self._untold.pop(row)
        return self.fresh.pop(row, None)

    # Calls

    def ask(self, *message: Any) -> Any:
        """Tell the worker something, and return its answer.

        Raises:
            WorkerLostError: It is gone.
        """
        worker = self._worker()
        worker.tell(*message, timeout_s=self._timeout_s)
        return worker.answer(*message, timeout_s=self._timeout_s)

    def _reset(self, wanted: Wanted) -> dict[int, ResetResult[Any] | Exception]:
        """Begin an episode in each of these rows, and don't tell of it yet."""
        self.tell_reset(wanted)
        answer = self._started(wanted)
        self._untold |= answer.positions
        return answer.outcomes

    def tell_reset(self, wanted: Wanted) -> None:
        """Tell the worker to begin an episode in each of these rows.

        Raises:
            WorkerLostError: The worker is gone.
        """
        # Who began an episode that nobody was told of begins where the caller stands.
        back = {row: self._positions[row] for row in wanted if row in self._untold}
        self._told = "reset", wanted, back
        self._worker().tell(*self._told, timeout_s=self._timeout_s)

    def started(self, wanted: Wanted) -> dict[int, ResetResult[Any] | Exception]:
        """Return what came of a reset that the worker was told of.

        Raises:
            WorkerLostError: The worker is gone.
        """
        answer = self._started(wanted)
        self._positions |= answer.positions
        for row in wanted:
            self._untold.pop(row, None)
        return answer.outcomes

    def _started(self, wanted: Wanted) -> Started:
        try:
            answer: Started = self._answer(*self._told)
        except WorkerLostError as loss:
            late = loss.offender
            if late in wanted and late in self._positions:
                seed = wanted[late].get("seed")
                self._positions[late] = advance_seed(self._positions[late], seed)
            raise
        return answer

    def step_all(self, actions: Sequence[Any] | None) -> None:
        """Let the worker step every row; `None` says that the actions are in their column.

        Raises:
            WorkerLostError: It is gone.
        """
        worker = self._worker()
        self._turn, self.running = worker.next_turn(), self.rows
        worker.settle(self._timeout_s)
        if actions is None:
            worker.give(STEP_ALL)
        else:
            self._told = "step", actions
            worker.tell(*self._told, timeout_s=self._timeout_s)

    def step_queued(self) -> None:
        """Let the worker step the rows in the queue whose episode is not lost.

        Raises:
            WorkerLostError: It is gone.
        """
        rows = {row: action for row, action in self.queue.items() if row not in self.ends}
        if not rows:
            return
        worker = self._worker()
        self._turn, self.running = worker.next_turn(), list(rows)
        self.queue = {row: one for row, one in self.queue.items() if row not in rows}
        self._told = "step_some", rows
        worker.tell(*self._told, timeout_s=self._timeout_s)

    @property
    def awaited(self) -> tuple[int, int]:
        """Which word of the board to look at for the step that is under way, and for what."""
        return self._seat.turn.done, self._turn

    def check_deadline(self, timeout_s: float) -> float:
        """Return how many seconds the code that runs has left.

        Raises:
            WorkerLostError: None; its worker was ended.
        """
        return self._worker().check_deadline(timeout_s)

    @property
    def is_done(self) -> bool:
        """Whether the step that is under way is done."""
        return bool(self.running) and self._worker().has_done(self._turn)

    @property
    def is_plain(self) -> bool:
        """Whether the shared columns hold all there is to the step that is done."""
        return not self._worker().has_more

    def take(self) -> MergedRows:
        """Return the step that is done.

        Raises:
            WorkerLostError: The worker is gone.
        """
        worker = self._worker()
        rest: StepExtras | None = self._answer(*self._told) if worker.has_more else None
        self._told = ()
        if rest is not None:
            self._positions |= rest.positions
        assert self._shared is not None
        return from_worker(self.running, self._shared, rest)

    def mend(self) -> None:
        """After an interrupt, forget a step that the worker was not told of."""
        if self.running and (self.worker is None or self.worker.has_ended):
            return  # it will be found lost
        if self.running and not self._worker().has_begun(self._turn):
            self.running = ()

    def _answer(self, *message: Any) -> Any:
        """Return the answer to a message that no environment can refuse.

        Raises:
            WorkerLostError: The worker is gone, or cannot answer.
        """
        try:
            return self._worker().answer(*message, timeout_s=self._timeout_s)
        except WorkerLostError:
            raise
        except Exception as error:
            raise WorkerLostError(f"its worker cannot answer: {format_error(error)}") from error

    def _worker(self) -> WorkerProcess:
        if self.worker is None:
            raise WorkerLostError("its worker process was lost")
        return self.worker

    def end(self) -> None:
        """End the worker at once, also one that is on its way."""
        while (revival := self._revival) is not None:
            if self.worker is not None:
                self.worker.kill()
            revival.join(0.05)
        if self.worker is not None:
            self.worker.end()
        self._seat.bell.close()
        self._shared = None


BUSY_S = 2.0
"""How long a step that is under way may take before `close` ends its worker."""


class Taken(NamedTuple):
    """A step of some rows that is about to be handed over.

    Attributes:
        shard: Whose rows.
        part: The step itself.
        is_lost: Whether it tells of episodes that went with a worker.
    """

    shard: WorkerShard
    part: MergedRows
    is_lost: bool


@final
class WorkerPool:
    """The shards of a vector.

    A worker that is lost, killed or ended for taking too long, ends the episodes of its rows.
    With `autoreset` a new one is started at once, which begins their next episodes; else when
    somebody resets them. Meanwhile the other workers go on.
    """

    def __init__(
        self,
        shards: Sequence[WorkerShard],
        books: RowState,
        board: TurnTable,
        bell: EventFd,
        *,
        looks: int,
        autoreset: bool,
        timeout_s: float | None,
    ) -> None:
        self.shards = list(shards)
        self._books = books
        self._board = board
        self._bell = bell
        self._looks = looks
        self._autoreset = autoreset
        self._timeout_s = timeout_s
        self._is_closed = False
        self._owner = os.getpid()

    @property
    def layout(self) -> Layout:
        """How observations make columns."""
        return self._books.layout

    def by_shard(self, rows: Mapping[int, Any]) -> Iterator[tuple[WorkerShard, dict[int, Any]]]:
        """Go through the shards that these rows are in, each with its own."""
        for shard in self.shards:
            part = {row: one for row, one in rows.items() if row in shard.rows}
            if part:
                yield shard, part

    def ask(self, shard: WorkerShard, *message: Any) -> Any:
        """Ask a worker something that changes nothing; a lost one is replaced first.

        Raises:
            EnvironmentLostError: None can be had.
        """
        failure: WorkerLostError | None = None
        for _ in range(2):  # a worker may be found lost only when it does not answer
            self._settle(shard)
            try:
                return shard.ask(*message)
            except WorkerLostError as loss:
                self.lose(shard, loss)
                failure = loss
        raise EnvironmentLostError(f"Environments {_span(shard.rows)}: {failure}.")

    def _settle(self, shard: WorkerShard) -> None:
        """Wait for a new worker, if the last was lost."""
        self._look_after(shard)
        if not shard.settle():
            self._revive(shard, {})
            shard.settle()

    def reset(self, wanted: Wanted) -> dict[int, ResetResult[Any] | Exception]:
        """Begin an episode in each of these; a failure stands in its place."""
        outcomes: dict[int, ResetResult[Any] | Exception] = {}
        waiting = []
        for shard, part in self.by_shard(wanted):
            self._look_after(shard)
            there = shard.settle()
            for row in part:
                shard.ends.pop(row, None)
                shard.fresh.pop(row, None)
            try:
                if there:
                    shard.tell_reset(part)
                else:
                    self._revive(shard, part)
                waiting.append((shard, part, shard.started if there else shard.revived))
            except WorkerLostError as loss:
                outcomes |= self._unbegun(shard, part, loss)
        for shard, part, outcome in waiting:
            try:
                outcomes |= outcome(part)
            except WorkerLostError as loss:
                outcomes |= self._unbegun(shard, part, loss)
        return outcomes

    def _look_after(self, shard: WorkerShard) -> None:
        """Find a worker lost that went while nobody asked anything of it."""
        if shard.worker is not None and not shard.is_reviving and shard.worker.is_gone:
            self.lose(shard, shard.worker.lost())

    def state(self, shard: WorkerShard) -> list[State]:
        """Return the state of each of a shard's environments.

        Raises:
            StateFailedError: They were lost, and nobody was told yet.
        """
        self._look_after(shard)
        try:
            if not shard.ends:
                self._settle(shard)
                states: list[State] = shard.ask("state")
                return states
        except WorkerLostError as loss:
            self.lose(shard, loss)
        cause = next((end.cause for end in shard.ends.values()), "no worker process can be had")
        raise StateFailedError(f"Environments {_span(shard.rows)}: {cause}.")

    def _unbegun(
        self, shard: WorkerShard, part: Wanted, loss: WorkerLostError
    ) -> dict[int, Exception]:
        self.lose(shard, loss)
        failure = f"The environment was lost while it was reset: {loss}."
        return {row: EnvironmentLostError(failure) for row in part}

    # Steps

    @property
    def is_calm(self) -> bool:
        """Whether every worker is there, idle, and nothing is to be told but of this step."""
        return not any(
            shard.running or shard.queue or shard.ends or shard.is_reviving or shard.worker is None
            for shard in self.shards
        )

    def step_all(self, actions: Sequence[Any] | None) -> None:
        """Let calm workers step every row.

        The actions are those of all rows of the vector; `None` says they are in their column.
        """
        for shard in self.shards:
            rows = shard.rows
            try:
                shard.step_all(None if actions is None else actions[rows.start : rows.stop])
            except WorkerLostError as loss:
                self.lose(shard, loss)

    def await_all(self) -> bool:
        """Wait for the step of all; return whether the shared columns hold all there is to it."""
        for shard in self.shards:
            while shard.running and not shard.is_done:
                self.wait([shard], None)
        return all(shard.running and shard.is_plain for shard in self.shards)

    def strike_all(self) -> None:
        """Forget a step of all that was handed over."""
        for shard in self.shards:
            shard.running = ()

    def send(self, actions: Mapping[int, Any]) -> None:
        """Let these rows take a step, as soon as their worker is free."""
        for shard, part in self.by_shard(actions):
            shard.queue |= part
            self._dispatch(shard)

    def dispatch(self) -> None:
        """Let free workers go on with what waits; who sent it may have been interrupted."""
        for shard in self.shards:
            self._dispatch(shard)

    def _dispatch(self, shard: WorkerShard) -> None:
        if shard.queue and not shard.running and not shard.is_reviving:
            try:
                shard.step_queued()
            except WorkerLostError as loss:
                self.lose(shard, loss)

    def collect(self, taken: Sequence[Taken]) -> Iterator[Taken]:
        """Go through the steps that are done and not taken yet."""
        held = {row for one in taken for row in one.part.rows}
        for shard in self.shards:
            try:
                if shard.is_done and shard.running[0] not in held:
                    yield Taken(shard, shard.take(), is_lost=False)
            except WorkerLostError as loss:
                self.lose(shard, loss)
            if shard.ends and not shard.is_reviving:
                rows = [row for row in shard.queue if row in shard.ends and row not in held]
                if rows:
                    yield Taken(shard, self._lost(shard, rows), is_lost=True)

    def _lost(self, shard: WorkerShard, rows: Sequence[int]) -> MergedRows:
        books = self._books
        fresh = shard.fresh
        return from_results(
            {row: with_autoreset(books.lost(row, shard.ends[row]), fresh.get(row)) for row in rows},
            books.layout,
        )

    def strike(self, taken: Taken) -> None:
        """Forget a step that was handed over, and let the worker go on with what waits."""
        shard = taken.shard
        if taken.is_lost:
            for row in taken.part.rows:
                shard.take_fresh(row)
                for kept in (shard.queue, shard.ends):
                    kept.pop(row, None)
        else:
            shard.running = ()
        self._dispatch(shard)

    def wait(self, busy: Sequence[WorkerShard], timeout_s: float | None) -> None:
        """Wait until one of these shards is done, or one is revived, or the time is up."""
        awaited, words = [shard.awaited for shard in busy], self._board.words
        for _ in range(self._looks if busy else 1):
            for index, turn in awaited:
                if words[index] >= turn:
                    return
        self._sleep([shard.worker for shard in busy if shard.worker is not None], timeout_s)

    def _sleep(self, workers: Sequence[WorkerProcess], timeout_s: float | None) -> None:
        """Sleep until a worker rings, a new one is there, or one is found lost."""
        left = timeout_s
        for shard in self.shards:
            if shard.running and shard.worker is not None and shard.worker.has_ended:
                self.lose(shard, shard.worker.lost())
                return
            if self._timeout_s is not None and shard.running:
                try:
                    allowed = shard.check_deadline(self._timeout_s)
                except WorkerLostError as loss:
                    self.lose(shard, loss)
                    return
                left = allowed if left is None else min(left, allowed)
        poll = select.poll()
        poll.register(self._bell.fileno(), select.POLLIN)
        for worker in workers:
            if not worker.has_ended:
                poll.register(worker.poll_fd(), select.POLLIN)
        heard = {fd for fd, _ in poll.poll(None if left is None else max(left, 0.0) * 1000 + 1)}
        if self._bell.fileno() in heard:
            self._bell.hush()
            return
        for shard in self.shards:
            if shard.worker is not None and shard.running and shard.worker.poll_fd() in heard:
                self.lose(shard, shard.worker.lost())

    def lose(self, shard: WorkerShard, loss: WorkerLostError) -> None:
        """Book a worker that is gone, and start a new one if an autoreset is due."""
        if shard.worker is not None:
            shard.worker.end()
            shard.worker = None
        shard.queue = {**dict.fromkeys(shard.running), **shard.queue}
        shard.running = ()
        shard.ends |= {row: end_of(loss, row) for row in shard.rows if row in self._books.live}
        if self._autoreset and not self._is_closed:
            self._revive(shard, {row: {} for row in shard.ends})

    def _revive(self, shard: WorkerShard, wanted: Wanted) -> None:
        shard.revive(wanted, self._bell.ring)

    def mend(self) -> set[int]:
        """After an interrupt, return the rows whose step can still be received."""
        owed: set[int] = set()
        for shard in self.shards:
            shard.mend()
            owed.update(shard.running, shard.queue)
        return owed

    def close(self) -> list[Exception]:
        """Let every worker close its environments and end; return what failed."""
        if not self._bell.fds or self._owner != os.getpid():
            return []  # it is closed, or belongs to the process that this one was forked from
        self._is_closed = True
        failures: list[Exception] = []
        deadline = time.monotonic() + BUSY_S
        try:
            idle = [shard.worker for shard in self.shards if self._comes_to_rest(shard, deadline)]
            for worker in idle:
                if worker is not None:
                    worker.tell_close()
            deadline = time.monotonic() + CLOSE_S
            for worker in idle:
                if worker is not None:
                    failure = worker.await_close(deadline - time.monotonic())
                    failures += [] if failure is None else [failure]
        finally:
            for shard in self.shards:
                shard.end()
            self._bell.close()
            self._board.close()
        return failures

    def _comes_to_rest(self, shard: WorkerShard, deadline: float) -> bool:
        """Wait a while for a step that is under way; return whether its worker is idle."""
        worker = shard.worker
        if worker is None or worker.has_ended or shard.is_reviving:
            return False
        poll = select.poll()
        poll.register(self._bell.fileno(), select.POLLIN)
        poll.register(worker.poll_fd(), select.POLLIN)
        while worker.is_busy:
            left = deadline - time.monotonic()
            if left <= 0 or any(fd == worker.poll_fd() for fd, _ in poll.poll(left * 1000)):
                return False
            self._bell.hush()
        try:
            if shard.running:
                shard.take()
        except WorkerLostError:
            return False
        return True


def _span(rows: range) -> str:
    return str(rows.start) if len(rows) == 1 else f"{rows.start} to {rows.stop - 1}"
