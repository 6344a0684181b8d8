"""A thread pool that pins each environment to a thread, so that none holds up the others.

An environment has a `ThreadAffinity`, which names its `WorkerThread` (`worker_thread.py`): sqlite,
CUDA and event loops depend on the calling thread. It changes threads on two occasions. If a
neighbor's call takes long, that call keeps the thread, and calls behind it move to another one. And
at a `reset` an environment that turned out to be slow gets a thread of its own, and one that turned
out to be quick goes to the event loop. So an environment should open what is bound to a thread in
`reset`.

A server's own event loop (`event_loop.py`) runs the calls of quick environments itself, so that no
thread is woken for them: to the pool it is a thread like the others. If one of these calls takes
long, the loop leaves the thread, which goes on as an ordinary one. Once its steps are quick again
the loop comes back to it.

The number of threads is bounded. When all are held up by calls that take long, further calls wait
for the first that is free: resets and new environments before steps, and each in its order.

A call past its deadline cannot be stopped. Its thread is abandoned: it gets no more calls, the call
counts as stuck until it returns, and then the thread ends.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, final

from envweave.server.event_loop import Departure, ServerEventLoop, Work, start_loop
from envweave.server.runtime.worker_thread import (
    LONG_S,
    QUICK_STEPS,
    CallTimeoutError,
    FutureJob,
    PoolClosedError,
    ThreadAffinity,
    ThreadJob,
    WorkerThread,
)

logger = logging.getLogger("envweave.server")

QUICK_S = 0.001
"""Environments whose steps take less than this, on average, share a thread."""

SLOW_S = 0.005
"""Environments whose steps take more than this, on average, are spread over threads."""

LONGEST_COUNTED_S = 0.01
"""A longer step counts as this long in the average, so that one does not decide for all."""

SLOW_CALLS = 5
"""After this many slow calls in a row, the loop leaves these environments' thread."""

CROWDED_S = 0.002
"""How much longer a quick call may take while others compete for the interpreter."""

AGAIN_QUICK_S = 0.0005
"""How long such a step may take."""

QUICKLY_MADE_S = 0.002
"""Before the first step, environments that are made within this time count as quick."""

MADE_FIRST = 4
"""After this many it is known whether environments are made quickly."""

JOIN_S = 1.0
"""How long to wait for an idle thread to end."""


