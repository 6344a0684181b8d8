"""The same episodes wherever they are played, and what happens when a worker dies."""

from __future__ import annotations

import asyncio
import gc
import os
import signal

import pytest
from environments.tasks import Walk, forward
from processes import descendants

import envweave as ew


@pytest.fixture(params=["inproc", "process"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


def content(episodes: list[ew.Episode]) -> list[tuple]:
    return [(e.task_id, e.seed, e.observations, e.reward, e.end) for e in episodes]


@pytest.fixture(scope="module")
def expected() -> list[tuple]:
    with ew.pool(Walk, size=1) as pool:
        return content(ew.rollout(pool, forward, tasks=list("abcdef"), group_size=4, seed=3).run())


def rollout(pool: ew.Pool) -> ew.Rollout:
    return ew.rollout(pool, forward, tasks=list("abcdef"), group_size=4, seed=3)


@pytest.mark.slow  # starts worker processes
def test_every_backend_plays_the_same_episodes(backend, expected):
    with ew.pool(Walk, size=6, backend=backend) as pool:
        episodes = rollout(pool).run()

    assert content(episodes) == expected


@pytest.mark.slow  # starts worker processes
def test_on_every_backend_a_pool_can_be_reused_after_a_rollout_was_left_early(backend, expected):
    async def scenario() -> list[ew.Episode]:
        async with ew.pool(Walk, size=6, backend=backend) as pool:
            for steps in range(12):
                waiting = asyncio.ensure_future(anext(aiter(rollout(pool))))
                for _ in range(steps):
                    await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait([waiting])
            return await rollout(pool)

    assert content(asyncio.run(scenario())) == expected


@pytest.mark.slow  # starts worker processes
def test_episodes_of_a_worker_that_was_killed_are_played_again(expected):
    others = children()  # that tests of whole modules and sessions have

    async def scenario() -> tuple[list[ew.Episode], ew.Rollout]:
        async with ew.pool(Walk, size=6, backend="process") as pool:
            run, episodes = rollout(pool), []
            async for episode in run:
                episodes.append(episode)
                if len(episodes) == 3:
                    os.kill(min(children() - others), signal.SIGKILL)
            return episodes, run

    episodes, run = asyncio.run(scenario())

    episodes.sort(key=lambda episode: (episode.group, episode.member))
    assert content(episodes) == expected
    assert all("SIGKILL" in fault.cause for fault in run.faults)
    assert children() <= others


def children() -> set[int]:
    """The ids of the processes that this one has started."""
    return {one.pid for one in descendants() if one.parent == os.getpid()}


def alive_of(rollout: str) -> int:
    found = [one for one in gc.get_objects() if isinstance(one, ew.Episode)]
    return sum(one.episode_id.startswith(rollout) for one in found)


def test_episodes_that_were_taken_are_not_kept():
    async def scenario() -> int:
        held = 0
        async with ew.pool(Walk, size=2) as pool:
            async for episode in ew.rollout(pool, forward, episodes=200):
                if episode.group % 50 == 49:
                    held = max(held, alive_of(episode.episode_id.partition("-")[0]))
        return held

    assert asyncio.run(scenario()) <= 2 * 2 + 1
