"""Sessions in worker processes, over several event loops one after the other."""

from __future__ import annotations

import asyncio

import pytest
from environments.crashing import HANG, Crashing

import envweave as ew


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize("loops_before", [0, 1])
def test_the_deadline_holds_on_every_event_loop(loops_before: int) -> None:
    pool = ew.pool(Crashing, size=1, backend="process", timeout_s=0.5)

    async def play(action: int) -> list[str]:
        rollout = ew.rollout(
            pool, lambda _: action, episodes=1, max_steps=2, on_fault="keep", seed=1
        )
        return [episode.end.reason for episode in await rollout]

    for _ in range(loops_before):
        assert asyncio.run(play(0)) == ["truncated"]
    reasons = asyncio.run(play(HANG))
    asyncio.run(pool.close())

    assert reasons == ["timeout"]


@pytest.mark.slow  # starts worker processes
def test_a_pool_has_as_many_workers_as_requested() -> None:
    async def processes(workers: int) -> int:
        async with ew.pool(Crashing, size=6, backend="process", workers=workers) as pool:
            episodes = await ew.rollout(pool, lambda _: 0, episodes=6, max_steps=1, seed=1)
            return len({episode.steps[0].observation[0] for episode in episodes})

    assert asyncio.run(processes(3)) == 3
