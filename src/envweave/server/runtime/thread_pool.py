"""Threads for the plain functions of many environments, and none of their time on the loop.

A `WorkerThread` is one thread with the calls that wait for it. An environment has a
`ThreadAffinity`, which names
its lane: sqlite, CUDA and event loops care where they are called. It stays there, but for two
cases. A neighbour whose call takes long keeps the lane to itself: who waits behind it, or comes
later, goes to another one. And environments that turn out to be slow after they were packed
together go apart, each at its next `reset`. What is bound to a thread is best opened there.

A call past its deadline cannot be stopped. Its lane is given up: nobody else is sent there, the
call counts as stuck until it comes back, and then the thread ends.
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
"""With a call that takes longer than this, a lane is no place for others."""


class CallTimeoutError(Exception):
    """A call took longer than it may, and still runs. Never leaves the server's own modules."""


class PoolClosedError(Exception):
    """No more calls are taken. Never leaves the server's own modules."""


@final
class ThreadAffinity:
    """Names the lane of one environment; it has none before its first call."""

    __slots__ = ("lane",)

    def __init__(self) -> None:
        self.lane: WorkerThread | None = None


@final
class Callback:
    """Stands in a future's place where somebody is told at once what came of a call.

    Args:
        tell: Given what the call returned, or raised, on the loop.
    """

    __slots__ = ("_is_done", "_tell")

    def __init__(self, tell: Callable[[Any], None]) -> None:
        self._tell = tell
        self._is_done = False

    def done(self) -> bool:
        """Whether somebody was told."""
        return self._is_done

    def set_result(self, outcome: Any) -> None:
        """Tell what it returned."""
        self._is_done = True
        try:
            self._tell(outcome)
        except Exception:
            logger.exception("what came of a call could not be told")

    def set_exception(self, error: BaseException) -> None:
        """Tell what it raised."""
        self.set_result(error)


@final
class ThreadJob:
    """One call on its way to a lane and back.

    Attributes:
        pin: Whose call it is.
        mates: Whose calls it is besides, if it is a visit for several.
        run: What to do, in the thread.
        future: Who waits for it, on the loop.
        left: Told what came of it if nobody waits any more.
        since: When its thread began with it; 0.0 before.
        is_late: Whether it was given up.
        steps: How many steps it is, which tells how quick these environments are.
        split: Called if it takes long: lets what has not begun go elsewhere.
    """

    __slots__ = (
        "future", "is_late", "left", "mates", "pin", "run", "since", "split", "steps", "timer",
    )  # fmt: skip

    def __init__(
        self,
        pin: ThreadAffinity,
        run: Callable[[], Any],
        future: asyncio.Future[Any] | Callback,
        left: Callable[[Any, bool], None] | None,
        *,
        steps: int,
        mates: frozenset[ThreadAffinity] = frozenset(),
        split: Callable[[ThreadJob], None] | None = None,
    ) -> None:
        self.split = split
        self.pin = pin
        self.run = run
        self.future = future
        self.left = left
        self.since = 0.0
        self.is_late = False
        self.steps = steps
        self.mates = mates
        self.timer: asyncio.TimerHandle | None = None

    def is_of(self, pin: ThreadAffinity) -> bool:
        """Whether it runs the code of this environment."""
        return pin is self.pin or pin in self.mates


@final
class WorkerThread:
    """One thread, and the calls that wait for it.

    Attributes:
        jobs: What waits; `None` ends the thread.
        job: What runs.
        tenants: How many environments belong here.
        is_open: Whether calls may be sent here.
    """

    def __init__(self, number: int, hand_in: Callable[..., bool]) -> None:
        self.jobs: SimpleQueue[ThreadJob | None] = SimpleQueue()
        self.job: ThreadJob | None = None
        self.tenants = 0
        self.is_open = True
        self._hand_in = hand_in
        self.thread = threading.Thread(
            target=self._work, name=f"envweave-server-{number}", daemon=True
        )
        self.thread.start()

    def _work(self) -> None:
        jobs, hand_in = self.jobs, self._hand_in
        goes_on = True
        while goes_on and (job := jobs.get()) is not None:
            outcome: Any = None
            error: BaseException | None = None
            job.since = began = monotonic()
            self.job = job
            try:
                if not job.is_late:
                    outcome = job.run()
            except BaseException as raised:  # noqa: BLE001 - handed to whoever waits
                error = raised
            self.job = None
            goes_on = hand_in(self, job, outcome, error, monotonic() - began)
            del job, outcome, error  # while a thread waits it holds on to nothing

    def is_held_up(self, now: float) -> bool:
        """Whether a call here has taken so long that nobody should wait behind it."""
        job = self.job
        return job is not None and now - job.since > LONG_S

    def retire(self) -> None:
        """Let the thread end when it is done with what waits."""
        self.is_open = False
        self.jobs.put(None)


