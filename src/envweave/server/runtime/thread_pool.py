"""A thread pool that pins each environment to a thread, so that none holds up the others.

A `WorkerThread` is one thread with its queue of calls. An environment has a `ThreadAffinity`, which
names its thread: sqlite, CUDA and event loops depend on the calling thread. An environment stays on
its thread, with two exceptions. If a neighbor's call takes long, that call keeps the thread, and
calls behind it move to another one. And environments that turn out to be slow after they were
packed onto one thread are spread, each at its next `reset`. An environment should open what is
bound to a thread in `reset`.

A server's own event loop (`event_loop.py`) runs the calls of quick environments itself, so that no
thread is woken for them: to the pool it is a thread like the others. If one of these calls takes
long, the loop leaves the thread, which goes on as an ordinary one.

A call past its deadline cannot be stopped. Its thread is abandoned: it gets no more calls, the call
counts as stuck until it returns, and then the thread ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, final

from envweave.server.event_loop import ServerEventLoop

logger = logging.getLogger("envweave.server")

LONG_S = 0.05
"""A call that takes longer than this blocks its thread, and other environments move away."""


class CallTimeoutError(Exception):
    """A call exceeded its deadline and still runs. Never leaves the server's own modules."""


class PoolClosedError(Exception):
    """The pool is closed. Never leaves the server's own modules."""


@final
class ThreadAffinity:
    """The thread of one environment; `None` before its first call."""

    __slots__ = ("thread",)

    def __init__(self) -> None:
        self.thread: WorkerThread | None = None


class ThreadJob(ABC):
    """One call, or several, on the way to a thread and back.

    Args:
        affinity: The environment that it calls.
        steps: Number of steps in it, from which the speed of these environments is estimated.
        timeout_s: Time limit, from when the thread begins with it; `None` for none.

    Attributes:
        affinity: The environment that it calls.
        since: When the thread began with it; 0.0 before.
        is_late: Whether it exceeded its deadline and was abandoned.
        steps: Number of steps in it.
        timeout_s: Its time limit.
        timer: Ends it at its deadline.
        thread: The thread it was submitted to.
    """

    __slots__ = (
        "_error", "_outcome", "_taken_s", "affinity", "is_late", "since", "steps", "thread",
        "timeout_s", "timer",
    )  # fmt: skip

    def __init__(self, affinity: ThreadAffinity, steps: int, timeout_s: float | None) -> None:
        self.affinity = affinity
        self.steps = steps
        self.timeout_s = timeout_s
        self.since = 0.0
        self.is_late = False
        self.timer: asyncio.TimerHandle | None = None
        self.thread: WorkerThread
        self._outcome: Any = None
        self._error: BaseException | None = None
        self._taken_s = 0.0

    @abstractmethod
    def is_of(self, affinity: ThreadAffinity) -> bool:
        """Whether it calls this environment."""

    @abstractmethod
    def call(self) -> Any:
        """Call the author's code, in the thread."""

    @property
    @abstractmethod
    def is_answered(self) -> bool:
        """Whether nobody waits for the outcome any more."""

    @abstractmethod
    def deliver(self, outcome: Any) -> None:
        """Deliver what the call returned, on the loop. Raises nothing."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Deliver what the call raised, on the loop. Raises nothing."""

    @abstractmethod
    def on_abandoned(self, outcome: Any) -> None:
        """Handle the outcome, on the loop, if the job was answered before; see `is_late`."""

    @abstractmethod
    def split(self) -> None:
        """It takes long: move the calls in it that have not begun to other threads."""

    def run(self) -> None:
        """Run the call in this thread, and store its outcome."""
        thread = self.thread
        self.since = began = monotonic()
        thread.job = self
        try:
            if not self.is_late:
                self._outcome = self.call()
        except BaseException as error:  # noqa: BLE001 - delivered to whoever waits for it
            self._error = error
        thread.job = None
        self._taken_s = monotonic() - began

    def finish(self) -> None:
        """Deliver the outcome of a call that the loop has run itself."""
        thread = self.thread
        thread.pool.complete(thread, self, self._outcome, self._error, self._taken_s)

    def leave_behind(self, thread: threading.Thread) -> None:
        """Go on without the loop, which has left this thread: the call takes long."""
        self.thread.pool.leave_behind(self.thread, thread, self)

    def serve_behind(self) -> None:
        """Hand in the outcome, and serve further calls in this thread."""
        self.post()
        self.thread.work()

    def post(self) -> bool:
        """Hand in the outcome, from a thread; return whether anyone is left to hand it to."""
        thread = self.thread
        outcome, self._outcome = self._outcome, None
        error, self._error = self._error, None
        return thread.pool.post(thread, self, outcome, error, self._taken_s)


