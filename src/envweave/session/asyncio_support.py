"""Deadlines for an author's coroutines, and a private event loop to run them on."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar, final

from envweave.errors import BusyError, CallOrderError, DeadlineError
from envweave.lifetime import OwnerProcess

logger = logging.getLogger("envweave.session")

GRACE_S = 0.5
"""How long a cancelled coroutine may take to end. After that it is abandoned."""


@final
class Deadline:
    """Runs the coroutines of one environment, each for at most `timeout_s` seconds.

    Without `timeout_s` they run in the caller's own task, without a limit. With it each runs in
    a separate task. A late one is cancelled; if it does not end even then, it is orphaned: its
    outcome is dropped, and `has_orphans` is true while it runs.

    The clock starts with the author's first line. It stops while the loop does not run (`idle_s`
    counts those seconds), since the author's code does not run either.

    Attributes:
        missed: The error of the last late call, to tell it from an author's own `DeadlineError`.
    """

    def __init__(
        self,
        timeout_s: float | None,
        idle_s: Callable[[], float] = lambda: 0.0,
        all_orphans: set[asyncio.Task[Any]] | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self._all_orphans = all_orphans
        self._idle_s = idle_s
        self.missed: DeadlineError | None = None
        self._orphans: set[asyncio.Task[Any]] = set()

    @property
    def has_orphans(self) -> bool:
        """Whether a cancelled call is still running."""
        return bool(self._orphans)

    async def run(self, name: str, start: Callable[[], Awaitable[Any]]) -> Any:
        """Run one call to its end, or to its deadline.

        Raises:
            DeadlineError: It took too long. Exceptions of the call itself pass through.
        """
        if self.timeout_s is None:
            return await await_call(start())
        clock = _Clock(self.timeout_s, self._idle_s)
        task = clock.loop.create_task(_outcome(start, clock))
        task.add_done_callback(clock.stop)
        try:
            await clock.stopped
        except asyncio.CancelledError:
            await self._stop(name, task)
            raise
        if task.done():
            outcome, error = task.result()
            if error is not None:
                raise error
            return outcome
        await self._stop(name, task)
        self.missed = DeadlineError(f"{name}() took longer than timeout_s={self.timeout_s:g}")
        raise self.missed

    async def _stop(self, name: str, task: asyncio.Task[Any]) -> None:
        """Cancel a call and wait `GRACE_S` for its end."""
        task.cancel()
        try:
            await asyncio.wait((task,), timeout=GRACE_S)
        finally:
            if not task.done():
                logger.warning("%s() was cancelled and still runs; it is abandoned", name)
                for known in (self._orphans, self._all_orphans):
                    if known is not None:
                        known.add(task)
                        task.add_done_callback(known.discard)


@final
class _Clock:
    """The clock of one call; `stopped` is done when the call ends or its time is up."""

    def __init__(self, allowed_s: float, idle_s: Callable[[], float]) -> None:
        self.loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[None] = self.loop.create_future()
        self._allowed_s = allowed_s
        self._idle_s = idle_s
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._ends_s = self._now_s() + self._allowed_s
        self._check()

    def _now_s(self) -> float:
        return self.loop.time() - self._idle_s()

    def _check(self) -> None:
        left_s = self._ends_s - self._now_s()
        if left_s > 0:
            self._timer = self.loop.call_later(left_s, self._check)
        else:
            self.stop()

    def stop(self, _: object = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.stopped.done():
            self.stopped.set_result(None)


async def _outcome(
    start: Callable[[], Awaitable[Any]], clock: _Clock
) -> tuple[Any, BaseException | None]:
    """Run a call and return its result or error, so that nothing is raised out of its task."""
    clock.start()
    try:
        return await await_call(start()), None
    except BaseException as error:  # noqa: BLE001 - raised again where the call was made
        return None, error


async def await_call(call: Awaitable[Any]) -> Any:
    """Await an author's coroutine; a cancellation that we did not request is its own failure."""
    try:
        return await call
    except asyncio.CancelledError as error:
        raise unrequested(error) from error


def unrequested(error: asyncio.CancelledError) -> Exception:
    """Return the failure that a cancellation of the author's stands for.

    Raises:
        CancelledError: The caller requested it.
    """
    task = asyncio.current_task()
    if task is None or task.cancelling() > 0:
        raise error
    failure = RuntimeError("something that the environment awaits was cancelled")
    failure.__cause__ = error
    return failure


