"""`mode="threads"`: a vector's environments in threads, for steps that wait on something."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeAlias, final

from envweave.lifetime import AtExit, CloseGuard
from envweave.session import LoopDriver, Session, SyncDriver
from envweave.vector.concurrent import Outcome, QueuedCall

MAX_THREADS = 256
LOOK_UP_S = 0.2
"""How long to wait at a time: a Ctrl-C that comes just before a wait does not end it."""

Jobs: TypeAlias = "queue.SimpleQueue[Callable[[], None] | None]"
AnyDriver: TypeAlias = SyncDriver | LoopDriver


@final
class ThreadCallExecutor:
    """Runs environments in threads; from its first reset on each stays in one thread.

    sqlite connections, event loops and GPU contexts care about that: open them in `reset`. Up to
    `max_threads` environments, `MAX_THREADS` by default, have a thread of their own; beyond that
    they share. A crew that is dropped without `close` is told of with a `ResourceWarning`; its
    threads close their environments and end. Each call of an author's may take `timeout_s`
    seconds, if it is async; nothing can interrupt plain functions.
    """

    def __init__(
        self,
        sessions: list[Session],
        timeout_s: float | None = None,
        max_threads: int | None = None,
    ) -> None:
        self._drivers: list[AnyDriver] = [
            LoopDriver(session, timeout_s) if session.interface.is_async else SyncDriver(session)
            for session in sessions
        ]
        self._board = _TurnBoard()
        self.done = self._board.done
        self._jobs: list[Jobs] = [
            queue.SimpleQueue() for _ in range(min(len(sessions), max_threads or MAX_THREADS))
        ]
        self._failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unclosed = CloseGuard(
            self,
            partial(_dismiss, self._jobs, self._drivers, self._failures),
            f"A vector of {len(sessions)} environments in {len(self._jobs)} threads was dropped "
            "without close(). Use it in a `with` block, or close it.",
            at_exit=AtExit.NOTHING,  # the threads are daemons, and end anyway
        )
        for i, jobs in enumerate(self._jobs):
            thread = threading.Thread(
                target=_work, args=(jobs,), name=f"envweave-vector-{i}", daemon=True
            )
            try:
                thread.start()
            except BaseException:
                self._unclosed.disarm()
                for started in self._jobs[:i]:
                    started.put(None)
                raise
            self._threads.append(thread)

    def run(self, call: QueuedCall) -> None:
        """Run one call in its environment's thread, after those that are there already."""
        method = getattr(self._drivers[call.env_index], call.method)
        job = partial(_run, call.number, partial(method, *call.args, **call.keywords), self._board)
        self._jobs[call.env_index % len(self._jobs)].put(job)

    def wait(self, count: int, timeout_s: float | None) -> None:
        """Wait until `count` outcomes are there, or the time is up."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        board = self._board
        while not board.news.empty():
            board.news.get()  # what was new to an earlier wait
        board.awaited = count  # before the first look: who comes after it wakes us
        while len(board.done) < count:
            left = LOOK_UP_S if deadline is None else min(LOOK_UP_S, deadline - time.monotonic())
            if left <= 0:
                break
            with contextlib.suppress(queue.Empty):
                board.news.get(timeout=left)
        board.awaited = math.inf

    def abandon(self, numbers: Collection[int]) -> None:
        """Do not begin these calls, if they have not begun. A thread cannot be interrupted."""
        self._board.abandoned.update(number for number in numbers if number not in self.done)

    def close(self) -> None:
        """Let every thread finish its step, close its environments, and end."""
        if self._unclosed.disarm():
            _dismiss(self._jobs, self._drivers, self._failures)
        for thread in self._threads:
            thread.join()
        failures = [self._failures.get() for _ in range(self._failures.qsize())]
        if failures:
            raise failures[0]


@final
class _TurnBoard:
    """What threads and their caller share. It needs no lock: each change is one operation.

    Attributes:
        done: Outcomes by number of call.
        awaited: With how many outcomes there is news.
        news: An item, whenever there is.
        abandoned: The numbers of calls that nobody waits for, until their turn has come.
    """

    def __init__(self) -> None:
        self.done: dict[int, Outcome] = {}
        self.awaited: float = math.inf
        self.news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.abandoned: set[int] = set()


def _run(number: int, call: Callable[[], Outcome], board: _TurnBoard) -> None:
    if number in board.abandoned:
        board.abandoned.discard(number)
        return
    try:
        outcome = call()
    except BaseException as error:  # noqa: BLE001 - handed to whoever waits
        outcome = error
    board.done[number] = outcome
    board.abandoned.discard(number)
    if len(board.done) >= board.awaited:
        board.news.put(None)


def _work(jobs: Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # while a thread waits for the next one it holds on to nothing


def _dismiss(
    jobs: list[Jobs], drivers: list[AnyDriver], failures: queue.SimpleQueue[BaseException]
) -> None:
    """Let every thread close its environments, and end."""
    for i, driver in enumerate(drivers):
        jobs[i % len(jobs)].put(partial(_close, driver, failures))
    for each in jobs:
        each.put(None)


def _close(driver: AnyDriver, failures: queue.SimpleQueue[BaseException]) -> None:
    try:
        driver.close()
    except BaseException as error:  # noqa: BLE001 - the others must be closed too
        failures.put(error)
