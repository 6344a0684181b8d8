"""`mode="threads"`: a vector's environments in threads, for steps that wait on something."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, final

from envweave.session import LoopDriver, Session, SyncDriver
from envweave.transports.apart import Outcome

MAX_THREADS = 256


@final
class ThreadCrew:
    """Runs environments in threads; each environment stays in one thread for its whole life.

    sqlite connections, event loops and GPU contexts care about that. Up to `MAX_THREADS`
    environments have a thread of their own; beyond that they share.
    """

    def __init__(self, sessions: list[Session]) -> None:
        self._drivers = [
            LoopDriver(session) if session.interface.is_async else SyncDriver(session)
            for session in sessions
        ]
        count = min(len(sessions), MAX_THREADS)
        self._jobs: list[queue.SimpleQueue[Callable[[], None] | None]] = [
            queue.SimpleQueue() for _ in range(count)
        ]
        self._done: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        self._ready: list[tuple[int, Outcome]] = []
        self._is_closed = False
        self._threads = [
            threading.Thread(target=_work, args=(jobs,), name=f"envweave-vector-{i}", daemon=True)
            for i, jobs in enumerate(self._jobs)
        ]
        for thread in self._threads:
            thread.start()

    def reset(self, index: int, keywords: Mapping[str, Any]) -> None:
        """Let one environment begin an episode."""
        self._put(index, partial(self._drivers[index].reset, **keywords))

    def step(self, index: int, action: Any) -> None:
        """Let one environment take a step."""
        self._put(index, partial(self._drivers[index].step, action))

    def _put(self, index: int, call: Callable[[], Outcome]) -> None:
        def job() -> None:
            try:
                outcome = call()
            except Exception as error:  # noqa: BLE001 - handed to whoever collects
                outcome = error
            self._done.put((index, outcome))

        self._jobs[index % len(self._jobs)].put(job)

    def collect(self, count: int, timeout_s: float | None) -> list[tuple[int, Outcome]]:
        """Wait for `count` outcomes, or until the time is up."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        ready = self._ready  # kept over an interrupt
        try:
            while len(ready) < count:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                ready.append(self._done.get(timeout=left))
            while True:
                ready.append(self._done.get_nowait())
        except queue.Empty:
            self._ready = []
            return ready

    def close(self) -> None:
        """Let every thread finish its step, close its environments, and end."""
        if self._is_closed:
            return
        self._is_closed = True
        failures: queue.SimpleQueue[Exception] = queue.SimpleQueue()
        for i, driver in enumerate(self._drivers):
            self._jobs[i % len(self._jobs)].put(partial(_close, driver, failures))
        for jobs in self._jobs:
            jobs.put(None)
        for thread in self._threads:
            thread.join()
        if not failures.empty():
            raise failures.get()


def _close(driver: SyncDriver | LoopDriver, failures: queue.SimpleQueue[Exception]) -> None:
    try:
        driver.close()
    except Exception as error:  # noqa: BLE001 - the others must be closed too
        failures.put(error)


def _work(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
