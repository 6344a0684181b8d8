"""`Rollout`: whole episodes, many at a time, as they finish or all together.

A number of worker tasks play the episodes. A worker leases a slot of the pool, takes a job, plays
it, returns the slot and delivers the episode. A conductor task waits for the workers: the first
error ends them all. A caller that leaves, by `break`, by an error or by cancellation, ends the
conductor first, so nothing is left running.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
import time
import warnings
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final, get_args

from envweave.api.options import flag, whole_number
from envweave.errors import CallOrderError, OptionError, RolloutFailedError, suggest
from envweave.recording.writer import RunWriter, read_directory
from envweave.rollouts.episode import (
    Agent,
    EpisodeAgents,
    EpisodeAttempt,
    EpisodeFork,
    EpisodePlayer,
    play,
)
from envweave.rollouts.faults import Fault, FaultStats, OnFault
from envweave.rollouts.logged_slot import LoggedSlot
from envweave.rollouts.pool import Pool, PoolSlot
from envweave.rollouts.progress import RolloutProgress, Show, show_progress
from envweave.rollouts.recorded_slot import RecordedSlot
from envweave.rollouts.schedule import EpisodeJob, RolloutSchedule, make_schedule
from envweave.types import Episode, EpisodeEnd, Task

logger = logging.getLogger(__name__)

DEFAULT_MAX_STEPS = 1_000
"""How many steps an episode of a rollout may have if no limit is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOptions:
    """How to play the episodes.

    Attributes:
        concurrency: How many at the same time.
        max_steps: Truncate each after this many steps.
        is_default_limit: Whether `max_steps` is the default rather than the caller's.
        on_fault: What to do about one that fails.
        attempts: How often an episode is played before it is given up.
        max_faults: How many faults are retried in all.
        progress: Whether to show progress; `None` to show it on a terminal only.
        min_usable: The share of episodes that must be usable; `None` to only warn.
        record: The directory to record them into.
        branch_at: The step at which each is forked.
        width: How many continue from there.
    """

    concurrency: int
    max_steps: int | None
    is_default_limit: bool
    on_fault: OnFault
    attempts: int
    max_faults: int | None
    progress: bool | None
    min_usable: float | None
    record: Path | None = None
    branch_at: int | None = None
    width: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class _Play:
    """An episode to play.

    Attributes:
        job: Its task, seed and group.
        attempts: How often it was played before.
        slot: Where it was played last; of one that continues another, where that was forked.
        fork: Where it continues another one from.
    """

    job: EpisodeJob
    attempts: int
    slot: PoolSlot
    fork: EpisodeFork | None = None


