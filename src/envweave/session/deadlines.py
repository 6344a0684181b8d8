"""How long an author's coroutine may take, and what becomes of one that takes longer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, final

from envweave.errors import DeadlineError

logger = logging.getLogger("envweave.session")

GRACE_S = 0.5
"""How long a coroutine that was cancelled may take to end. After that nobody waits for it."""


@final
class Deadline:
    """Runs the coroutines of one environment, each for at most `timeout_s` seconds.

    Without `timeout_s` they run in the caller's own task, and take as long as they take. With
    it each runs in a task of its own. One that is late is cancelled; if it does not end even
    then, it is left to itself: what comes of it is dropped, and `has_strays` says that it runs.

    The clock starts with the author's first line. While the loop stands still (`idle_s` counts
    those seconds) so does the clock, for the author's code stands still too.

    Attributes:
        missed: What the last late call was told; an author may raise a `DeadlineError` too.
    """

    def __init__(
        self,
        timeout_s: float | None,
        idle_s: Callable[[], float] = lambda: 0.0,
        all_strays: set[asyncio.Task[Any]] | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self._all_strays = all_strays
        self._idle_s = idle_s
        self.missed: DeadlineError | None = None
        self._strays: set[asyncio.Task[Any]] = set()

    @property
    def has_strays(self) -> bool:
        """Whether a call that was cancelled is still running."""
        return bool(self._strays)

    async def run(self, name: str, start: Callable[[], Awaitable[Any]]) -> Any:
        """Run one call to its end, or to its deadline.

        Raises:
            DeadlineError: It took too long. Whatever the call itself raises passes as it is.
        """
        if self.timeout_s is None:
            return await own(start())
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
        """Cancel a call and wait for its end, but not for ever."""
        task.cancel()
        try:
            await asyncio.wait((task,), timeout=GRACE_S)
        finally:
            if not task.done():
                logger.warning("%s() was cancelled and goes on; nobody waits for it", name)
                for known in (self._strays, self._all_strays):
                    if known is not None:
                        known.add(task)
                        task.add_done_callback(known.discard)


@final
class _Clock:
    """Counts the seconds of one call; `stopped` is done with the call, or when they are used up."""

    def __init__(self, allowed_s: float, idle_s: Callable[[], float]) -> None:
        self.loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[None] = self.loop.create_future()
        self._allowed_s = allowed_s
        self._idle_s = idle_s
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._ends_s = self._now_s() + self._allowed_s
        self._look()

    def _now_s(self) -> float:
        return self.loop.time() - self._idle_s()

    def _look(self) -> None:
        left_s = self._ends_s - self._now_s()
        if left_s > 0:
            self._timer = self.loop.call_later(left_s, self._look)
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
    """Run a call and return what came of it, so that nothing is raised out of its task."""
    clock.start()
    try:
        return await own(start()), None
    except BaseException as error:  # noqa: BLE001 - raised again where the call was made
        return None, error


async def own(call: Awaitable[Any]) -> Any:
    """Await an author's coroutine; a cancellation that nobody asked for is its own failure."""
    try:
        return await call
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling() == 0:
            raise RuntimeError("something that the environment awaits was cancelled") from error
        raise
