"""`mode="async"`: a vector's environments all at once, on one private event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, final

from envweave.session import AsyncDriver, PrivateLoop, Session
from envweave.transports.apart import Call, Outcome


@final
class LoopCrew:
    """Runs every environment as a task of one loop, which turns while somebody waits.

    Each call of an author's may take `timeout_s` seconds; time in which nobody waits is not
    counted.
    """

    def __init__(self, sessions: list[Session], timeout_s: float | None = None) -> None:
        self._loop = PrivateLoop(is_patient=timeout_s is None)
        self._drivers = [AsyncDriver(one, timeout_s, self._loop.idle_s) for one in sessions]
        self._calls: deque[Call] = deque()  # that have no task yet
        self._tasks: dict[int, asyncio.Task[Outcome]] = {}  # that run, by number of call
        self._last: dict[int, asyncio.Task[Outcome]] = {}  # the last of each environment
        self._progress: asyncio.Event | None = None
        self.done: dict[int, Outcome] = {}

    def run(self, call: Call) -> None:
        """Run one call, as soon as somebody waits."""
        self._calls.append(call)

    def wait(self, count: int, timeout_s: float | None) -> None:
        """Turn the loop until `count` outcomes are there, or the time is up."""
        self._loop.run(self._turn(count, timeout_s))

    async def _turn(self, count: int, timeout_s: float | None) -> None:
        progress = self._progress = asyncio.Event()
        while self._calls:
            self._start(self._calls.popleft())
        try:
            async with asyncio.timeout(timeout_s):
                while len(self.done) < count:
                    progress.clear()
                    await progress.wait()
        except TimeoutError:
            return

    def _start(self, call: Call) -> None:
        method = getattr(self._drivers[call.env_index], call.method)
        start = partial(method, *call.args, **call.keywords)
        task = asyncio.ensure_future(_outcome(start, after=self._last.get(call.env_index)))
        self._tasks[call.number] = self._last[call.env_index] = task
        task.add_done_callback(partial(self._deliver, call.number))

    def _deliver(self, number: int, task: asyncio.Task[Outcome]) -> None:
        self._tasks.pop(number, None)
        self.done[number] = asyncio.CancelledError() if task.cancelled() else task.result()
        if self._progress is not None:
            self._progress.set()

    def abandon(self, numbers: Collection[int]) -> None:
        """Cancel these calls. The next one on the same environment waits until they are over."""
        self._calls = deque(call for call in self._calls if call.number not in numbers)
        for number, task in list(self._tasks.items()):
            if number in numbers:
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
        running = list(self._tasks.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        closed = await asyncio.gather(*[_outcome(driver.close) for driver in self._drivers])
        return [outcome for outcome in closed if isinstance(outcome, BaseException)]


async def _outcome(
    start: Callable[[], Awaitable[Any]], after: asyncio.Task[Outcome] | None = None
) -> Outcome:
    """Return what came of a call, also what it raised, so that the loop goes on for the others."""
    try:
        if after is not None and not after.done():
            await asyncio.wait([after])
        return await start()
    except BaseException as error:  # noqa: BLE001 - handed to whoever waits
        return error