QUICK_S = 0.001
"""Environments whose steps take less than this, on average, share a lane."""

SLOW_S = 0.005
"""Environments whose steps take more than this, on average, go apart if they shared lanes."""

QUICKLY_MADE_S = 0.002
"""While no step was taken yet, environments that are made within this are held for quick."""

JOIN_S = 1.0
"""How long to wait for a thread that has nothing left to do."""


@final
class PinnedThreadPool:
    """A bounded number of lanes, for the environments of one kind.

    Args:
        bound: How many lanes there may be, besides those that were given up.

    Attributes:
        changed: Called when a call is given up, or comes back after that.
    """

    def __init__(self, bound: int) -> None:
        self._bound = max(bound, 1)
        self._lanes: list[WorkerThread] = []
        self._retired: list[WorkerThread] = []  # those whose threads are about to end
        self._stuck: set[ThreadJob] = set()  # calls past their deadline that still run
        self._done: deque[tuple[WorkerThread, ThreadJob, Any, BaseException | None, float]] = (
            deque()
        )
        self._is_rung = False
        self._owed = 0  # calls that were sent and have not come back
        self._ticker: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mean_s: float | None = None  # of steps
        self._made_s: float | None = None
        self._number = 0
        self._is_closed = False
        self.changed: Callable[[], None] = lambda: None

    @property
    def stuck(self) -> int:
        """How many calls past their deadline still run."""
        return len(self._stuck)

    @property
    def threads(self) -> int:
        """How many lanes there are, without those that were given up."""
        return len(self._lanes)

    @property
    def is_quick(self) -> bool:
        """Whether these environments are quick, as far as is known."""
        if self._mean_s is None:
            return self._made_s is not None and self._made_s < QUICKLY_MADE_S
        return self._mean_s < QUICK_S

    def made_in(self, taken_s: float) -> None:
        """Take note of how long it took to make one; the quickest counts."""
        self._made_s = min(taken_s, taken_s if self._made_s is None else self._made_s)

    def run(
        self,
        pin: ThreadAffinity,
        call: Callable[[], Any],
        timeout_s: float | None = None,
        left: Callable[[Any, bool], None] | None = None,
        *,
        steps: int = 0,
        from_now: bool = False,
    ) -> asyncio.Future[Any]:
        """Run a call in the lane of its environment, after what waits there.

        Args:
            pin: Whose call it is.
            call: What to do, in the thread.
            timeout_s: How long it may take, from when its thread begins with it.
            left: Told, on the loop, what came of a call that nobody waits for any more (`None`
                if it raised), and whether that is because it was late.
            steps: How many steps it is, which tells how quick these environments are.
            from_now: Whether the time that it waits counts too.

        Returns:
            What it returns or raises. A `CallTimeoutError` says that it took too long and still
            runs.
        """
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        future = loop.create_future()
        job = ThreadJob(pin, call, future, left, steps=steps)
        if timeout_s is not None and not self._is_closed:
            began = loop.time() if from_now else None
            job.timer = loop.call_later(timeout_s, self._look, job, timeout_s, began)
        self._send(job, loop)
        return future

    def start(
        self,
        pin: ThreadAffinity,
        call: Callable[[], Any],
        tell: Callable[[Any], None],
        left: Callable[[Any, bool], None] | None = None,
        *,
        steps: int = 0,
        mates: frozenset[ThreadAffinity] = frozenset(),
        split: Callable[[ThreadJob], None] | None = None,
    ) -> None:
        """Run a call as `run` does, and tell what it returns or raises, on the loop.

        It may be a visit for others besides, who are its `mates`. If it takes long, `split` is
        called, which lets go elsewhere what has not begun.
        """
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        job = ThreadJob(pin, call, Callback(tell), left, steps=steps, mates=mates, split=split)
        self._send(job, loop)

    def _send(self, job: ThreadJob, loop: asyncio.AbstractEventLoop) -> None:
        """Send a call to the lane of its environment.

        Raises:
            LanesClosedError: No more calls are taken.
        """
        if self._is_closed:
            raise PoolClosedError
        pin = job.pin
        lane = pin.lane
        if lane is None or not lane.is_open:
            lane = self._assign(pin)
        elif lane.job is not None and not lane.job.is_of(pin) and lane.is_held_up(monotonic()):
            lane = self._move(pin)
        lane.jobs.put(job)
        self._owed += 1
        if self._ticker is None:
            self._ticker = loop.call_later(LONG_S, self._tick)

    def spread(self, pin: ThreadAffinity) -> None:
        """Give an environment a lane of its own, if it is slow, has neighbours, and one is left."""
        lane = pin.lane
        is_slow = self._mean_s is not None and self._mean_s > SLOW_S
        if lane is None or lane.tenants < 2 or not is_slow or len(self._lanes) >= self._bound:
            return
        self.leave(pin)
        self._take(pin, self._new())

    def leave(self, pin: ThreadAffinity) -> None:
        """An environment is gone; a lane without any ends, if there are enough."""
        lane, pin.lane = pin.lane, None
        if lane is None:
            return
        lane.tenants -= 1
        if lane.tenants == 0 and lane.is_open and len(self._lanes) > 1:
            self._lanes.remove(lane)
            lane.retire()
            self._retired = [one for one in self._retired if one.thread.is_alive()]
            self._retired.append(lane)

    async def close(self) -> None:
        """Take no more calls, and end every thread that can be. May be called twice."""
        self._is_closed = True
        lanes, self._lanes = self._lanes, []
        for lane in lanes:
            lane.retire()
        for lane in (*lanes, *self._retired):
            if lane.job is None:
                lane.thread.join(JOIN_S)
        self._deliver()
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None

    # Where calls go

    def _assign(self, pin: ThreadAffinity) -> WorkerThread:
        """Give an environment its lane: its own if it may be slow, else one that it shares."""
        self.leave(pin)
        now = monotonic()
        free = [lane for lane in self._lanes if not lane.is_held_up(now)]
        if self.is_quick:
            # All in one: a thread costs more to wake up than a quick step takes, and of two
            # threads in Python only one computes.
            shared = max(free, key=lambda lane: lane.tenants, default=None)
            if shared is not None:
                return self._take(pin, shared)
        idle = [lane for lane in free if lane.tenants == 0]
        if idle:
            return self._take(pin, idle[0])
        if len(self._lanes) < self._bound:
            try:
                return self._take(pin, self._new())
            except RuntimeError:  # the system gives no more threads
                if not self._lanes:
                    raise
        return self._take(pin, min(free or self._lanes, key=lambda lane: lane.tenants))

    def _move(self, pin: ThreadAffinity) -> WorkerThread:
        """Take an environment out of a lane that is held up, if there is another."""
        before = pin.lane
        lane = self._assign(pin)
        if lane is not before:
            logger.debug("an environment goes on in another thread; a neighbour takes long")
        return lane

    def _take(self, pin: ThreadAffinity, lane: WorkerThread) -> WorkerThread:
        pin.lane = lane
        lane.tenants += 1
        return lane

    def _new(self) -> WorkerThread:
        self._number += 1
        lane = WorkerThread(self._number, self._hand_in)
        self._lanes.append(lane)
        return lane

    def _tick(self) -> None:
        """Look after lanes that are held up; there is a tick as long as a call is out."""
        self._ticker = None
        self._deliver()
        now = monotonic()
        for lane in [lane for lane in self._lanes if lane.is_held_up(now)]:
            self._clear(lane)
        if self._owed > len(self._stuck) and self._loop is not None and not self._is_closed:
            self._ticker = self._loop.call_later(LONG_S, self._tick)

    def _clear(self, lane: WorkerThread) -> None:
        """Send what waits in a lane elsewhere, but for calls of the environment that runs."""
        waiting = []
        with contextlib.suppress(Empty):
            while True:
                waiting.append(lane.jobs.get_nowait())
        running = lane.job
        if running is not None and running.split is not None:
            running.split(running)
        for job in waiting:
            if job is None or (running is not None and running.is_of(job.pin) and lane.is_open):
                lane.jobs.put(job)
            elif job.pin.lane is lane:
                self._move(job.pin).jobs.put(job)
            else:  # its environment has moved already, or is gone
                (job.pin.lane or self._assign(job.pin)).jobs.put(job)

    # What comes back

    def _hand_in(
        self,
        lane: WorkerThread,
        job: ThreadJob,
        outcome: Any,
        error: BaseException | None,
        taken_s: float,
    ) -> bool:
        """In the lane's thread: put what came of a call where the loop finds it.

        The loop is woken once for several quick calls; `_tick` finds what it was not told of.
        Returns whether there still is a loop.
        """
        self._done.append((lane, job, outcome, error, taken_s))
        if not self._is_rung and (taken_s > QUICK_S or lane.jobs.empty() or not lane.is_open):
            self._is_rung = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)  # type: ignore[union-attr]
            except RuntimeError:
                return False  # the loop is closed
        return True

    def _deliver(self) -> None:
        self._is_rung = False
        done = self._done
        while done:
            lane, job, outcome, error, taken_s = done.popleft()
            self._owed -= 1
            if job.timer is not None:
                job.timer.cancel()
            if job.steps and not job.is_late:
                self._learn(min(taken_s / job.steps, LONG_S))
            if job.is_late:
                self._came_back(lane, job, outcome)
            elif job.future.done():
                _tell_left(job, outcome, is_late=False)
            elif error is None:
                job.future.set_result(outcome)
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                job.future.set_exception(error)
            else:  # what would end a loop, or a coroutine, has no place there
                job.future.set_exception(RuntimeError(f"it raised {error!r}"))

    def _learn(self, taken_s: float) -> None:
        mean_s = self._mean_s
        self._mean_s = taken_s if mean_s is None else mean_s + (taken_s - mean_s) / 16

    # What is late

    def _look(self, job: ThreadJob, timeout_s: float, began: float | None) -> None:
        """Give a call up when its time is over."""
        loop = self._loop
        assert loop is not None  # a timer was set on it
        if began is None and not job.since:
            job.timer = loop.call_later(timeout_s, self._look, job, timeout_s, began)
            return
        left_s = 0.0 if began is not None else job.since + timeout_s - monotonic()
        if left_s > 0:
            job.timer = loop.call_later(left_s, self._look, job, timeout_s, began)
            return
        self._deliver()
        if job.future.done():
            return
        self._give_up(job)

    def _give_up(self, job: ThreadJob) -> None:
        job.future.set_exception(CallTimeoutError())
        lane = job.pin.lane
        running = None if lane is None else lane.job
        runs = running is not None and running.pin is job.pin
        job.is_late = runs or bool(job.since)  # else it waits for others, and is run in its turn
        if not runs or lane is None or running is None:
            return
        if not running.is_late:  # a call before this one, which nobody has given up
            running.is_late = True
            if not running.future.done():
                running.future.set_exception(CallTimeoutError())
        self._stuck.add(running)
        self.changed()
        if lane.is_open:
            lane.is_open = False
            self._lanes.remove(lane)
        self._clear(lane)

    def _came_back(self, lane: WorkerThread, job: ThreadJob, outcome: Any) -> None:
        was_stuck = job in self._stuck
        self._stuck.discard(job)
        lane.is_open, was_open = True, lane.is_open  # so that it can be closed where it ran
        _tell_left(job, outcome, is_late=True)
        lane.is_open = was_open
        if was_stuck:
            lane.jobs.put(None)
            self.changed()


def _tell_left(job: ThreadJob, outcome: Any, *, is_late: bool) -> None:
    if job.left is None:
        return
    try:
        job.left(outcome, is_late)
    except Exception:
        logger.exception("what came of a call that nobody waits for could not be put away")