@final
class FutureJob(ThreadJob):
    """A call whose outcome a future receives.

    Args:
        affinity: The environment that it calls.
        function: The call.
        future: Receives the outcome.
        when_abandoned: Called with the outcome if the future was done before (`None` if the call
            raised), and whether that is because the call was late.
        steps: Number of steps in it.
        timeout_s: Its time limit.
    """

    __slots__ = ("_function", "_future", "_when_abandoned")

    def __init__(
        self,
        affinity: ThreadAffinity,
        function: Callable[[], Any],
        future: asyncio.Future[Any],
        when_abandoned: Callable[[Any, bool], None] | None,
        *,
        steps: int,
        timeout_s: float | None,
    ) -> None:
        super().__init__(affinity, steps, timeout_s)
        self._function = function
        self._future = future
        self._when_abandoned = when_abandoned

    def is_of(self, affinity: ThreadAffinity) -> bool:
        """Whether it calls this environment."""
        return affinity is self.affinity

    def call(self) -> Any:
        """Call the function."""
        return self._function()

    @property
    def is_answered(self) -> bool:
        """Whether the future is done."""
        return self._future.done()

    def deliver(self, outcome: Any) -> None:
        """Set the result of the future."""
        self._future.set_result(outcome)

    def fail(self, error: Exception) -> None:
        """Set the exception of the future."""
        self._future.set_exception(error)

    def on_abandoned(self, outcome: Any) -> None:
        """Call the callback for that."""
        if self._when_abandoned is None:
            return
        try:
            self._when_abandoned(outcome, self.is_late)
        except Exception:
            logger.exception("the outcome of an abandoned call could not be handled")

    def split(self) -> None:
        """Do nothing: it is one call."""


@final
class WorkerThread:
    """One thread and its queue of calls.

    Args:
        pool: The pool it belongs to.
        number: Its number in the pool.
        loop: The event loop whose thread it is; `None` for a thread of its own.

    Attributes:
        job: The call that runs now.
        assigned: Number of environments that are pinned to it.
        is_open: Whether it accepts calls.
        loop: The event loop that runs its calls, until it leaves the thread.
        left_with: The call with which the loop has left the thread.
        system_thread: The thread; `None` while it is the loop's.
    """

    def __init__(
        self, pool: PinnedThreadPool, number: int, loop: ServerEventLoop | None = None
    ) -> None:
        self.pool = pool
        self.jobs: SimpleQueue[ThreadJob | None] = SimpleQueue()  # `None` ends the thread
        self.job: ThreadJob | None = None
        self.assigned = 0
        self.is_open = True
        self.loop = loop
        self.left_with: ThreadJob | None = None
        self.system_thread: threading.Thread | None = None
        if loop is None:
            self.system_thread = threading.Thread(
                target=self.work, name=f"envweave-server-{number}", daemon=True
            )
            self.system_thread.start()

    def submit(self, job: ThreadJob) -> None:
        """Queue a call."""
        job.thread = self
        if self.loop is None:
            self.jobs.put(job)
        else:
            self.loop.calls.append(job)

    def work(self) -> None:
        """Run the calls of the queue, in the thread."""
        jobs = self.jobs
        goes_on = True
        while goes_on and (job := jobs.get()) is not None:
            job.run()
            goes_on = job.post()
            del job  # an idle thread must not keep objects alive

    def take_queue(self) -> list[ThreadJob | None]:
        """Return the calls that have not begun, and remove them from the queue."""
        waiting: list[ThreadJob | None] = []
        if self.loop is not None:
            waiting += self.loop.take_back(lambda job: job.thread is self)  # type: ignore[attr-defined,arg-type] # ours
        with contextlib.suppress(Empty):
            while True:
                waiting.append(self.jobs.get_nowait())
        return waiting

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended, unless a call still runs in it."""
        if self.system_thread is not None and self.job is None:
            self.system_thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self.system_thread is not None and self.system_thread.is_alive()

    def is_blocked(self, now: float) -> bool:
        """Whether its current call has taken so long that others should not wait behind it."""
        job = self.job
        if job is None or self.loop is not None:
            return False
        return job is self.left_with or now - job.since > LONG_S

    def retire(self) -> None:
        """End the thread once its queue is empty."""
        self.is_open = False
        if self.loop is None:
            self.jobs.put(None)


QUICK_S = 0.001
"""Environments whose steps take less than this, on average, share a thread."""

SLOW_S = 0.005
"""Environments whose steps take more than this, on average, are spread over threads."""

LONGEST_COUNTED_S = 0.01
"""A longer step counts as this long in the average, so that one does not decide for all."""

SLOW_STEPS = 5
"""After so many steps in a row that are not quick the loop leaves these environments' thread."""

