"""`Rollout`: whole episodes, many at a time, as they finish or all together.

A crew of workers plays the episodes. A worker takes a line to an environment of the pool, then
a job, plays it, gives the line back and delivers the episode. A conductor waits for the workers:
the first error ends them all. Whoever leaves, by `break`, by an error or by being cancelled, ends
the conductor first, so nothing is ever left running.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import warnings
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, final

from envweave.errors import CallOrderError, RolloutFailedError
from envweave.rollouts.faults import Fault, FaultBook, OnFault
from envweave.rollouts.jobs import Job, Plan
from envweave.rollouts.playing import Agent, Attempt, play
from envweave.rollouts.pooling import Line, Pool
from envweave.rollouts.progress import Figures, Show, show_progress
from envweave.types import Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How the episodes are to be played.

    Attributes:
        concurrency: How many at the same time.
        max_steps: Truncate each after so many steps.
        on_fault: What is done about one that fails.
        attempts: How often an episode is played before it is given up.
        max_faults: How many faults are replaced in all.
        progress: Whether progress is shown; `None` where there is a terminal for it.
    """

    concurrency: int
    max_steps: int | None
    on_fault: OnFault
    attempts: int
    max_faults: int | None
    progress: bool | None


@dataclass(frozen=True, slots=True)
class _Again:
    """An episode to be played again, over another line."""

    job: Job
    attempts: int
    line: Line


