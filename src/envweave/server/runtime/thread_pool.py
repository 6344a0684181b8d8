"""A thread pool that pins each environment to a thread, so that none blocks the event loop.

A `WorkerThread` is one thread with its queue of calls. An environment has a `ThreadAffinity`, which
names its thread: sqlite, CUDA and event loops depend on the calling thread. An environment stays on
its thread, with two exceptions. If a neighbor's call takes long, that call keeps the thread, and
calls behind it move to another one. And environments that turn out to be slow after they were
packed onto one thread are spread, each at its next `reset`. An environment should open what is
bound to a thread in `reset`.

A call past its deadline cannot be stopped. Its thread is abandoned: it gets no more calls, the call
counts as stuck until it returns, and then the thread ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, final

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


@final
class Callback:
    """Has the interface of a future, and calls a function with the outcome at once.

    Args:
        callback: Called on the loop with what the call returned or raised.
    """

    __slots__ = ("_callback", "_is_done")

    def __init__(self, callback: Callable[[Any], None]) -> None:
        self._callback = callback
        self._is_done = False

    def done(self) -> bool:
        """Whether the outcome was delivered."""
        return self._is_done

    def set_result(self, outcome: Any) -> None:
        """Deliver what the call returned."""
        self._is_done = True
        try:
            self._callback(outcome)
        except Exception:
            logger.exception("the outcome of a call could not be delivered")

    def set_exception(self, error: BaseException) -> None:
        """Deliver what the call raised."""
        self.set_result(error)


@final
class ThreadJob:
    """One call on its way to a thread and back.

    Attributes:
        affinity: The environment that it calls.
        batch_members: The other environments that it calls, if it is a batch.
        run: The function to run in the thread.
        future: Receives the outcome, on the loop.
        on_abandoned: Receives the outcome if the future was done before.
        since: When the thread began with it; 0.0 before.
        is_late: Whether it exceeded its deadline and was abandoned.
        steps: Number of steps in it, from which the speed of these environments is estimated.
        split: Called if it takes long: moves the steps that have not begun to other threads.
    """

    __slots__ = (
        "affinity", "batch_members", "future", "is_late", "on_abandoned", "run", "since", "split",
        "steps", "timer",
    )  # fmt: skip

    def __init__(
        self,
        affinity: ThreadAffinity,
        run: Callable[[], Any],
        future: asyncio.Future[Any] | Callback,
        on_abandoned: Callable[[Any, bool], None] | None,
        *,
        steps: int,
        batch_members: frozenset[ThreadAffinity] = frozenset(),
        split: Callable[[ThreadJob], None] | None = None,
    ) -> None:
        self.split = split
        self.affinity = affinity
        self.run = run
        self.future = future
        self.on_abandoned = on_abandoned
        self.since = 0.0
        self.is_late = False
        self.steps = steps
        self.batch_members = batch_members
        self.timer: asyncio.TimerHandle | None = None

    def is_of(self, affinity: ThreadAffinity) -> bool:
        """Whether it calls this environment."""
        return affinity is self.affinity or affinity in self.batch_members


@final
class WorkerThread:
    """One thread and its queue of calls.

    Attributes:
        jobs: The queue; `None` ends the thread.
        job: The call that runs now.
        assigned: Number of environments that are pinned to it.
        is_open: Whether it accepts calls.
    """

    def __init__(self, number: int, post_result: Callable[..., bool]) -> None:
        self.jobs: SimpleQueue[ThreadJob | None] = SimpleQueue()
        self.job: ThreadJob | None = None
        self.assigned = 0
        self.is_open = True
        self._post_result = post_result
        self.system_thread = threading.Thread(
            target=self._work, name=f"envweave-server-{number}", daemon=True
        )
        self.system_thread.start()

    def _work(self) -> None:
        jobs, post_result = self.jobs, self._post_result
        goes_on = True
        while goes_on and (job := jobs.get()) is not None:
            outcome: Any = None
            error: BaseException | None = None
            job.since = began = monotonic()
            self.job = job
            try:
                if not job.is_late:
                    outcome = job.run()
            except BaseException as raised:  # noqa: BLE001 - delivered to the waiting task
                error = raised
            self.job = None
            goes_on = post_result(self, job, outcome, error, monotonic() - began)
            del job, outcome, error  # an idle thread must not keep objects alive

    def is_blocked(self, now: float) -> bool:
        """Whether its current call has taken so long that others should not wait behind it."""
        job = self.job
        return job is not None and now - job.since > LONG_S

    def retire(self) -> None:
        """End the thread once its queue is empty."""
        self.is_open = False
        self.jobs.put(None)


QUICK_S = 0.001
"""Environments whose steps take less than this, on average, share a thread."""

SLOW_S = 0.005
"""Environments whose steps take more than this, on average, are spread over threads."""

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
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        future = loop.create_future()
        job = ThreadJob(affinity, call, future, on_abandoned, steps=steps)
        if timeout_s is not None and not self._is_closed:
            began = loop.time() if from_now else None
            job.timer = loop.call_later(timeout_s, self._check_deadline, job, timeout_s, began)
        self._send(job, loop)
        return future

    def start(
        self,
        affinity: ThreadAffinity,
        call: Callable[[], Any],
        callback: Callable[[Any], None],
        on_abandoned: Callable[[Any, bool], None] | None = None,
        *,
        steps: int = 0,
        batch_members: frozenset[ThreadAffinity] = frozenset(),
        split: Callable[[ThreadJob], None] | None = None,
    ) -> None:
        """Run a call as `run` does, and pass its outcome to a callback, on the loop.

        A batch calls further environments, its `batch_members`. If it takes long, `split` is
        called, which moves the steps that have not begun to other threads.
        """
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        job = ThreadJob(
            affinity,
            call,
            Callback(callback),
            on_abandoned,
            steps=steps,
            batch_members=batch_members,
            split=split,
        )
        self._send(job, loop)

    def _send(self, job: ThreadJob, loop: asyncio.AbstractEventLoop) -> None:
        """Submit a call to the thread of its environment.

        Raises:
            PoolClosedError: The pool is closed.
        """
        if self._is_closed:
            raise PoolClosedError
        affinity = job.affinity
        thread = affinity.thread
        if thread is None or not thread.is_open:
            thread = self._assign(affinity)
        elif (
            thread.job is not None
            and not thread.job.is_of(affinity)
            and thread.is_blocked(monotonic())
        ):
            thread = self._move(affinity)
        thread.jobs.put(job)
        self._outstanding += 1
        if self._timer is None:
            self._timer = loop.call_later(LONG_S, self._check_threads)

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
            self._retired = [one for one in self._retired if one.system_thread.is_alive()]
            self._retired.append(thread)

    async def close(self) -> None:
        """Refuse further calls, and end every idle thread. May be called twice."""
        self._is_closed = True
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.retire()
        for thread in (*threads, *self._retired):
            if thread.job is None:
                thread.system_thread.join(JOIN_S)
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

    def _new(self) -> WorkerThread:
        self._number += 1
        thread = WorkerThread(self._number, self._post_result)
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
        waiting = []
        with contextlib.suppress(Empty):
            while True:
                waiting.append(thread.jobs.get_nowait())
        running = thread.job
        if running is not None and running.split is not None:
            running.split(running)
        for job in waiting:
            if job is None or (
                running is not None and running.is_of(job.affinity) and thread.is_open
            ):
                thread.jobs.put(job)
            elif job.affinity.thread is thread:
                self._move(job.affinity).jobs.put(job)
            else:  # its environment was moved or closed
                (job.affinity.thread or self._assign(job.affinity)).jobs.put(job)

    # Outcomes

    def _post_result(
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
            thread, job, outcome, error, taken_s = done.popleft()
            self._outstanding -= 1
            if job.timer is not None:
                job.timer.cancel()
            if job.steps and not job.is_late:
                self._update_mean(min(taken_s / job.steps, LONG_S))
            if job.is_late:
                self._finish_late(thread, job, outcome)
            elif job.future.done():
                _notify_abandoned(job, outcome, is_late=False)
            elif error is None:
                job.future.set_result(outcome)
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                job.future.set_exception(error)
            else:  # it would end the loop or a coroutine
                job.future.set_exception(RuntimeError(f"it raised {error!r}"))

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
        if job.future.done():
            return
        self._abandon(job)

    def _abandon(self, job: ThreadJob) -> None:
        job.future.set_exception(CallTimeoutError())
        thread = job.affinity.thread
        running = None if thread is None else thread.job
        runs = running is not None and running.affinity is job.affinity
        job.is_late = runs or bool(job.since)  # else it is still queued, and runs in its turn
        if not runs or thread is None or running is None:
            return
        if not running.is_late:  # an earlier call, which was not abandoned
            running.is_late = True
            if not running.future.done():
                running.future.set_exception(CallTimeoutError())
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
        _notify_abandoned(job, outcome, is_late=True)
        thread.is_open = was_open
        if was_stuck:
            thread.jobs.put(None)
            self.changed()


def _notify_abandoned(job: ThreadJob, outcome: Any, *, is_late: bool) -> None:
    if job.on_abandoned is None:
        return
    try:
        job.on_abandoned(outcome, is_late)
    except Exception:
        logger.exception("the outcome of an abandoned call could not be handled")