@final
class PinnedThreadPool:
    """A bounded number of threads for the environments of one kind.

    Args:
        bound: Maximum number of threads, not counting abandoned ones and the loop's own.

    Attributes:
        changed: Called when a call becomes stuck, or returns after that.
    """

    def __init__(self, bound: int) -> None:
        self._bound = max(bound, 1)
        self._threads: list[WorkerThread] = []
        self._inline: WorkerThread | None = None  # the one among them that is the loop's
        self._retired: list[WorkerThread] = []  # about to end
        self._stuck: set[ThreadJob] = set()  # calls past their deadline that still run
        # Calls for which no thread is free: first those other than steps, so that sessions can
        # begin while others take their time.
        self._waiting_first: deque[ThreadJob] = deque()
        self._waiting_steps: deque[ThreadJob] = deque()
        self._done: deque[tuple[WorkerThread, ThreadJob, Any, BaseException | None]] = deque()
        self._wakeup_pending = False
        self._outstanding = 0  # calls that were submitted and have not returned
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mean_s: float | None = None  # of steps
        self._made = 0  # number of environments that were made
        self._made_s = math.inf
        self._slow_in_a_row = 0  # of calls that the loop has run itself
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
            return self._made_s < QUICKLY_MADE_S
        return self._mean_s < QUICK_S

    def record_make_time(self, taken_s: float) -> None:
        """Record how long making an environment took; the shortest time counts.

        The first few do not tell: they include imports, and what all of them share.
        """
        self._made += 1
        self._made_s = min(taken_s, self._made_s)

    def run(
        self,
        affinity: ThreadAffinity,
        call: Callable[[], Any],
        timeout_s: float | None = None,
        on_abandoned: Callable[[Any, bool], None] | None = None,
        *,
        from_now: bool = False,
    ) -> asyncio.Future[Any]:
        """Run a call in the thread of its environment, after those in its queue.

        Args:
            affinity: The environment that is called.
            call: The function to run in the thread.
            timeout_s: Time limit, from when the thread begins with the call.
            on_abandoned: Called on the loop with the outcome of a call whose future was done before
                (`None` if it raised), and whether that is because it was late.
            from_now: Whether the time in the queue counts too.

        Returns:
            A future of what the call returns or raises. It raises `CallTimeoutError` if the call
            took too long; the call may still run then.
        """
        future = asyncio.get_running_loop().create_future()
        self.submit(FutureJob(affinity, call, future, on_abandoned, timeout_s), from_now=from_now)
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
        self._outstanding += 1
        self._place(job)
        if from_now and (timeout_s := job.timeout_s) is not None:
            if job.timer is not None:
                job.timer.cancel()
            job.timer = loop.call_later(
                timeout_s, self._check_deadline, job, timeout_s, loop.time()
            )

    def _place(self, job: ThreadJob) -> None:
        """Put a job into the queue of its environment's thread, or of another if that is held up.

        If all are held up, it waits.
        """
        affinity = job.affinity
        thread = affinity.thread
        if affinity.waiting:
            thread = None  # after the call that waits
        elif thread is None or not thread.is_open:
            thread = self._assign(affinity)
        elif thread.job is not None and not thread.job.is_of(affinity):
            if thread.is_blocked(monotonic()):
                thread = self._move(affinity)
        elif affinity.has_moved and self._may_run_inline(thread):
            thread = self._move(affinity)
        if thread is None:
            self._wait(job)
        else:
            self._queue(job, thread)

    def _queue(self, job: ThreadJob, thread: WorkerThread) -> None:
        """Put a job into the queue of a thread. What the loop runs itself needs no timers."""
        thread.submit(job)
        if thread.loop is not None:
            return
        self._check_later()
        if (timeout_s := job.timeout_s) is not None and job.timer is None:
            assert self._loop is not None  # a job was submitted
            job.timer = self._loop.call_later(timeout_s, self._check_deadline, job, timeout_s, None)

    def settle(self, affinity: ThreadAffinity) -> None:
        """Choose the thread for the next episode of an environment.

        One that is slow and shares its thread gets its own, if the bound allows it. One that has
        become quick runs on the loop.
        """
        affinity.has_moved = False
        thread = affinity.thread
        if thread is None or affinity.waiting:
            return
        if self._may_run_inline(thread):
            self._assign(affinity)
        elif len(thread.pinned) > 1 and (self._mean_s or 0.0) > SLOW_S and self._has_room:
            self.release(affinity)
            self._pin(affinity, self._new())

    def release(self, affinity: ThreadAffinity) -> None:
        """Unpin a closed environment; a thread without environments ends, but for the last one."""
        thread, affinity.thread = affinity.thread, None
        if thread is None:
            return
        thread.pinned.discard(affinity)
        if thread.pinned or not thread.is_open or len(self._threads) < 2:
            return
        if thread.is_idle and self._serve_waiting(thread):
            return
        self._remove(thread)
        thread.retire()
        self._retired = [one for one in self._retired if one.is_alive]
        self._retired.append(thread)

    def _remove(self, thread: WorkerThread) -> None:
        self._threads.remove(thread)
        if thread is self._inline:
            self._inline = None

    async def close(self) -> None:
        """Refuse further calls, and end every idle thread. May be called twice."""
        self._is_closed = True
        threads, self._threads, self._inline = self._threads, [], None
        for thread in threads:
            thread.retire()
        for thread in (*threads, *self._retired):
            thread.join(JOIN_S)
        self._deliver()
        while self._waiting_first or self._waiting_steps:
            job = (self._waiting_first or self._waiting_steps).popleft()
            if not job.is_answered:
                job.fail(PoolClosedError())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Assigning threads

    @property
    def own_loop(self) -> ServerEventLoop | None:
        """The loop, if it can run calls itself."""
        return self._loop if type(self._loop) is ServerEventLoop else None

    @property
    def _has_room(self) -> bool:
        """Whether another thread may be started."""
        return len(self._threads) - (self._inline is not None) < self._bound

    def _may_run_inline(self, thread: WorkerThread) -> bool:
        """Whether environments of a thread have become quick, so that the loop can run them."""
        return (
            thread.loop is None
            and thread.quick_steps >= QUICK_STEPS
            and self.is_quick
            and self.own_loop is not None
        )

    def _assign(self, affinity: ThreadAffinity) -> WorkerThread | None:
        """Pin an environment: to its own thread if it may be slow, else to a shared one.

        Returns:
            The thread; `None` if the bound is reached and all threads are held up.
        """
        loop = self.own_loop
        is_unknown = self._mean_s is None and self._made < MADE_FIRST
        if loop is not None and (self.is_quick or is_unknown):
            if self._inline is None:
                self._inline = self._new(loop)
            return self._pin(affinity, self._inline)
        now = monotonic()
        free = [one for one in self._threads if one.loop is None and not one.is_blocked(now)]
        if self.is_quick:
            # All on one: waking a thread costs more than a quick step takes, and of two Python
            # threads only one computes.
            shared = max(free, key=lambda thread: len(thread.pinned), default=None)
            if shared is not None:
                return self._pin(affinity, shared)
        for thread in free:
            if not thread.pinned:
                return self._pin(affinity, thread)
        if self._has_room:
            try:
                return self._pin(affinity, self._new())
            except RuntimeError:  # the system limit on threads
                if not self._threads:
                    raise
        if not free:
            self.release(affinity)
            return None
        return self._pin(affinity, min(free, key=lambda thread: len(thread.pinned)))

    def _move(self, affinity: ThreadAffinity) -> WorkerThread | None:
        """Move an environment to another thread within an episode, if there is one."""
        before = affinity.thread
        thread = self._assign(affinity)
        if thread is not before:
            affinity.has_moved = True
            logger.debug("moved an environment to another thread")
        return thread

    def _pin(self, affinity: ThreadAffinity, thread: WorkerThread) -> WorkerThread:
        if affinity.thread is not thread:
            thread.pinned.add(affinity)  # first: a thread without environments may end
            self.release(affinity)
            affinity.thread = thread
        return thread

    def _new(self, loop: ServerEventLoop | None = None) -> WorkerThread:
        self._number += 1
        thread = WorkerThread(self, self._number, loop)
        self._threads.append(thread)
        return thread

    # Waiting for a thread

    def _wait(self, job: ThreadJob) -> None:
        """Let a job wait until a thread is free."""
        affinity = job.affinity
        # A call must not overtake one of the same environment.
        is_first = not job.steps and not affinity.waiting
        (self._waiting_first if is_first else self._waiting_steps).append(job)
        affinity.waiting += 1
        self._check_later()

    def _serve_waiting(self, thread: WorkerThread) -> bool:
        """Give an idle thread a call that waits; return whether there was one."""
        waiting = self._waiting_first or self._waiting_steps
        if not waiting:
            return False
        job = waiting.popleft()
        job.affinity.waiting -= 1
        if job.affinity.thread is not thread:
            job.affinity.has_moved = True
        self._queue(job, self._pin(job.affinity, thread))
        return True

    # Threads that are held up

    def _check_later(self) -> None:
        """Check the threads regularly while calls are outstanding."""
        if self._timer is None and self._loop is not None and not self._is_closed:
            self._timer = self._loop.call_later(LONG_S, self._check_threads)

    def _check_threads(self) -> None:
        """Move calls away from threads that are held up, and give work to those that are free."""
        self._timer = None
        self._deliver()
        now = monotonic()
        for thread in [thread for thread in self._threads if thread.is_blocked(now)]:
            self._reroute(thread)
        self._start_waiting()
        if self._outstanding > len(self._stuck):
            self._check_later()

    def _start_waiting(self) -> None:
        """Begin calls that wait, in idle threads and in new ones."""
        for thread in list(self._threads):
            if thread.is_idle and not self._serve_waiting(thread):
                return
        while self._has_room and (self._waiting_first or self._waiting_steps):
            try:
                self._serve_waiting(self._new())
            except RuntimeError:  # the system limit on threads
                return

    def _reroute(self, thread: WorkerThread) -> None:
        """Move the queue of a thread elsewhere, except calls of the environment that runs."""
        waiting = thread.take_queue()
        running = thread.job
        if running is not None:
            running.split()
        for job in waiting:
            if job is None:
                thread.jobs.put(job)
            elif running is not None and running.is_of(job.affinity) and thread.is_open:
                self._queue(job, thread)
            elif job.affinity.thread is thread:
                other = None if job.affinity.waiting else self._move(job.affinity)
                if other is None:
                    self._wait(job)
                else:
                    self._queue(job, other)
            else:  # its environment was moved or closed
                self._place(job)

    def leave_behind(
        self, thread: WorkerThread, system_thread: threading.Thread, job: ThreadJob
    ) -> None:
        """Take over a thread that the loop has left, because a call in it takes long."""
        self._detach(thread, system_thread)
        if job.steps:
            thread.quick_steps = 0
            self._update_mean(LONGEST_COUNTED_S)
        if thread.job is job:
            thread.left_with = job
        if job.timeout_s is not None and job.timer is None:
            self._check_deadline(job, job.timeout_s, None)
        if thread.is_open:
            self._reroute(thread)
        else:
            thread.jobs.put(None)  # it ends after its queue
        self._check_later()

    def _detach(self, thread: WorkerThread, system_thread: threading.Thread) -> None:
        """Make an ordinary thread of the loop's."""
        waiting = thread.take_queue()
        thread.loop, thread.system_thread = None, system_thread
        self._slow_in_a_row = 0
        if thread is self._inline:
            self._inline = None
        for job in waiting:
            if job is None:
                thread.jobs.put(job)
            else:
                self._queue(job, thread)

    def _leave(self, thread: WorkerThread) -> Departure:
        """Move the loop away from a thread whose environments hold it up."""
        logger.debug("environments turned out to be slow and no longer run in the loop's thread")
        self._detach(thread, threading.current_thread())
        return Departure(thread.work, start_loop)

    def _come_back(self, thread: WorkerThread) -> Departure | None:
        """Move the loop to a thread whose environments are quick, if it is idle."""
        loop = self.own_loop
        if loop is None or self._is_closed or not (thread.is_open and thread.is_idle):
            return None
        then: Work | None = None
        if (here := self._inline) is not None:
            self._detach(here, threading.current_thread())
            if here.pinned:
                then = here.work
            else:
                self._remove(here)
        thread.loop, thread.system_thread, self._inline = loop, None, thread
        return Departure(then, thread.lead)

    def _consider_coming_back(self, thread: WorkerThread) -> None:
        """Move the loop to a thread with quick environments, if more of them are bound to it.

        Those that have changed threads before follow by themselves.
        """
        loop = self.own_loop
        if loop is None or not self._may_run_inline(thread):
            return
        if _bound_to(thread) > (0 if self._inline is None else _bound_to(self._inline)):
            loop.leave_thread(partial(self._come_back, thread))

    # Outcomes

    def complete(
        self, thread: WorkerThread, job: ThreadJob, outcome: Any, error: BaseException | None
    ) -> None:
        """Deliver the outcome of a call that the loop has run itself."""
        loop = thread.loop
        assert loop is not None  # it has run the call
        if job.slice_s > QUICK_S:
            loop.delayed_s += job.slice_s
        if job.steps > 1 and job.has_more:
            job.since = 0.0  # the rest has not begun
            loop.calls.append(job)
            return
        self._finish(thread, job, outcome, error)
        limit_s = QUICK_S * (job.steps or 1) + (CROWDED_S if loop.is_crowded else 0.0)
        if job.taken_s <= limit_s:
            self._slow_in_a_row = 0
            if job.steps:
                thread.quick_steps = QUICK_STEPS
            return
        self._slow_in_a_row += 1
        if job.steps:
            thread.quick_steps = 0  # else its steps may be quick all the same
        if self._slow_in_a_row >= SLOW_CALLS:
            loop.leave_thread(partial(self._leave, thread))

    def post(
        self, thread: WorkerThread, job: ThreadJob, outcome: Any, error: BaseException | None
    ) -> bool:
        """Queue an outcome for the loop. Runs in the worker thread.

        The loop is woken once for several quick calls; `_check_threads` delivers the rest.
        Returns False if the loop is closed.
        """
        self._done.append((thread, job, outcome, error))
        if not self._wakeup_pending and (
            job.taken_s > QUICK_S or thread.jobs.empty() or not thread.is_open
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
            thread, job, outcome, error = done.popleft()
            if thread.left_with is job:
                thread.left_with = None
            self._finish(thread, job, outcome, error)
            if steps := job.steps:
                # A thread also waits for the interpreter meanwhile, so one miss is no proof.
                is_quick = job.taken_s <= AGAIN_QUICK_S * steps
                quick = thread.quick_steps + steps if is_quick else thread.quick_steps // 2
                thread.quick_steps = min(quick, QUICK_STEPS)
                self._consider_coming_back(thread)
            if thread.is_open and thread.is_idle:
                self._serve_waiting(thread)

    def _finish(
        self, thread: WorkerThread, job: ThreadJob, outcome: Any, error: BaseException | None
    ) -> None:
        self._outstanding -= 1
        if job.timer is not None:
            job.timer.cancel()
        limit_s = job.timeout_s
        if limit_s is not None and job.taken_s > limit_s and not (job.steps or job.is_answered):
            job.is_late = True  # steps see to their time limits themselves
            job.fail(CallTimeoutError(has_returned=True))
        if job.is_late:
            self._finish_late(thread, job, outcome)
            return
        if job.steps:
            self._update_mean(min(job.taken_s / job.steps, LONGEST_COUNTED_S))
        if job.is_answered:
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
        remaining_s = 0.0 if began is not None else job.call_since + timeout_s - monotonic()
        if remaining_s > 0:
            job.timer = loop.call_later(remaining_s, self._check_deadline, job, timeout_s, began)
            return
        self._deliver()
        if job.is_answered:
            return
        self._abandon(job)

    def _abandon(self, job: ThreadJob) -> None:
        thread = job.affinity.thread
        running = None if thread is None else thread.job
        if running is not None and running.is_of(job.affinity):
            running.split()  # the others in it are not late
            if job.is_answered:
                return  # it was between two steps
        runs = running is not None and running.affinity is job.affinity
        job.is_late = runs or bool(job.since)  # else it is still queued, and runs in its turn
        job.fail(CallTimeoutError())
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
            self._remove(thread)
        self._reroute(thread)
        self._start_waiting()

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


def _bound_to(thread: WorkerThread) -> int:
    """Return how many environments have been in a thread since their episode began."""
    return sum(not affinity.has_moved for affinity in thread.pinned)