@final
class Rollout:
    """Whole episodes, many at a time. It runs once, and begins when it is asked for the first.

    - `await rollout` returns all episodes, in the order of their tasks, groups together.
    - `async for episode in rollout` yields each when it is finished. At most twice as many as
      run at the same time are held for who is slow to take them; then no more are begun.
    - In a program without an event loop, `rollout.run()` and `for episode in rollout` do the same.

    Attributes:
        seed: What the seed of every episode is derived from, given or drawn; `None` if the
            environment takes none.
        total: How many episodes there will be, if that is known.
    """

    def __init__(self, pool: Pool, agent: Agent, plan: Plan, manner: Manner) -> None:
        self._pool = pool
        self._agent = agent
        self._manner = manner
        self.seed = plan.seed
        self.total = plan.total()
        self._jobs = plan.jobs(pool.tasks)
        self._again: deque[_Again] = deque()
        self._book = FaultBook(
            pool.id, manner.on_fault, manner.attempts, manner.max_faults, manner.concurrency
        )
        self._name = secrets.token_hex(6)
        self._finished: deque[Episode] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Semaphore(2 * manner.concurrency)
        self._conductor: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._has_begun = False
        self._is_over = False
        self._unused = weakref.finalize(self, _unused, pool.id)
        self._unused.atexit = False

    @property
    def faults(self) -> list[Fault]:
        """The episodes that failed, and not by the agent: the last 1,000, with their causes."""
        return list(self._book.recent)

    @property
    def fault_counts(self) -> dict[str, int]:
        """How many episodes failed, and not by the agent, by reason."""
        return dict(self._book.counts)

    # For callers with an event loop

    def __await__(self) -> Generator[Any, None, list[Episode]]:
        self._unused.detach()
        return self._all().__await__()

    async def _all(self) -> list[Episode]:
        async with aclosing(self._episodes()) as stream:
            episodes = [episode async for episode in stream]
        return sorted(episodes, key=lambda episode: (episode.group, episode.member))

    def __aiter__(self) -> AsyncGenerator[Episode, None]:
        self._unused.detach()
        return self._episodes()

    async def _episodes(self) -> AsyncGenerator[Episode, None]:
        self._begin()
        if not self._is_over:
            with show_progress(self.total, wanted=self._manner.progress) as show:
                self._conductor = asyncio.create_task(self._conduct(show))
                self._conductor.add_done_callback(lambda _: self._news.set())
                try:
                    while (episode := await self._receive(self._conductor)) is not None:
                        yield episode
                finally:
                    await self._end()
        if self._error is not None:
            raise self._error

    async def _receive(self, conductor: asyncio.Task[None]) -> Episode | None:
        while not self._finished and not conductor.done():
            self._news.clear()
            await self._news.wait()
        if not self._finished:
            return None
        self._room.release()
        return self._finished.popleft()

    def _begin(self) -> None:
        if self._has_begun:
            raise CallOrderError(
                "This rollout has been awaited or gone through already. Begin another one with "
                "rollout(), with the same seed for the same episodes."
            )
        self._has_begun = True
        if not self._is_over:
            self._pool.admit(self)

    async def cancel(self) -> None:
        """End it, and wait until nothing of it runs. May be called twice.

        Whoever awaits it gets the episodes that were finished. The pool can be used again.
        """
        self._unused.detach()
        await self._end()

    async def stop(self, why: Exception) -> None:
        """End it, and wait until nothing of it runs. Whoever awaits it gets `why`."""
        if not self._is_over:
            self._error = why
        await self.cancel()

    async def _end(self) -> None:
        conductor = self._conductor
        if conductor is not None and not conductor.done():
            if not self._is_over:
                conductor.cancel()
            self._is_over = True
            await asyncio.wait([conductor])
        self._is_over = True
        self._pool.dismiss(self)

    # For callers without one

    def run(self) -> list[Episode]:
        """Play all episodes and return them as `await` does, in a program without a loop.

        Raises:
            CallOrderError: There is a running event loop, where it is to be awaited; or the pool
                is in no `with` block.
        """
        self._unused.detach()
        return self._pool.loop().run(self._all())

    def __iter__(self) -> Iterator[Episode]:
        self._unused.detach()
        loop = self._pool.loop()
        stream = self._episodes()
        try:
            while (episode := loop.run(_next(stream))) is not None:
                yield episode
        finally:
            if not loop.is_closed:
                loop.run(stream.aclose())

    # The crew

    async def _conduct(self, show: Show) -> None:
        """Let the workers play until all is played, or one of them raises. It raises nothing."""
        figures = Figures(self.total, time.perf_counter())
        count = self._manner.concurrency
        if self.total is not None:
            count = min(count, self.total)
        crew = [asyncio.create_task(self._work(figures, show)) for _ in range(count)]
        try:
            if crew:
                await asyncio.wait(crew, return_when=asyncio.FIRST_EXCEPTION)
            self._note(crew)
        finally:
            for worker in crew:
                worker.cancel()
            await asyncio.gather(*crew, return_exceptions=True)
            self._note(crew)
        if self._error is None:
            try:
                self._book.check()
            except RolloutFailedError as error:
                self._error = error

    def _note(self, crew: list[asyncio.Task[None]]) -> None:
        """Keep the first error that a worker raised, if there is one."""
        for worker in crew:
            if self._error is None and worker.done() and not worker.cancelled():
                self._error = worker.exception()

    async def _work(self, figures: Figures, show: Show) -> None:
        while not self._is_over:
            await self._room.acquire()
            async with self._pool.line() as line:
                wanted = self._next(line)
                if wanted is None:
                    self._room.release()
                    return
                attempts = wanted.attempts + 1
                episode = await self._play(line, wanted.job, attempts)
            if self._book.judge(episode):
                self._again.append(_Again(wanted.job, attempts, line))
                self._room.release()
            else:
                self._finished.append(episode)
                self._news.set()
                figures.add(episode)
            figures.faults = self._book.counts.total()
            show(figures)

    def _next(self, line: Line) -> _Again | None:
        """Return what to play over this line; what failed over another one comes first."""
        crowded = len(self._again) >= self._manner.concurrency or self._pool.size == 1
        for i, again in enumerate(self._again):
            if crowded or again.line is not line:
                del self._again[i]
                return again
        job = next(self._jobs, None)
        if job is not None:
            return _Again(job, 0, line)
        return self._again.popleft() if self._again else None

    async def _play(self, line: Line, job: Job, number: int) -> Episode:
        again = "" if number == 1 else f"-{number}"
        attempt = Attempt(
            job=job,
            episode_id=f"{self._name}-{job.group}-{job.member}{again}",
            number=number,
            agents=self._pool.possible_agents,
            max_steps=self._manner.max_steps,
        )
        return await play(line, self._agent, attempt)


async def _next(stream: AsyncGenerator[Episode, None]) -> Episode | None:
    return await anext(stream, None)


def _unused(env_id: str) -> None:
    warnings.warn(
        f"A rollout of {env_id!r} was never awaited, so nothing was played.",
        RuntimeWarning,
        stacklevel=1,
    )
