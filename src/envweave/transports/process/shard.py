"""A worker's share of a vector, as the trainer sees it: its rows, its turn, its losses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from envweave.errors import EnvironmentLostError, EnvWeaveError, in_words
from envweave.session.plan import Position
from envweave.transports.process.board import STEP_ALL
from envweave.transports.process.gathering import Gathered, from_worker
from envweave.transports.process.memory import Memory, SharedColumns
from envweave.transports.process.place import Seat, WorkerLostError, WorkerProcess
from envweave.transports.process.vector_host import Hello, Rest, Started
from envweave.transports.trail import passed_over
from envweave.types import EpisodeEnd, ResetResult
from envweave.vector.choices import Wanted

HOST = "envweave.transports.process.vector_host:VectorHost"

ATTEMPTS = 3
"""How often to start a new worker in place of a lost one, if the new ones are lost too."""


@final
class Shard:
    """Some rows of a vector, and the worker that runs them.

    Attributes:
        rows: Which rows.
        worker: The process that runs them; `None` after it was lost.
        running: The rows whose step is under way.
        queue: The actions that wait for the worker to come back.
        ends: How the episodes ended that went with a worker, until somebody is told.
        fresh: What came of the resets that a new worker began with.
    """

    def __init__(self, seat: Seat, rows: range, definition: bytes, timeout_s: float | None) -> None:
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
        self._memory: Memory | None = None
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

    def greet(self) -> Hello:
        """Wait until the worker's environments are made.

        Raises:
            WorkerLostError: It ended first.
            EnvWeaveError: One of them could not be made.
        """
        hello: Hello = self._worker().answer()
        return hello

    def share(self, shared: SharedColumns, memory: Memory, fill: Callable[[int], Any]) -> None:
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
                failure = str(error) if ours else in_words(error)
                if not isinstance(error, WorkerLostError) or error.offender is not None:
                    break  # it would fail again
        words = f"a new worker process could not take over: {failure}"
        return {row: EnvironmentLostError(words) for row in wanted}

    def _start_over(self, wanted: Wanted) -> dict[int, ResetResult[Any] | Exception]:
        self.launch()
        self.greet()
        self._untold.clear()  # they went with the last worker
        self.ask("go_on_from", self._positions)
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
                self._positions[late] = passed_over(self._positions[late], seed)
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

    def take(self) -> Gathered:
        """Return the step that is done.

        Raises:
            WorkerLostError: The worker is gone.
        """
        worker = self._worker()
        rest: Rest | None = self._answer(*self._told) if worker.has_more else None
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
            raise WorkerLostError(f"its worker cannot answer: {in_words(error)}") from error

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
