"""`mode="async"` and `mode="threads"`: environments that step at once, and return one by one.

`ConcurrentTransport` keeps track of the calls; a `CallExecutor` runs them: `LoopCallExecutor` on an
event loop, `ThreadCallExecutor` in threads. Every call has a number. A caller that is interrupted
while it waits for a reset has abandoned those calls, and their outcomes are dropped by number;
steps are kept until they are received.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, final

from envweave.errors import ActionError, EnvWeaveError
from envweave.lifetime import AtExit, CloseGuard
from envweave.session import AsyncDriver, LoopDriver, PrivateLoop, Session, SyncDriver
from envweave.session.asyncio_support import new_fast_loop
from envweave.session.session import SessionSnapshot
from envweave.types import ResetResult, State, Tasks
from envweave.vector.arguments import ResetKwargs
from envweave.vector.batch import RowStatus, StepBatch, batch_of
from envweave.vector.columns import Columns, Layout, Listed, replaced
from envweave.vector.serial import admit_each, check_each, first_observations, row_status

Outcome: TypeAlias = Any
"""A result, an author's state, or what was raised instead."""


class QueuedCall(NamedTuple):
    """One call on one environment.

    Attributes:
        number: The number of the call, counted over the vector.
        env_index: The environment that it is for.
        method: `"reset"`, `"step"`, `"state"`, `"snapshot"` or `"restore"`.
        args: The positional arguments of the method.
        keywords: Its keyword arguments.
    """

    number: int
    env_index: int
    method: str
    args: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = {}


class CallExecutor(Protocol):
    """Runs the calls of many environments at once, each environment's one after the other.

    Every call has an outcome, even if it raises a `BaseException`.
    """

    done: dict[int, Outcome]
    """The outcomes that were not taken yet, by number of call, the oldest first."""

    def run(self, call: QueuedCall) -> None:
        """Schedule one call; its outcome is put into `done`."""

    def wait(self, count: int, timeout_s: float | None) -> None:
        """Return when `done` holds `count` outcomes, or after `timeout_s` seconds."""

    def abandon(self, numbers: Collection[int]) -> None:
        """Stop these calls where possible; their outcomes are not needed."""

    def close(self) -> None:
        """Close every environment, and leave nothing behind. May be called twice."""