QUICKLY_MADE_S = 0.002
"""Before the first step, environments that are made within this time count as quick."""

JOIN_S = 1.0
"""How long to wait for an idle thread to end."""


@final
class PinnedThreadPool:
    """A bounded number of threads for the environments of one kind.

    Args:
        bound: Maximum number of threads, not counting abandoned ones.

    Attributes:
        changed: Called when a call becomes stuck, or returns after that.
    """

    def __init__(self, bound: int) -> None:
        self._bound = max(bound, 1)
        self._threads: list[WorkerThread] = []
        self._retired: list[WorkerThread] = []  # about to end
        self._stuck: set[ThreadJob] = set()  # calls past their deadline that still run
        self._done: deque[tuple[WorkerThread, ThreadJob, Any, BaseException | None, float]] = (
            deque()
        )
        self._wakeup_pending = False
        self._outstanding = 0  # calls that were submitted and have not returned
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mean_s: float | None = None  # of steps
        self._made_s: float | None = None
        self._slow_in_a_row = 0  # of steps that the loop has taken itself
        self._number = 0
        self._is_closed = False
        self.changed: Callable[[], None] = lambda: None

    @property
    def stuck(self) -> int:
        """Number of calls past their deadline that still run."""
        return len(self._stuck)

    @property
    def threads(self) -> int:
        """Number of threads, without abandoned ones."""
        return len(self._threads)

    @property
    def is_quick(self) -> bool:
        """Whether steps of these environments are quick, as far as is known."""
        if self._mean_s is None:
            return self._made_s is not None and self._made_s < QUICKLY_MADE_S
        return self._mean_s < QUICK_S

    def record_make_time(self, taken_s: float) -> None:
        """Record how long making an environment took; the shortest time counts."""
        self._made_s = min(taken_s, taken_s if self._made_s is None else self._made_s)

    def run(
        self,
        affinity: ThreadAffinity,
        call: Callable[[], Any],
        timeout_s: float | None = None,
        on_abandoned: Callable[[Any, bool], None] | None = None,
        *,
        steps: int = 0,
        from_now: bool = False,
    ) -> asyncio.Future[Any]:
        """Run a call in the thread of its environment, after those in its queue.

        Args:
            affinity: The environment that is called.
            call: The function to run in the thread.
            timeout_s: Time limit, from when the thread begins with the call.
            on_abandoned: Called on the loop with the outcome of a call whose future was done before
                (`None` if it raised), and whether that is because it was late.
            steps: Number of steps in it, from which the speed of the environments is estimated.
            from_now: Whether the time in the queue counts too.

        Returns:
            A future of what the call returns or raises. It raises `CallTimeoutError` if the call
            took too long; the call still runs then.
        """
        future = asyncio.get_running_loop().create_future()
        self.submit(
            FutureJob(affinity, call, future, on_abandoned, steps=steps, timeout_s=timeout_s),
            from_now=from_now,
        )
        return future

    def submit(self, job: ThreadJob, *, from_now: bool = False) -> None:
        """Run a job in the thread of its environment, after those in its queue.

        Raises:
            PoolClosedError: The pool is closed.
        """
        thread = job.affinity.thread
        if thread is not None and thread.loop is not None and thread.is_open and not from_now:
            job.thread = thread
            self._outstanding += 1
            thread.loop.calls.append(job)
            return
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        if self._is_closed:
            raise PoolClosedError
        affinity = job.affinity
        if thread is None or not thread.is_open:
            thread = self._assign(affinity)
        elif (
            thread.job is not None
            and not thread.job.is_of(affinity)
            and thread.is_blocked(monotonic())
        ):
            thread = self._move(affinity)
        self._outstanding += 1
        self._queue(job, thread)
        if from_now and (timeout_s := job.timeout_s) is not None:
            if job.timer is not None:
                job.timer.cancel()
            job.timer = loop.call_later(
                timeout_s, self._check_deadline, job, timeout_s, loop.time()
            )

    def _queue(self, job: ThreadJob, thread: WorkerThread) -> None:
        """Put a job into the queue of a thread. What the loop runs itself needs no timers."""
        thread.submit(job)
        loop = self._loop
        if thread.loop is not None or loop is None:
            return
        if self._timer is None:
            self._timer = loop.call_later(LONG_S, self._check_threads)
        if (timeout_s := job.timeout_s) is not None and job.timer is None:
            job.timer = loop.call_later(timeout_s, self._check_deadline, job, timeout_s, None)

    def spread(self, affinity: ThreadAffinity) -> None:
        """Give a slow environment its own thread, if it shares one and the bound allows it."""
        thread = affinity.thread
        is_slow = self._mean_s is not None and self._mean_s > SLOW_S
        if (
            thread is None
            or thread.assigned < 2
            or not is_slow
            or len(self._threads) >= self._bound
        ):
            return
        self.release(affinity)
        self._attach(affinity, self._new())

    def release(self, affinity: ThreadAffinity) -> None:
        """Unpin a closed environment; a thread without environments ends, but for the last one."""
        thread, affinity.thread = affinity.thread, None
        if thread is None:
            return
        thread.assigned -= 1
        if thread.assigned == 0 and thread.is_open and len(self._threads) > 1:
            self._threads.remove(thread)
            thread.retire()
            self._retired = [one for one in self._retired if one.is_alive]
            self._retired.append(thread)

    async def close(self) -> None:
        """Refuse further calls, and end every idle thread. May be called twice."""
        self._is_closed = True
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.retire()
        for thread in (*threads, *self._retired):
            thread.join(JOIN_S)
        self._deliver()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Assigning threads

    def _assign(self, affinity: ThreadAffinity) -> WorkerThread:
        """Pin an environment: to its own thread if it may be slow, else to a shared one."""
        self.release(affinity)
        now = monotonic()
        free = [thread for thread in self._threads if not thread.is_blocked(now)]
        loop = self.own_loop
        if loop is not None and (self.is_quick or not (self._mean_s or self._made_s)):
            return self._attach(affinity, self._inline_thread(loop))
        free = [thread for thread in free if thread.loop is None]
        if self.is_quick:
            # All on one: waking a thread costs more than a quick step takes, and of two Python
            # threads only one computes.
            shared = max(free, key=lambda thread: thread.assigned, default=None)
            if shared is not None:
                return self._attach(affinity, shared)
        idle = [thread for thread in free if thread.assigned == 0]
        if idle:
            return self._attach(affinity, idle[0])
        if len(self._threads) < self._bound:
            try:
                return self._attach(affinity, self._new())
            except RuntimeError:  # the system limit on threads
                if not self._threads:
                    raise
        return self._attach(
            affinity, min(free or self._threads, key=lambda thread: thread.assigned)
        )

    @property
    def own_loop(self) -> ServerEventLoop | None:
        """The loop, if it can run calls itself."""
        return self._loop if type(self._loop) is ServerEventLoop else None

    def _inline_thread(self, loop: ServerEventLoop) -> WorkerThread:
        """Return the thread of the loop, whose calls the loop runs itself."""
        for thread in self._threads:
            if thread.loop is not None:
                return thread
        return self._new(loop)

    def _move(self, affinity: ThreadAffinity) -> WorkerThread:
        """Move an environment away from a blocked thread, if there is another."""
        before = affinity.thread
        thread = self._assign(affinity)
        if thread is not before:
            logger.debug("moved an environment to another thread: a neighbor takes long")
        return thread

    def _attach(self, affinity: ThreadAffinity, thread: WorkerThread) -> WorkerThread:
        affinity.thread = thread
        thread.assigned += 1
        return thread

    def _new(self, loop: ServerEventLoop | None = None) -> WorkerThread:
        self._number += 1
        thread = WorkerThread(self, self._number, loop)
        self._threads.append(thread)
        return thread

    def _check_threads(self) -> None:
        """Reroute calls behind blocked threads; runs periodically while calls are outstanding."""
        self._timer = None
        self._deliver()
        now = monotonic()
        for thread in [thread for thread in self._threads if thread.is_blocked(now)]:
            self._reroute(thread)
        if self._outstanding > len(self._stuck) and self._loop is not None and not self._is_closed:
            self._timer = self._loop.call_later(LONG_S, self._check_threads)

    def _reroute(self, thread: WorkerThread) -> None:
        """Move the queue of a thread elsewhere, except calls of the environment that runs."""
        waiting = thread.take_queue()
        running = thread.job
        if running is not None:
            running.split()
        for job in waiting:
            if job is None or (
                running is not None and running.is_of(job.affinity) and thread.is_open
            ):
                if job is None:
                    thread.jobs.put(job)
                else:
                    self._queue(job, thread)
            elif job.affinity.thread is thread:
                self._queue(job, self._move(job.affinity))
            else:  # its environment was moved or closed
                self._queue(job, job.affinity.thread or self._assign(job.affinity))

    def leave_behind(
        self, thread: WorkerThread, system_thread: threading.Thread, job: ThreadJob
    ) -> None:
        """Take over a thread that the loop has left, because a call in it takes long."""
        waiting = thread.take_queue()
        thread.loop, thread.system_thread = None, system_thread
        thread.left_with = job
        for one in waiting:
            thread.jobs.put(one)
        if job.timeout_s is not None and job.timer is None:
            self._check_deadline(job, job.timeout_s, None)
        if thread.is_open:
            self._reroute(thread)
        else:
            thread.jobs.put(None)  # it ends after its queue
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(LONG_S, self._check_threads)

    def _leave_thread(self, loop: ServerEventLoop, thread: WorkerThread) -> None:
        """Move the loop to another thread: it is held up by the environments in this one."""
        logger.debug("environments turned out to be slow and no longer run in the loop's thread")
        self._slow_in_a_row = 0
        waiting = thread.take_queue()
        thread.loop, thread.system_thread = None, threading.current_thread()
        for job in waiting:
            if job is not None:
                self._queue(job, thread)
        loop.leave_thread(thread.work)

    # Outcomes

    def complete(
        self,
        thread: WorkerThread,
        job: ThreadJob,
        outcome: Any,
        error: BaseException | None,
        taken_s: float,
    ) -> None:
        """Deliver the outcome of a call that the loop has run itself."""
        steps = job.steps
        if steps and taken_s <= QUICK_S * steps and error is None and job.timeout_s is None:
            # A quick step, the most frequent call: as below, in short.
            self._outstanding -= 1
            self._update_mean(taken_s / steps)
            self._slow_in_a_row = 0
            job.deliver(outcome)
            return
        if job.timeout_s is not None and taken_s > job.timeout_s and not job.is_answered:
            job.is_late = True
            job.fail(CallTimeoutError())
        self._finish(thread, job, outcome, error, taken_s)
        loop = thread.loop
        if loop is None or not steps:
            return
        if taken_s <= QUICK_S * steps or loop.is_crowded:
            self._slow_in_a_row = 0
            return
        loop.delayed_s += taken_s
        self._slow_in_a_row += 1
        if self._slow_in_a_row >= SLOW_STEPS:
            self._leave_thread(loop, thread)

    def post(
        self,
        thread: WorkerThread,
        job: ThreadJob,
        outcome: Any,
        error: BaseException | None,
        taken_s: float,
    ) -> bool:
        """Queue an outcome for the loop. Runs in the worker thread.

        The loop is woken once for several quick calls; `_check_threads` delivers the rest.
        Returns False if the loop is closed.
        """
        self._done.append((thread, job, outcome, error, taken_s))
        if not self._wakeup_pending and (
            taken_s > QUICK_S or thread.jobs.empty() or not thread.is_open
        ):
            self._wakeup_pending = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)  # type: ignore[union-attr]
            except RuntimeError:
                return False  # the loop is closed
        return True

    def _deliver(self) -> None:
        self._wakeup_pending = False
        done = self._done
        while done:
            self._finish(*done.popleft())

    def _finish(
        self,
        thread: WorkerThread,
        job: ThreadJob,
        outcome: Any,
        error: BaseException | None,
        taken_s: float,
    ) -> None:
        self._outstanding -= 1
        if job.timer is not None:
            job.timer.cancel()
        if job.steps and not job.is_late:
            self._update_mean(min(taken_s / job.steps, LONGEST_COUNTED_S))
        if job.is_late:
            self._finish_late(thread, job, outcome)
        elif job.is_answered:
            job.on_abandoned(outcome)
        elif error is None:
            job.deliver(outcome)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            job.fail(error)
        else:  # it would end the loop or a coroutine
            job.fail(RuntimeError(f"it raised {error!r}"))

    def _update_mean(self, taken_s: float) -> None:
        mean_s = self._mean_s
        self._mean_s = taken_s if mean_s is None else mean_s + (taken_s - mean_s) / 16

    # Deadlines

    def _check_deadline(self, job: ThreadJob, timeout_s: float, began: float | None) -> None:
        """Abandon a call whose deadline has passed."""
        loop = self._loop
        assert loop is not None  # a timer was set on it
        if began is None and not job.since:
            job.timer = loop.call_later(timeout_s, self._check_deadline, job, timeout_s, began)
            return
        remaining_s = 0.0 if began is not None else job.since + timeout_s - monotonic()
        if remaining_s > 0:
            job.timer = loop.call_later(remaining_s, self._check_deadline, job, timeout_s, began)
            return
        self._deliver()
        if job.is_answered:
            return
        self._abandon(job)

    def _abandon(self, job: ThreadJob) -> None:
        job.fail(CallTimeoutError())
        thread = job.affinity.thread
        running = None if thread is None else thread.job
        runs = running is not None and running.affinity is job.affinity
        job.is_late = runs or bool(job.since)  # else it is still queued, and runs in its turn
        if not runs or thread is None or running is None:
            return
        if not running.is_late:  # an earlier call, which was not abandoned
            running.is_late = True
            if not running.is_answered:
                running.fail(CallTimeoutError())
        self._stuck.add(running)
        self.changed()
        if thread.is_open:
            thread.is_open = False
            self._threads.remove(thread)
        self._reroute(thread)

    def _finish_late(self, thread: WorkerThread, job: ThreadJob, outcome: Any) -> None:
        was_stuck = job in self._stuck
        self._stuck.discard(job)
        # Open for a moment, so that its environment can be closed in its own thread.
        thread.is_open, was_open = True, thread.is_open
        job.on_abandoned(outcome)
        thread.is_open = was_open
        if was_stuck:
            thread.jobs.put(None)
            self.changed()
