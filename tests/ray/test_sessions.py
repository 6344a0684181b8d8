"""Single environments and pools on Ray."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from environments.crashing import GO, HANG, KILL, Crashing, kill
from environments.walks import LongWalk, Struck
from processes import descendants

import envweave as ew
from envweave.errors import ClosedError


async def one_step(result: Any) -> int:
    return GO


def test_a_killed_worker_ends_the_episode_and_the_next_reset_starts_another() -> None:
    with ew.make(Crashing, backend="ray") as env:
        env.reset(seed=4)
        result = env.step(KILL)

        assert (result.end.reason, result.end.blame) == ("lost", "infrastructure")
        assert not result.valid
        assert env.reset(seed=5).observation[1] == 5
        assert env.step(GO).valid


def test_a_hanging_step_times_out() -> None:
    with ew.make(Crashing, backend="ray", timeout_s=1.0) as env:
        env.reset(seed=4)

        result = env.step(HANG)

        assert (result.end.reason, result.end.blame) == ("timeout", "environment")
        assert env.reset(seed=5).observation[1] == 5


def test_a_closed_environment_refuses_calls() -> None:
    env = ew.make("counter-v0", backend="ray")
    env.close()
    env.close()

    with pytest.raises(ClosedError):
        env.step({"delta": 1})


def test_an_async_caller_steps_several_at_once() -> None:
    async def main() -> list[Any]:
        envs = [ew.make_async("counter-v0", backend="ray") for _ in range(2)]
        try:
            await asyncio.gather(*(env.reset(seed=1) for env in envs))
            return await asyncio.gather(*(env.step({"delta": 2}) for env in envs))
        finally:
            await asyncio.gather(*(env.close() for env in envs))

    assert [result.observation.value for result in asyncio.run(main())] == [2, 2]


def test_a_cancelled_step_leaves_the_others_alone() -> None:
    async def main() -> Any:
        async with ew.make_async("pkg://environments.crashing:AsyncCrashing", backend="ray") as env:
            await env.reset(seed=1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await env.step(HANG)
            await env.reset(seed=2)
            return await env.step(GO)

    assert asyncio.run(main()).observation[1:].tolist() == [2, 1]


def test_every_episode_of_a_rollout_is_accounted_for_while_workers_are_killed() -> None:
    killed = []

    async def agent(result: Any) -> int:
        pid = int(result.observation[0])
        if result.observation[2] == 3 and len(killed) < 4 and pid not in killed:
            killed.append(pid)
            kill(pid)
        return GO

    with ew.pool(Crashing, size=8, backend="ray", workers=2, max_episode_steps=5) as pool:
        run = ew.rollout(pool, agent, episodes=64, seed=0, attempts=10)
        episodes = run.run()

    seeds = [episode.seed for episode in episodes]
    assert len(killed) == 4
    assert len(episodes) == 64
    assert len(set(seeds)) == 64
    assert all(episode.usable for episode in episodes)
    assert all(len(episode.steps) == 5 for episode in episodes)


@pytest.mark.slow  # starts a sandbox
def test_all_sandboxes_of_a_worker_share_one_template() -> None:
    with ew.make_vector("coding-v0", num_envs=4, backend="ray", workers=1) as venv:
        venv.reset(seed=0)
        batch = venv.step([{"code": f"mine = {i}; print(mine)"} for i in range(4)])
        printed = [row.observation.execution_result.stdout.strip() for row in batch]
        (actor,) = [one for one in descendants() if b"ray::VectorActor" in command(one.pid)]
        templates = [one for one in descendants() if one.parent == actor.pid]

    assert printed == ["0", "1", "2", "3"]
    assert len(templates) == 1


def command(pid: int) -> bytes:
    """Return the command line of a process, which Ray sets to the name of its actor."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_episodes_of_a_durable_pool_go_on_when_their_workers_are_killed(tmp_path: Path) -> None:
    def step(result: Any) -> int:
        return 1

    with ew.pool(LongWalk, size=1) as pool:
        expected = ew.rollout(pool, step, episodes=6, seed=5).run()

    with ew.pool(Struck, size=3, backend="ray", durable=True, marks=str(tmp_path)) as pool:
        run = ew.rollout(pool, step, episodes=6, seed=5, on_fault="raise")
        episodes = run.run()

    assert [(one.observations, one.reward, one.end) for one in episodes] == [
        (one.observations, one.reward, one.end) for one in expected
    ]
    assert run.restored >= 6
