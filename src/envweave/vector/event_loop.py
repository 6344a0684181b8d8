"""`mode="async"`: a vector's environments all at once, on one private event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Collection
from typing import final

from envweave.session import AsyncDriver, PrivateLoop, Session
from envweave.vector.concurrent import Outcome, QueuedCall


@final
class LoopCallExecutor:
    """Runs every environment as a task of one loop, which runs while a caller waits.

    Each call of an author's may take `timeout_s` seconds; the time between waits is not counted.
    """

    def __init__(self, sessions: list[Session], timeout_s: float | None = None) -> None:
        self._loop = PrivateLoop(is_patient=timeout_s is None)
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
        while self._calls:
            self._start(self._calls.popleft())
        try:
            async with asyncio.timeout(timeout_s):
                while len(self.done) < count:
                    progress.clear()
                    await progress.wait()
        except TimeoutError:
            return

    def _start(self, call: QueuedCall) -> None:
        before = self._last.get(call.env_index)
        task = asyncio.get_running_loop().create_task(self._run(call, before))
        self._tasks[call.number] = self._last[call.env_index] = task

    async def _run(self, call: QueuedCall, before: asyncio.Task[None] | None) -> None:
        """Run one call and deliver its outcome, also what it raised."""
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