def new_fast_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop, if it is installed, else one of asyncio.

    Its timers count whole milliseconds, so it is for many environments at once, where the loop
    itself is most of the work.
    """
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


T = TypeVar("T")


@final
class PrivateLoop:
    """An event loop for one owner.

    It runs in the caller's thread. If the caller is itself inside a running loop (a notebook),
    which allows no second one in the same thread, it runs in a thread of its own, which `close`
    joins.

    Args:
        is_patient: Whether `close` waits until tasks and threads that environments left running
            end. Otherwise it waits `GRACE_S` and abandons them.
        new_loop: Makes the loop.
    """

    def __init__(
        self,
        *,
        is_patient: bool = True,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    ) -> None:
        self._loop = new_loop()
        self._thread: ThreadPoolExecutor | None = None
        self._workers: ThreadPoolExecutor | None = None  # only if `close` does not wait for them
        if not is_patient:
            self._workers = ThreadPoolExecutor(thread_name_prefix="envweave-worker")
            self._loop.set_default_executor(self._workers)
        self._idle_s = 0.0
        self._stopped_s = time.monotonic()
        self._owner = OwnerProcess()

    @property
    def is_inherited(self) -> bool:
        """Whether it was made before this process was forked, and belongs to the parent."""
        return not self._owner.is_current

    @property
    def is_closed(self) -> bool:
        """Whether `close` has been called."""
        return self._loop.is_closed()

    def idle_s(self) -> float:
        """Return how many seconds the loop was not running, up to its last start."""
        return self._idle_s

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result. An interrupt cancels it first.

        Raises:
            CallOrderError: See `refuse_misuse`.
        """
        try:
            self.refuse_misuse()
        except CallOrderError:
            work.close()
            raise
        self._idle_s += time.monotonic() - self._stopped_s
        try:
            return self._run_here_or_apart(self._loop.create_task(work))
        finally:
            self._stopped_s = time.monotonic()

    def refuse_misuse(self) -> None:
        """Refuse callers that must not use it now.

        Raises:
            BusyError: Another thread runs something on it.
            CallOrderError: It belongs to the process that this one was forked from.
        """
        if self.is_inherited:  # both processes would wait on the same descriptors
            raise CallOrderError(
                "This environment was made before this process was forked, and belongs to its "
                "parent. Make one in this process."
            )
        if self._loop.is_running():
            raise BusyError("Another thread is in a call on the same environment. Wait for it.")

    def _run_here_or_apart(self, task: asyncio.Task[T]) -> T:
        if not _is_loop_running():
            return self._complete(task)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="envweave-loop")
        running = self._thread.submit(self._complete, task)
        try:
            return running.result()
        except BaseException:
            if not running.done():
                self._loop.call_soon_threadsafe(task.cancel)
                wait([running])
            raise

    def _complete(self, task: asyncio.Task[T]) -> T:
        try:
            return self._run_on(task)
        except BaseException:
            if not task.done():
                task.cancel()
                self._run_on(self._loop.create_task(asyncio.wait([task])))
            raise

    def _run_on(self, task: asyncio.Task[T]) -> T:
        while True:
            try:
                return self._loop.run_until_complete(task)
            except RuntimeError:
                if task.done() or self._loop.is_closed() or self._loop.is_running():
                    raise
                # A stop was left over from an interrupted run; continue.

    def close(self) -> None:
        """Cancel all tasks, close the loop and join the thread.

        Raises:
            CallOrderError: See `refuse_misuse`; it stays open.
        """
        self.refuse_misuse()
        try:
            self.run(self._shut_down())
            if self._workers is not None:
                _join_briefly(self._workers)
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=True)
            self._loop.close()

    async def _shut_down(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        all_done = asyncio.gather(*left, return_exceptions=True)
        if self._workers is None:
            await all_done
        else:
            await asyncio.wait((all_done,), timeout=GRACE_S)
            if not all_done.done():
                logger.warning(
                    "%d tasks were cancelled and still run; they are abandoned", len(left)
                )
        await self._loop.shutdown_asyncgens()
        if self._workers is None:
            await self._loop.shutdown_default_executor()


def _is_loop_running() -> bool:
    """Whether the caller is itself inside a running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _join_briefly(workers: ThreadPoolExecutor) -> None:
    """Wait a moment for threads to end. A thread cannot be interrupted."""
    waiting = threading.Thread(target=workers.shutdown, daemon=True)
    waiting.start()
    waiting.join(GRACE_S)
    if waiting.is_alive():
        logger.warning("threads that an environment started are still running")
