"""`mode="async"`: a vector's environments all at once, on one private event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import Any, final

from envweave.session import AsyncDriver, PrivateLoop, Session
from envweave.transports.apart import Outcome


@final
class LoopCrew:
    """Runs every environment as a task of one loop, which turns while somebody collects."""

    def __init__(self, sessions: list[Session]) -> None:
        self._drivers = [AsyncDriver(session) for session in sessions]
        self._loop = PrivateLoop()
        self._calls: deque[tuple[int, Coroutine[Any, Any, Any]]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._done: deque[tuple[int, Outcome]] = deque()
        self._progress: asyncio.Event | None = None

    def reset(self, index: int, keywords: Mapping[str, Any]) -> None:
        """Let one environment begin an episode."""
        self._calls.append((index, self._drivers[index].reset(**keywords)))

    def step(self, index: int, action: Any) -> None:
        """Let one environment take a step."""
        self._calls.append((index, self._drivers[index].step(action)))

    def collect(self, count: int, timeout_s: float | None) -> list[tuple[int, Outcome]]:
        """Turn the loop until `count` outcomes are there, or the time is up."""
        self._loop.run(self._wait(count, timeout_s))
        done = list(self._done)
        self._done.clear()
        return done

    async def _wait(self, count: int, timeout_s: float | None) -> None:
        progress = self._progress = asyncio.Event()
        while self._calls:
            task = asyncio.ensure_future(self._run(*self._calls.popleft()))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        try:
            async with asyncio.timeout(timeout_s):
                while len(self._done) < count:
                    progress.clear()
                    await progress.wait()
        except TimeoutError:
            return

    async def _run(self, index: int, call: Coroutine[Any, Any, Any]) -> None:
        try:
            outcome: Outcome = await call
        except Exception as error:  # noqa: BLE001 - handed to whoever collects
            outcome = error
        self._done.append((index, outcome))
        if self._progress is not None:
            self._progress.set()

    def close(self) -> None:
        """Cancel what runs, close every environment and the loop."""
        if self._loop.is_closed:
            return
        while self._calls:
            self._calls.popleft()[1].close()
        try:
            failures = self._loop.run(self._close_all())
        finally:
            self._loop.close()
        if failures:
            raise failures[0]

    async def _close_all(self) -> list[BaseException]:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        closed = await asyncio.gather(
            *[driver.close() for driver in self._drivers], return_exceptions=True
        )
        return [outcome for outcome in closed if isinstance(outcome, BaseException)]
