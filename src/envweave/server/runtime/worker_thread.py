"""One thread of a pool with its queue of calls, and the calls.

A `WorkerThread` runs `ThreadJob`s of the environments that are pinned to it by their
`ThreadAffinity`. While it is the thread of the server's event loop, the loop runs its calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, final

from envweave.server.event_loop import ServerEventLoop, Work, run_thread

if TYPE_CHECKING:
    from envweave.server.runtime.thread_pool import PinnedThreadPool

logger = logging.getLogger("envweave.server")

LONG_S = 0.05
"""A call that takes longer than this blocks its thread, and other environments move away."""

QUICK_STEPS = 10
"""After this many quick steps of a thread, its environments may run on the loop again."""


class CallTimeoutError(Exception):
    """A call exceeded its deadline. Never leaves the server's own modules.

    Attributes:
        has_returned: Whether it has ended meanwhile; otherwise it still runs.
    """

    def __init__(self, *, has_returned: bool = False) -> None:
        super().__init__()
        self.has_returned = has_returned


class PoolClosedError(Exception):
    """The pool is closed. Never leaves the server's own modules."""


@final
class ThreadAffinity:
    """The thread of one environment.

    Attributes:
        thread: The thread; `None` before the first call, and while a call waits for a thread.
        has_moved: Whether it has changed threads within an episode, so that it may again.
        waiting: Number of its calls that wait for a thread.
    """

    __slots__ = ("has_moved", "thread", "waiting")

    def __init__(self) -> None:
        self.thread: WorkerThread | None = None
        self.has_moved = False
        self.waiting = 0


class ThreadJob(ABC):
    """One call, or several, on the way to a thread and back.

    Args:
        affinity: The environment that it calls.
        steps: Number of steps in it, from which the speed of these environments is estimated.
        timeout_s: Time limit, from when the thread begins with it; `None` for none.

    Attributes:
        affinity: The environment that it calls.
        since: When its thread began with it, or with the rest of it; 0.0 before.
        call_since: When the call began that runs now, if it has several with time limits.
        slice_s: How long it ran last.
        taken_s: How long it has run altogether.
        is_late: Whether it exceeded its deadline and was abandoned.
        steps: Number of steps in it.
        timeout_s: Its time limit.
        timer: Ends it at its deadline.
        thread: The thread it was submitted to.
    """

    __slots__ = (
        "_error", "_outcome", "affinity", "call_since", "is_late", "since", "slice_s", "steps",
        "taken_s", "thread", "timeout_s", "timer",
    )  # fmt: skip

    def __init__(self, affinity: ThreadAffinity, steps: int, timeout_s: float | None) -> None:
        self.affinity = affinity
        self.steps = steps
        self.timeout_s = timeout_s
        self.since = self.call_since = 0.0
        self.is_late = False
        self.timer: asyncio.TimerHandle | None = None
        self.thread: WorkerThread
        self._outcome: Any = None
        self._error: BaseException | None = None
        self.slice_s = self.taken_s = 0.0

    @abstractmethod
    def is_of(self, affinity: ThreadAffinity) -> bool:
        """Whether it calls this environment."""

    @abstractmethod
    def call(self) -> Any:
        """Call the author's code, in the thread."""

    @property
    @abstractmethod
    def is_answered(self) -> bool:
        """Whether the outcome is no longer awaited."""

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

    @property
    @abstractmethod
    def has_more(self) -> bool:
        """Whether it has stopped before its end, so as not to keep the loop for too long."""

    def run(self) -> None:
        """Run the call in this thread, and store its outcome. `since` is set."""
        thread = self.thread
        self.call_since = began = self.since
        thread.job = self
        try:
            if not self.is_late:
                self._outcome = self.call()
        except BaseException as error:  # noqa: BLE001 - delivered to the caller that waits for it
            self._error = error
        thread.job = None
        self.slice_s = monotonic() - began
        self.taken_s += self.slice_s

    def finish(self) -> None:
        """Deliver the outcome of a call that the loop has run itself."""
        thread = self.thread
        thread.pool.complete(thread, self, self._outcome, self._error)

    def leave_behind(self, thread: threading.Thread) -> None:
        """Go on without the loop, which has left this thread: the call takes long."""
        self.thread.pool.leave_behind(self.thread, thread, self)

    def serve_behind(self) -> Work:
        """Hand in the outcome; this thread serves further calls."""
        while self.has_more:
            self.since = monotonic()
            self.run()
        self.post()
        return self.thread.work

    def post(self) -> bool:
        """Hand in the outcome, from a thread; return whether anyone is left to hand it to."""
        thread = self.thread
        outcome, self._outcome = self._outcome, None
        error, self._error = self._error, None
        return thread.pool.post(thread, self, outcome, error)