@final
class ConcurrentTransport:
    """Steps many sessions at once; a slow one delays only a call that waits for all."""

    def __init__(
        self, sessions: Sequence[Session], make_executor: Callable[[list[Session]], CallExecutor]
    ) -> None:
        self.sessions = list(sessions)
        self._executor = make_executor(self.sessions)
        self._numbers = itertools.count()
        self._steps: dict[
            int, int
        ] = {}  # the environment of each step not received yet, by number of call
        self._layout: Layout = Listed()
        self.columns: Columns = None
        self.interface = self.sessions[0].interface

    @property
    def tasks(self) -> Tasks | None:
        """What episodes can be about."""
        return self.sessions[0].tasks

    @property
    def receivable(self) -> set[int]:
        """The environments whose step was not received yet."""
        return set(self._steps.values())

    def fix(self, layout: Layout, observations: Sequence[Any]) -> None:
        """Fix the columns, at the first reset of all."""
        self._layout = layout
        self.columns = layout.gather(observations)
        for session in self.sessions:
            session.check_observation = layout.check

    def check_reset(self, resets: ResetKwargs) -> None:
        """Refuse what `reset` would refuse; nothing changes."""
        check_each(self.sessions, resets)

    def reset(self, resets: ResetKwargs) -> dict[int, ResetResult[Any] | Exception]:
        """Begin an episode in each of these; a failure takes the place of its result."""
        return self._begin(
            QueuedCall(next(self._numbers), i, "reset", (), keywords)
            for i, keywords in resets.items()
        )

    def restore(self, points: Mapping[int, Any]) -> dict[int, ResetResult[Any] | Exception]:
        """Continue from a point in each of these rows; a failure takes the place of its result."""
        return self._begin(
            QueuedCall(next(self._numbers), i, "restore", (point,)) for i, point in points.items()
        )

    def _begin(self, calls: Iterable[QueuedCall]) -> dict[int, ResetResult[Any] | Exception]:
        calls = list(calls)
        results, ids = self._call_all(calls), [call.env_index for call in calls]
        outcomes: dict[int, ResetResult[Any] | Exception] = dict(zip(ids, results, strict=True))
        started = first_observations(outcomes)
        if self.columns is not None and started:
            self.columns = replaced(self.columns, started, self._layout)
        return outcomes

    def _call_all(self, calls: Iterable[QueuedCall]) -> list[Outcome]:
        """Run calls, wait for all of them, and return their outcomes."""
        env_indices: dict[int, int] = {}
        try:
            for call in calls:
                env_indices[call.number] = call.env_index
                self._executor.run(call)
            self._wait(env_indices, len(env_indices), None)
        except BaseException:
            self._executor.abandon(env_indices)
            raise
        outcomes = [self._executor.done.pop(number) for number in env_indices]
        for i, outcome in zip(env_indices.values(), outcomes, strict=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, EnvWeaveError):
                raise _named(i, outcome)
        return outcomes

    def row_status(self, ids: Sequence[int]) -> list[RowStatus]:
        """Return the status of these environments."""
        return [row_status(self.sessions[i]) for i in ids]

    def admit(self, ids: Sequence[int], actions: Sequence[Any]) -> list[Any]:
        """Return the actions in the form for the authors' `step`, or refuse; nothing changes."""
        return admit_each([self.sessions[i] for i in ids], actions)

    def step(self, actions: Sequence[Any]) -> StepBatch:
        """Step each environment once."""
        self.send(range(len(self.sessions)), actions)
        self._wait(self._steps, len(self._steps), None)
        return self._take(sorted(self._steps))

    def send(self, ids: Sequence[int], actions: Sequence[Any]) -> None:
        """Have these environments take a step each."""
        for i, action in zip(ids, actions, strict=True):
            call = QueuedCall(next(self._numbers), i, "step", (action,))
            self._executor.run(call)  # first: every step that is tracked will have an outcome
            self._steps[call.number] = i

    def recv(self, min_ready: int, timeout_s: float | None) -> StepBatch:
        """Wait for the first `min_ready` steps; return all that are done, the oldest first."""
        return self._take(self._wait(self._steps, min_ready, timeout_s))

    def _wait(self, numbers: Container[int], count: int, timeout_s: float | None) -> list[int]:
        """Wait until `count` of these calls are done; return those that are."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while len(ready := self._finished(numbers)) < count:
            left = None if timeout_s is None else max(0.0, deadline - time.monotonic())
            self._executor.wait(count, left)
            if time.monotonic() >= deadline:
                return self._finished(numbers)
        return ready

    def _finished(self, numbers: Container[int]) -> list[int]:
        """Return which of these calls are done, and drop the outcomes of abandoned ones."""
        ready = []
        for number in list(self._executor.done):
            if number in numbers:
                ready.append(number)
            elif number not in self._steps:
                del self._executor.done[number]
        return ready

    def _take(self, numbers: Sequence[int]) -> StepBatch:
        """Make a batch of steps that are done, and forget them."""
        done = self._executor.done
        ids, results = [], []
        for number in numbers:
            outcome, session = done[number], self.sessions[self._steps[number]]
            if isinstance(outcome, ActionError):
                outcome = session.refused(outcome)
            elif isinstance(outcome, BaseException):
                # The others stay, for the next recv().
                raise _named(self._steps.pop(number), outcome)
            elif outcome.ready is None:
                session.info = outcome.info
            ids.append(self._steps[number])
            results.append(outcome)
        shown = {i: result.current for i, result in zip(ids, results, strict=True)}
        self.columns = replaced(self.columns, shown, self._layout)
        batch = batch_of(results, ids, self._layout)
        for number in numbers:
            del self._steps[number], done[number]
        return batch

    def state(self) -> list[State]:
        """Return the state of each environment."""
        everyone = range(len(self.sessions))
        states = self._call_all([QueuedCall(next(self._numbers), i, "state") for i in everyone])
        for outcome in states:
            if isinstance(outcome, EnvWeaveError):
                raise outcome
        return states

    def snapshot(self, row: int) -> SessionSnapshot:
        """Return a point of the episode running in a row."""
        (outcome,) = self._call_all([QueuedCall(next(self._numbers), row, "snapshot")])
        if isinstance(outcome, EnvWeaveError):
            raise outcome
        point: SessionSnapshot = outcome
        return point

    def close(self) -> None:
        """Close every environment; the first failure is raised when all are closed."""
        self._executor.close()


def _named(index: int, error: BaseException) -> BaseException:
    error.add_note(f"Raised in environment {index} of the vector.")
    return error


@final
class LoopCallExecutor:
    """Runs every environment as a task of one loop, which runs while a caller waits.

    Each call of an author's may take `timeout_s` seconds; the time between waits is not counted.
    """

    def __init__(self, sessions: list[Session], timeout_s: float | None = None) -> None:
        self._loop = PrivateLoop(is_patient=timeout_s is None, new_loop=new_fast_loop)
        self._drivers = [AsyncDriver(one, timeout_s, self._loop.idle_s) for one in sessions]
        self._calls: deque[QueuedCall] = deque()  # that have no task yet
        self._tasks: dict[int, asyncio.Task[None]] = {}  # that run, by number of call
        self._last: dict[int, asyncio.Task[None]] = {}  # the last of each environment
        self._progress: asyncio.Event | None = None
        self._awaited = 0  # the number of outcomes that sets `_progress`
        self.done: dict[int, Outcome] = {}

    def run(self, call: QueuedCall) -> None:
        """Schedule one call; it runs as soon as a caller waits."""
        self._calls.append(call)

    def wait(self, count: int, timeout_s: float | None) -> None:
        """Run the loop until there are `count` outcomes, or the time is up."""
        self._loop.run(self._run_until(count, timeout_s))

    async def _run_until(self, count: int, timeout_s: float | None) -> None:
        progress = self._progress = asyncio.Event()
        self._awaited = count
        loop = asyncio.get_running_loop()  # a system call, in Python 3.11
        while self._calls:
            self._start(self._calls.popleft(), loop)
        try:
            async with asyncio.timeout(timeout_s):
                while len(self.done) < count:
                    progress.clear()
                    await progress.wait()
        except TimeoutError:
            return

    def _start(self, call: QueuedCall, loop: asyncio.AbstractEventLoop) -> None:
        before = self._last.get(call.env_index)
        task = loop.create_task(self._run(call, before))
        self._tasks[call.number] = self._last[call.env_index] = task

    async def _run(self, call: QueuedCall, before: asyncio.Task[None] | None) -> None:
        """Run one call and deliver its outcome, including an exception."""
        method = getattr(self._drivers[call.env_index], call.method)
        try:
            if before is not None and not before.done():
                await asyncio.wait([before])
            outcome = await method(*call.args, **call.keywords)
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            outcome = error
        # No callback of the task: with many short steps that is a tenth of the loop's work.
        self._tasks.pop(call.number, None)
        self.done[call.number] = outcome
        if len(self.done) >= self._awaited and self._progress is not None:
            self._progress.set()

    def abandon(self, numbers: Collection[int]) -> None:
        """Cancel these calls. The next one on the same environment waits until they are over."""
        self._calls = deque(call for call in self._calls if call.number not in numbers)
        for number in numbers:
            if (task := self._tasks.pop(number, None)) is not None:
                task.cancel()

    def close(self) -> None:
        """Cancel what runs, close every environment and the loop."""
        if self._loop.is_closed:
            return
        self._calls.clear()
        try:
            failures = self._loop.run(self._close_all())
        finally:
            self._loop.close()
        if failures:
            raise failures[0]

    async def _close_all(self) -> list[BaseException]:
        running = list(self._last.values())  # each of which waits for those before it
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        closed = await asyncio.gather(*[_failure(driver.close()) for driver in self._drivers])
        return [failure for failure in closed if failure is not None]


async def _failure(closing: Awaitable[None]) -> BaseException | None:
    try:
        await closing
    except BaseException as error:  # noqa: BLE001 - the others must be closed too
        return error
    return None


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
        news: Gets an item when `awaited` outcomes are done.
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
