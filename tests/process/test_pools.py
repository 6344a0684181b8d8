"""Pools and rollouts over worker processes: faults are replaced and counted, nothing is left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from environments.crashing import END, GO, HANG, KILL, AsyncCrashing, Crashing, kill

import envweave as ew
from envweave.errors import ResetNeededError
from envweave.session import episode_seed


def pool_of(kind: Any = Crashing, size: int = 4, **options: Any) -> Any:
    return ew.pool(kind, size=size, backend="process", **options)


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize("kind", [Crashing, AsyncCrashing])
def test_an_async_caller_continues_after_a_loss(kind: Any) -> None:
    async def run() -> None:
        async with ew.make_async(kind, backend="process") as env:
            await env.reset(seed=5)
            result = await env.step(KILL)
            assert (result.end.reason, result.end.blame) == ("lost", "infrastructure")
            with pytest.raises(ResetNeededError):
                await env.step(GO)
            again = await env.reset()
            assert again.info["seed"] == episode_seed(5, 1)
            assert (await env.step(GO)).step_index == 1

    asyncio.run(run())


@pytest.mark.slow  # starts worker processes
def test_an_idle_worker_that_was_killed_is_replaced_at_the_next_reset() -> None:
    async def run() -> None:
        async with ew.make_async(Crashing, backend="process") as env:
            first = await env.reset(seed=5)
            kill(first.observation[0])
            again = await env.reset()
            assert again.info["seed"] == episode_seed(5, 1)

    asyncio.run(run())


@pytest.mark.slow  # starts worker processes
def test_after_a_cancelled_call_the_environment_needs_a_reset() -> None:
    async def run() -> None:
        async with ew.make_async(AsyncCrashing, backend="process") as env:
            await env.reset(seed=5)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await env.step(HANG)
            with pytest.raises(ResetNeededError):
                await env.step(GO)
            await env.reset(seed=6)
            assert (await env.step(GO)).observation[1:].tolist() == [6, 1]

    asyncio.run(run())


class KillsOnce:
    """A policy that lets the first episode's worker die in its second step."""

    def __init__(self) -> None:
        self.killed = 0

    def __call__(self, result: Any) -> int:
        observation = result.observation
        if self.killed < 2 and observation[2] == 1:
            self.killed += 1
            return KILL
        return END if observation[2] == 3 else GO


@pytest.mark.slow  # starts worker processes
def test_a_rollout_replaces_and_counts_lost_episodes() -> None:
    async def run() -> Any:
        async with pool_of() as pool:
            return await ew.rollout(pool, KillsOnce(), episodes=8, seed=5)

    episodes = asyncio.run(run())

    usable = [episode for episode in episodes if episode.usable]
    assert len(usable) == 8
    assert all(len(episode.steps) == 4 for episode in usable)


@pytest.mark.slow  # starts worker processes
def test_a_cancelled_rollout_leaves_no_process() -> None:
    async def run() -> None:
        async with pool_of(AsyncCrashing) as pool:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await ew.rollout(pool, lambda _: HANG, episodes=8, seed=5)

    asyncio.run(run())
