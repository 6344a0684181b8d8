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
POLL_S = 0.2
"""How long one wait takes at most: a Ctrl-C that arrives just before a wait does not end it."""

Jobs: TypeAlias = "queue.SimpleQueue[Callable[[], None] | None]"
AnyDriver: TypeAlias = SyncDriver | LoopDriver


@final
class ThreadCallExecutor:
    """Runs environments in threads; from its first reset on each stays in one thread.

    sqlite connections, event loops and GPU contexts depend on that: open them in `reset`. Up to
    `max_threads` environments, `MAX_THREADS` by default, have a thread of their own; beyond that
    they share. If it is dropped without `close`, its threads close their environments and end.
    Each call of an author's may take `timeout_s` seconds, if it is async; nothing can interrupt
    plain functions.
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
        self._shared = _SharedOutcomes()
        self.done = self._shared.done
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
        """Run one call in its environment's thread, after those that are queued already."""
        method = getattr(self._drivers[call.env_index], call.method)
        job = partial(_run, call.number, partial(method, *call.args, **call.keywords), self._shared)
        self._jobs[call.env_index % len(self._jobs)].put(job)

    def wait(self, count: int, timeout_s: float | None) -> None:
        """Wait until there are `count` outcomes, or the time is up."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        shared = self._shared
        while not shared.news.empty():
            shared.news.get()  # left over from an earlier wait
        shared.awaited = count  # before the first check: an outcome after it wakes us
        while len(shared.done) < count:
            left = POLL_S if deadline is None else min(POLL_S, deadline - time.monotonic())
            if left <= 0:
                break
            with contextlib.suppress(queue.Empty):
                shared.news.get(timeout=left)
        shared.awaited = math.inf

    def abandon(self, numbers: Collection[int]) -> None:
        """Do not begin these calls, if they have not begun. A thread cannot be interrupted."""
        self._shared.abandoned.update(number for number in numbers if number not in self.done)

    def close(self) -> None:
        """Have every thread finish its step, close its environments, and end."""
        if self._unclosed.disarm():
            _dismiss(self._jobs, self._drivers, self._failures)
        for thread in self._threads:
            thread.join()
        failures = [self._failures.get() for _ in range(self._failures.qsize())]
        if failures:
            raise failures[0]


@final
class _SharedOutcomes:
    """What threads and their caller share. It needs no lock: each change is one operation.

    Attributes:
        done: Outcomes by number of call.
        awaited: The number of outcomes that the caller waits for.
        news: Gets an item when there are so many.
        abandoned: The numbers of abandoned calls, until they are taken from the queue.
    """

    def __init__(self) -> None:
        self.done: dict[int, Outcome] = {}
        self.awaited: float = math.inf
        self.news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.abandoned: set[int] = set()


def _run(number: int, call: Callable[[], Outcome], shared: _SharedOutcomes) -> None:
    if number in shared.abandoned:
        shared.abandoned.discard(number)
        return
    try:
        outcome = call()
    except BaseException as error:  # noqa: BLE001 - raised where it is awaited
        outcome = error
    shared.done[number] = outcome
    shared.abandoned.discard(number)
    if len(shared.done) >= shared.awaited:
        shared.news.put(None)


def _work(jobs: Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # a thread that waits for the next job keeps nothing alive


def _dismiss(
    jobs: list[Jobs], drivers: list[AnyDriver], failures: queue.SimpleQueue[BaseException]
) -> None:
    """Have every thread close its environments, and end."""
    for i, driver in enumerate(drivers):
        jobs[i % len(jobs)].put(partial(_close, driver, failures))
    for each in jobs:
        each.put(None)


def _close(driver: AnyDriver, failures: queue.SimpleQueue[BaseException]) -> None:
    try:
        driver.close()
    except BaseException as error:  # noqa: BLE001 - the others must be closed too
        failures.put(error)
