"""All the workers of a vector: waited for at once, found lost, and replaced."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

from envweave.errors import EnvironmentLostError, StateFailedError
from envweave.transports.process.board import Bell, Board
from envweave.transports.process.books import Books
from envweave.transports.process.gathering import Gathered, from_results
from envweave.transports.process.losses import end_of
from envweave.transports.process.place import CLOSE_S, WorkerLostError, WorkerProcess
from envweave.transports.process.shard import Shard
from envweave.transports.trail import then
from envweave.types import ResetResult, State
from envweave.vector.choices import Wanted
from envweave.vector.columns import Layout

BUSY_S = 2.0
"""How long a step that is under way may take before `close` ends its worker."""


class Taken(NamedTuple):
    """A step of some rows that is about to be handed over.

    Attributes:
        shard: Whose rows.
        part: The step itself.
        is_lost: Whether it tells of episodes that went with a worker.
    """

    shard: Shard
    part: Gathered
    is_lost: bool


@final
class Fleet:
    """The shards of a vector.

    A worker that is lost, killed or ended for taking too long, ends the episodes of its rows.
    With `autoreset` a new one is started at once, which begins their next episodes; else when
    somebody resets them. Meanwhile the other workers go on.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        books: Books,
        board: Board,
        bell: Bell,
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

    def by_shard(self, rows: Mapping[int, Any]) -> Iterator[tuple[Shard, dict[int, Any]]]:
        """Go through the shards that these rows are in, each with its own."""
        for shard in self.shards:
            part = {row: one for row, one in rows.items() if row in shard.rows}
            if part:
                yield shard, part

    def ask(self, shard: Shard, *message: Any) -> Any:
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

    def _settle(self, shard: Shard) -> None:
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

    def _look_after(self, shard: Shard) -> None:
        """Find a worker lost that went while nobody asked anything of it."""
        if shard.worker is not None and not shard.is_reviving and shard.worker.is_gone:
            self.lose(shard, shard.worker.lost())

    def state(self, shard: Shard) -> list[State]:
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

    def _unbegun(self, shard: Shard, part: Wanted, loss: WorkerLostError) -> dict[int, Exception]:
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

    def _dispatch(self, shard: Shard) -> None:
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

    def _lost(self, shard: Shard, rows: Sequence[int]) -> Gathered:
        books = self._books
        fresh = shard.fresh
        return from_results(
            {row: then(books.lost(row, shard.ends[row]), fresh.get(row)) for row in rows},
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

    def wait(self, busy: Sequence[Shard], timeout_s: float | None) -> None:
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

    def lose(self, shard: Shard, loss: WorkerLostError) -> None:
        """Book a worker that is gone, and start a new one if an autoreset is due."""
        if shard.worker is not None:
            shard.worker.end()
            shard.worker = None
        shard.queue = {**dict.fromkeys(shard.running), **shard.queue}
        shard.running = ()
        shard.ends |= {row: end_of(loss, row) for row in shard.rows if row in self._books.live}
        if self._autoreset and not self._is_closed:
            self._revive(shard, {row: {} for row in shard.ends})

    def _revive(self, shard: Shard, wanted: Wanted) -> None:
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

    def _comes_to_rest(self, shard: Shard, deadline: float) -> bool:
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