@final
class FutureJob(ThreadJob):
    """A call whose outcome a future receives.

    Args:
        affinity: The environment that it calls.
        function: The call.
        future: Receives the outcome.
        when_abandoned: Called with the outcome if the future was done before (`None` if the call
            raised), and whether that is because the call was late.
        timeout_s: Its time limit.
    """

    __slots__ = ("_function", "_future", "_when_abandoned")

    def __init__(
        self,
        affinity: ThreadAffinity,
        function: Callable[[], Any],
        future: asyncio.Future[Any],
        when_abandoned: Callable[[Any, bool], None] | None,
        timeout_s: float | None,
    ) -> None:
        super().__init__(affinity, 0, timeout_s)
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

    @property
    def has_more(self) -> bool:
        """Whether it has stopped before its end: never, it is one call."""
        return False


@final
class WorkerThread:
    """One thread and its queue of calls.

    Args:
        pool: The pool it belongs to.
        number: Its number in the pool.
        loop: The event loop whose thread it is; `None` for a thread of its own.

    Attributes:
        jobs: Its queue; `None` in it ends the thread, or begins `then`.
        job: The call that runs now.
        pinned: The environments that are pinned to it.
        is_open: Whether it accepts calls.
        loop: The event loop that runs its calls, until it leaves the thread.
        left_with: The call with which the loop has left the thread, while it runs.
        quick_steps: Number of its last steps that were quick, more or less.
        then: What the thread does after its queue: run the event loop.
        system_thread: The thread; `None` while it is the loop's.
    """

    def __init__(
        self, pool: PinnedThreadPool, number: int, loop: ServerEventLoop | None = None
    ) -> None:
        self.pool = pool
        self.jobs: SimpleQueue[ThreadJob | None] = SimpleQueue()
        self.job: ThreadJob | None = None
        self.pinned: set[ThreadAffinity] = set()
        self.is_open = True
        self.loop = loop
        self.left_with: ThreadJob | None = None
        self.quick_steps = QUICK_STEPS  # until one says otherwise
        self.then: Work | None = None
        self.system_thread: threading.Thread | None = None
        if loop is None:
            self.system_thread = threading.Thread(
                target=run_thread,
                args=(self.work,),
                name=f"envweave-server-{number}",
                daemon=True,
            )
            self.system_thread.start()

    def submit(self, job: ThreadJob) -> None:
        """Queue a call."""
        job.thread = self
        if self.loop is None:
            self.jobs.put(job)
        else:
            self.loop.calls.append(job)

    def work(self) -> Work | None:
        """Run the calls of the queue, in the thread; return what it does next."""
        jobs = self.jobs
        goes_on = True
        while goes_on and (job := jobs.get()) is not None:
            job.since = monotonic()
            job.run()
            goes_on = job.post()
            del job  # an idle thread must not keep objects alive
        then, self.then = self.then, None
        return then

    def lead(self, work: Work) -> None:
        """Run the event loop in this thread, which is idle."""
        self.then = work
        self.jobs.put(None)

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

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to do."""
        return self.loop is None and self.job is None and self.jobs.empty()

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