@final
class Rollout:
    """Whole episodes, many at a time. It runs once, and starts when the first is requested.

    - `await rollout` returns all episodes, in the order of their tasks, groups together.
    - `async for episode in rollout` yields each when it is finished. For a slow consumer, at most
      twice as many as run at the same time are buffered; then no more are started.
    - In a program without an event loop, `rollout.run()` and `for episode in rollout` do the same.

    Attributes:
        seed: The seed that those of all episodes are derived from, passed or drawn; `None` if the
            environment takes none.
        total: How many episodes there will be, if that is known.
    """

    def __init__(
        self,
        pool: Pool,
        agent: Agent | EpisodeAgents,
        schedule: RolloutSchedule,
        options: RolloutOptions,
    ) -> None:
        self._pool = pool
        self._agent = agent
        self._options = options
        self.seed = schedule.seed
        self.total = None if options.branch_at is not None else schedule.total()
        self._jobs = schedule.jobs(pool.tasks)
        self._retries: deque[_Play] = deque()
        self._forks: deque[_Play] = deque()
        self._num_trunks = 0  # how many that may be forked are being played
        self._trunks_changed = asyncio.Event()
        self._fault_stats = FaultStats(
            pool.id,
            options.on_fault,
            options.attempts,
            options.max_faults,
            options.concurrency,
            options.min_usable,
        )
        self._num_delivered = self._num_cut = 0
        self._name = secrets.token_hex(6)
        self._finished: deque[Episode] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Semaphore(2 * options.concurrency)
        self._conductor: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._has_begun = False
        self._is_over = False
        self._writer: RunWriter | None = pool.writer
        self._unused = weakref.finalize(self, _unused, pool.id)
        self._unused.atexit = False

    @property
    def faults(self) -> list[Fault]:
        """Episodes that failed through no fault of the agent: the last 1,000, with their causes."""
        return list(self._fault_stats.recent)

    @property
    def fault_counts(self) -> dict[str, int]:
        """How many episodes failed through no fault of the agent, by reason."""
        return dict(self._fault_stats.counts)

    @property
    def restored(self) -> int:
        """How many losses episodes were brought back from, in a pool that is `durable`."""
        return self._fault_stats.restored

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
            progress = self._options.progress
            stream = None if progress is False else sys.stderr
            with show_progress("rollout", self.total, stream, lines=bool(progress)) as show:
                self._conductor = asyncio.create_task(self._conduct(show))
                self._conductor.add_done_callback(lambda _: self._changed.set())
                try:
                    while (episode := await self._receive(self._conductor)) is not None:
                        yield episode
                finally:
                    await self._end()
        if self._error is not None:
            raise self._error

    async def _receive(self, conductor: asyncio.Task[None]) -> Episode | None:
        while not self._finished and not conductor.done():
            self._changed.clear()
            await self._changed.wait()
        if not self._finished:
            return None
        self._room.release()
        return self._finished.popleft()

    def _begin(self) -> None:
        if self._has_begun:
            raise CallOrderError(
                "This rollout was already awaited or iterated over. Begin another one with "
                "rollout(), with the same seed for the same episodes."
            )
        self._has_begun = True
        if not self._is_over:
            if self._options.record is not None:
                self._writer = self._pool.open_writer(self._options.record)
            self._pool.admit(self)

    async def cancel(self) -> None:
        """Cancel it, and wait until nothing of it runs. May be called twice.

        Code that awaits it gets the finished episodes. The pool can be used again.
        """
        self._unused.detach()
        await self._end()

    async def stop(self, why: Exception) -> None:
        """End it, and wait until nothing of it runs. Code that awaits it gets `why`."""
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
        if self._writer is not None and self._writer is not self._pool.writer:
            self._writer.close()
        self._pool.dismiss(self)

    # For callers without an event loop

    def run(self) -> list[Episode]:
        """Play all episodes and return them as `await` does, in a program without an event loop.

        Raises:
            CallOrderError: There is a running event loop, so it must be awaited; or the pool is not
                in a `with` block.
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

    # The workers

    async def _conduct(self, show: Show) -> None:
        """Run the workers until all is played, or one of them raises. It raises nothing."""
        figures = RolloutProgress(time.perf_counter(), describe_workers=self._pool.describe_workers)
        count = self._options.concurrency
        if self.total is not None:
            count = min(count, self.total)
        workers = [asyncio.create_task(self._work(figures, show)) for _ in range(count)]
        try:
            if workers:
                await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            self._keep_first_error(workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            self._keep_first_error(workers)
        if self._error is None:
            try:
                self._fault_stats.conclude()
                self._warn_of_default_limit()
            except RolloutFailedError as error:
                self._error = error

    def _warn_of_default_limit(self) -> None:
        if self._num_cut:
            logger.warning(
                "%d of %d episodes of %r were truncated after %d steps, the default limit of a "
                "rollout. Pass max_steps=N for another limit, or max_steps=None for none.",
                self._num_cut,
                self._num_delivered,
                self._pool.id,
                DEFAULT_MAX_STEPS,
            )

    def _keep_first_error(self, workers: list[asyncio.Task[None]]) -> None:
        """Keep the first error that a worker raised, if there is one."""
        for worker in workers:
            if self._error is None and worker.done() and not worker.cancelled():
                self._error = worker.exception()

    async def _work(self, figures: RolloutProgress, show: Show) -> None:
        while not self._is_over:
            await self._room.acquire()
            async with self._pool.line() as slot:
                one = self._next(slot)
                if one is not None:
                    await self._play_in(slot, one, figures, show)
            if one is None:
                self._room.release()
                if not self._num_trunks and not self._forks:
                    return
                if not self._forks:
                    self._trunks_changed.clear()
                    await self._trunks_changed.wait()

    async def _play_in(
        self, slot: PoolSlot, one: _Play, figures: RolloutProgress, show: Show
    ) -> None:
        """Play an episode, and deliver it, or see to it that it is played again or continued."""
        attempts = one.attempts + 1
        may_fork = self._options.branch_at is not None and one.fork is None
        self._num_trunks += may_fork
        try:
            played = await self._play(slot, one, attempts)
        finally:
            self._num_trunks -= may_fork
            self._trunks_changed.set()
        continued: list[_Play] = []
        if isinstance(played, EpisodeFork):
            for member in range(self._options.width):
                job = replace(one.job, member=member, task=played.task)
                continued.append(_Play(job, 0, slot, played))
            self._room.release()
        elif self._fault_stats.record(played):
            self._retries.append(replace(one, attempts=attempts, slot=slot))
            self._room.release()
        else:
            self._finished.append(played)
            self._num_delivered += 1
            self._num_cut += self._is_cut_by_default(played)
            self._changed.set()
            figures.add(played)
        figures.faults = self._fault_stats.counts.total()
        figures.restored = self._fault_stats.restored
        show(figures.finished, figures)
        if self._pool.deterministic:
            self._forks.extend(continued)
            return
        for fork in continued:  # only a copy of the state leads there, and it may be here only
            await self._room.acquire()
            await self._play_in(slot, fork, figures, show)

    def _is_cut_by_default(self, episode: Episode) -> bool:
        return (
            self._options.is_default_limit
            and episode.end.reason == "truncated"
            and episode.length >= DEFAULT_MAX_STEPS
        )

    def _next(self, slot: PoolSlot) -> _Play | None:
        """Return what to play in this slot; retries of other slots' episodes come first."""
        crowded = len(self._retries) >= self._options.concurrency or self._pool.size == 1
        for i, retry in enumerate(self._retries):
            if crowded or retry.slot is not slot:
                del self._retries[i]
                return retry
        if self._forks:
            here = next((one for one in self._forks if one.slot is slot), self._forks[0])
            self._forks.remove(here)
            return here
        job = next(self._jobs, None)
        if job is not None:
            return _Play(job, 0, slot)
        return self._retries.popleft() if self._retries else None

    async def _play(self, slot: PoolSlot, one: _Play, number: int) -> Episode | EpisodeFork:
        job, fork, branch_at = one.job, one.fork, self._options.branch_at
        is_trunk = branch_at is not None and fork is None
        name = "trunk" if is_trunk else str(job.member)
        again = "" if number == 1 else f"-{number}"
        attempt = EpisodeAttempt(
            job=job,
            episode_id=f"{self._name}-{job.group}-{name}{again}",
            number=number,
            agents=self._pool.possible_agents,
            max_steps=self._options.max_steps,
            env_id=self._pool.id,
            branch_at=branch_at if is_trunk else None,
            fork=fork,
        )
        env: EpisodePlayer = slot
        logged = recorded = None
        if self._pool.durable or branch_at is not None:
            env = logged = LoggedSlot(slot, self._pool.interface, is_durable=self._pool.durable)
        if self._writer is not None:
            env = recorded = RecordedSlot(logged or slot, attempt, self._writer)
        view, agent = env, self._agent
        if isinstance(agent, EpisodeAgents):
            if fork is None:
                view, agent = agent.begin(env, self._pool)
            else:
                fork = fork.copied(env, attempt.episode_id, self._pool)
                view, agent = fork.view, fork.agent
                attempt = replace(attempt, fork=fork)
        watched = agent if recorded is None else recorded.watch(agent)
        played = await play(view, watched, attempt, env)
        if logged is not None:
            self._fault_stats.restored += logged.restored
        if isinstance(played, EpisodeFork):
            end = EpisodeEnd("truncated", cause=f"{self._options.width} episodes continue from it.")
            played = replace(played, agent=agent)
        else:
            end = played.end
            played.restored = 0 if logged is None else logged.restored
        if recorded is not None:
            recorded.finish(end)
        return played


async def _next(stream: AsyncGenerator[Episode, None]) -> Episode | None:
    return await anext(stream, None)


def _unused(env_id: str) -> None:
    warnings.warn(
        f"A rollout of {env_id!r} was never awaited, so nothing was played.",
        RuntimeWarning,
        stacklevel=1,
    )


def rollout(
    pool: Pool,
    agent: Agent | EpisodeAgents,
    *,
    tasks: Iterable[Task | str] | None = None,
    episodes: int | None = None,
    group_size: int = 1,
    seed: int | Sequence[int] | None = None,
    share_seed: bool = False,
    max_concurrency: int | None = None,
    max_steps: int | Literal["auto"] | None = "auto",
    on_fault: OnFault = "replace",
    attempts: int = 3,
    max_faults: int | None = None,
    min_usable: float | None = None,
    progress: bool | None = None,
    record: str | os.PathLike[str] | None = None,
    branch_at: int | None = None,
    width: int | None = None,
) -> Rollout:
    """Play whole episodes, many at a time, and return them as they finish or all together.

    Await the returned `Rollout` for a list of `Episode`s, or iterate over it with `async for`; in a
    program without an event loop, call its `run()`, or iterate over it with `for`. With the same
    `seed`, and a deterministic agent and environment, the episodes are the same, however many run
    at the same time and whichever finishes first.

    An error of the agent, or a refused action, ends the rollout and is raised; a note on the error
    names the episode.

    Args:
        pool: Where to play.
        agent: Takes the last result and returns the next action, at once or as a coroutine. With
            several agents, it returns a dict with an action for exactly those in
            `result.needs`; while a tool call is open, its `ToolResult`. It may return a
            `Decision`, to record data with the action. A plain function runs on the loop's
            thread and blocks all other episodes meanwhile. For replies of a language model, a
            `ChatAgent` or `ReplyAgent`. The episodes keep the results that
            it gets, so it must not change them.
        tasks: What the episodes are about: tasks or their ids, taken one by one as they are
            needed. Left out, one is drawn for each group, if the environment has tasks.
        episodes: How many episodes at most; required if `tasks` is missing or endless.
        group_size: How many episodes share a task, as in GRPO.
        seed: The seed that those of all episodes are derived from; random by default. Or a list
            with one for each group, whose members share it.
        share_seed: Whether episodes that share a task share a seed too.
        max_concurrency: How many episodes run at the same time, if less than the pool's size.
        max_steps: Truncate every episode after this many steps; `None` for no limit. By default
            1,000, so that an agent that loops cannot hold a rollout forever; no limit is set
            where the pool or the environment's ID has one (`max_episode_steps`). A warning tells
            when the default cut an episode.
        on_fault: What to do about an episode that fails through no fault of the agent:
            `"replace"` plays the same task and seed again, in another environment if one is
            free, and after `attempts` attempts returns it as not usable; `"keep"` returns it
            as not usable; `"raise"` ends the rollout.
        attempts: How often an episode is played before it is given up.
        max_faults: How many faults are retried in all; no limit by default.
        min_usable: The share of episodes that must be usable, from 0 to 1. If fewer are, the
            rollout fails; by default it only warns when less than half are. Those that are left
            are biased: long episodes are lost more often than short ones.
        progress: Whether to show progress. By default a terminal gets a bar if rich is installed.
        record: The directory to record these episodes into, if not that of the pool; see `load`.
        branch_at: Fork every episode after this many steps: `width` episodes continue from the
            very same state, as a group. Each has as `parent` the episode that was forked (the
            trunk), its actions as `inherited`, and as steps and reward only its own. The trunk
            itself is not delivered; a recording has it, as truncated. An episode that ends before
            is delivered as it is, alone in its group. `episodes` and `tasks` count trunks.
            A function as the agent goes on with the new `episode_id`s, from step `branch_at`; what
            `begin` of a `ChatAgent`, or of your own such class, returned is copied with `deepcopy`.
        width: How many continue from there. Not with `group_size`: they are the group.

    Raises:
        OptionError: An option cannot be honored, or the number of episodes is unknown.
        SeedError: The environment takes no seed.
        TaskError: The environment takes no task.
        ClosedError: The pool is closed.
        RolloutFailedError: Not one episode could be used, or less than `min_usable` of them, or
            `on_fault="raise"` and one failed.
            Raised where the rollout is awaited.
    """
    if not isinstance(pool, Pool):
        raise OptionError(f"rollout() needs a Pool, got {pool!r}. Make one with pool().")
    if not callable(agent) and not isinstance(agent, EpisodeAgents):
        raise OptionError(f"agent={agent!r} cannot be called. Pass a function of the last result.")
    if on_fault not in get_args(OnFault):
        known = get_args(OnFault)
        raise OptionError(
            f"on_fault must be one of {', '.join(map(repr, known))}, got {on_fault!r}."
            f"{suggest(str(on_fault), known)}"
        )
    if progress is not None:
        flag("progress", progress)
    pool.check_open()
    concurrency = pool.size
    if max_concurrency is not None:
        concurrency = min(concurrency, whole_number("max_concurrency", max_concurrency))
    is_default = max_steps == "auto" and pool.max_episode_steps is None
    if max_steps == "auto":
        max_steps = DEFAULT_MAX_STEPS if is_default else None
    branch_at = _count("branch_at", branch_at)
    _check_branches(branch_at, width, group_size, max_steps)
    options = RolloutOptions(
        concurrency=concurrency,
        max_steps=_count("max_steps", max_steps),
        is_default_limit=is_default,
        on_fault=on_fault,
        attempts=whole_number("attempts", attempts),
        max_faults=_faults(max_faults),
        progress=progress,
        record=None if record is None else read_directory(record),
        min_usable=_share("min_usable", min_usable),
        branch_at=branch_at,
        width=1 if width is None else whole_number("width", width),
    )
    schedule = make_schedule(
        pool.interface,
        tasks=tasks,
        episodes=_count("episodes", episodes),
        group_size=whole_number("group_size", group_size),
        seed=seed,
        share_seed=flag("share_seed", share_seed),
    )
    return Rollout(pool, agent, schedule, options)


def _check_branches(
    branch_at: int | None, width: int | None, group_size: int, max_steps: int | str | None
) -> None:
    """Refuse options that contradict each other.

    Raises:
        OptionError: They do.
    """
    if (branch_at is None) is not (width is None):
        raise OptionError(
            f"branch_at={branch_at} and width={width} go together: the step at which each episode "
            "is forked, and how many continue from there. Pass both, such as branch_at=3, width=4."
        )
    if branch_at is None:
        return
    if group_size != 1:
        raise OptionError(
            f"group_size={group_size} cannot be combined with branch_at={branch_at}: the {width} "
            "episodes that continue from one state are a group. Leave group_size out, and pass "
            "each task as often as it is to be forked."
        )
    if isinstance(max_steps, int) and branch_at >= max_steps:
        raise OptionError(
            f"No episode reaches branch_at={branch_at}: max_steps={max_steps} truncates it before."
        )


def _faults(value: Any) -> int | None:
    return 0 if value == 0 and not isinstance(value, bool) else _count("max_faults", value)


def _share(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise OptionError(f"{name} must be a share from 0 to 1, such as 0.9, got {value!r}.")
    return float(value)


def _count(name: str, value: Any) -> int | None:
    return None if value is None else whole_number(name, value)
