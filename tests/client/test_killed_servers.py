"""A server that was started for a caller and is killed: reported at once, and replaced."""

from __future__ import annotations

import asyncio
import math
import os
from pathlib import Path
from typing import Any

import pytest
from environments.crashing import GO, KILL, Crashing, kill
from processes import Leftovers

import envweave as ew
from envweave.envs.echo_env import EchoAction, EchoEnv
from envweave.errors import ConnectionLostError, EnvironmentLostError, StateFailedError
from envweave.session import episode_seed

COPIES = "pkg://environments.crashing:LeavesACopy"


def cause_of(pid: int) -> str:
    return f"The server process {pid} was killed by SIGKILL."


@pytest.mark.slow  # starts the command line anew
def test_a_server_killed_during_a_step_loses_that_step_and_the_next_reset_starts_another() -> None:
    with ew.make(Crashing, backend="http") as env:
        first = env.reset(seed=5)
        pid = int(first.observation[0])

        result = env.step(KILL)

        assert result.end == ew.EpisodeEnd("lost", "infrastructure", cause_of(pid))
        assert math.isnan(result.reward)
        again = env.reset()
        assert again.observation[0] != pid
        assert again.info["seed"] == episode_seed(5, 1)
        assert env.step(GO).reward == 1.0


@pytest.mark.slow
def test_a_server_killed_between_calls_is_reported_by_the_next_step() -> None:
    with ew.make(Crashing, backend="http", autoreset=True) as env:
        pid = int(env.reset(seed=5).observation[0])
        kill(pid)

        result = env.step(GO)

        assert result.end == ew.EpisodeEnd("lost", "infrastructure", cause_of(pid))
        assert result.ready is not None
        assert result.ready.initial_info["seed"] == episode_seed(5, 1)
        assert env.step(GO).reward == 1.0


@pytest.mark.slow
def test_a_reset_replaces_a_server_killed_between_calls() -> None:
    with ew.make(Crashing, backend="http") as env:
        for i in range(3):
            began = env.reset(seed=5) if i == 0 else env.reset()
            assert began.info["seed"] == episode_seed(5, i)
            assert env.step(GO).reward == 1.0
            kill(began.observation[0])


@pytest.mark.slow
def test_a_state_lost_with_its_server_is_reported() -> None:
    with ew.make(Crashing, backend="http") as env:
        pid = int(env.reset(seed=5).observation[0])
        kill(pid)

        with pytest.raises(StateFailedError, match=f"server process {pid} was killed by SIGKILL"):
            env.state()

        assert env.reset().info["seed"] == episode_seed(5, 1)


@pytest.mark.slow
def test_a_forked_copy_of_a_server_ends_with_it() -> None:
    with ew.make(COPIES, backend="http") as env:
        pid = int(env.reset().observation[0])

        result = env.step(KILL)

        assert result.end.cause == cause_of(pid)
        assert env.reset().observation[0] != pid


@pytest.mark.slow
def test_an_async_caller_gets_the_reason_and_continues() -> None:
    async def main() -> None:
        async with ew.make_async(Crashing, backend="http") as env:
            pid = int((await env.reset(seed=5)).observation[0])
            result = await env.step(KILL)
            assert result.end == ew.EpisodeEnd("lost", "infrastructure", cause_of(pid))
            again = await env.reset()
            assert again.info["seed"] == episode_seed(5, 1)
            await asyncio.to_thread(kill, again.observation[0])
            assert (await env.reset()).info["seed"] == episode_seed(5, 2)
            assert (await env.step(GO)).reward == 1.0

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("autoreset", [True, False])
def test_every_row_of_a_vector_reports_the_loss_and_continues(autoreset: bool) -> None:
    with ew.make_vector(Crashing, num_envs=3, backend="http", autoreset=autoreset) as venv:
        pid = int(venv.reset(seed=5).current[0, 0])

        batch = venv.step([GO, KILL, GO])

        end = ew.EpisodeEnd("lost", "infrastructure", cause_of(pid))
        assert [row.end for row in batch] == [end] * 3
        assert not batch.valid.any()
        if not autoreset:
            venv.reset()
        assert venv.step([GO] * 3).step_index.tolist() == [1] * 3
        assert [one.rpartition("-")[2] for one in venv.step([GO] * 3).episode_id] == ["1"] * 3


@pytest.mark.slow
def test_a_vector_reset_replaces_a_server_killed_between_calls() -> None:
    with ew.make_vector(Crashing, num_envs=3, backend="http") as venv:
        kill(venv.reset(seed=5).current[0, 0])

        again = venv.reset()

        assert [info["seed"] for info in again.infos] == [episode_seed(5 + i, 1) for i in range(3)]
        kill(again.current[0, 0])
        assert venv.reset(seed=7).infos[0]["seed"] == 7
        assert venv.step([GO] * 3).valid.all()


@pytest.mark.slow
def test_a_reset_that_kills_its_server_every_time_is_reported(tmp_path: Path) -> None:
    with ew.make(
        "pkg://environments.crashing:DiesAtReset", backend="http", at=str(tmp_path)
    ) as env:
        env.reset()
        (tmp_path / "die").touch()

        with pytest.raises(EnvironmentLostError, match=r"killed by SIGKILL"):
            env.reset()

        (tmp_path / "die").unlink()
        assert env.reset().step_index == 0


@pytest.mark.slow
def test_a_pool_plays_every_episode_though_its_server_is_killed() -> None:
    async def main() -> tuple[list[ew.Episode], list[ew.Fault]]:
        deaths = [0]

        def agent(result: Any) -> int:
            deaths[0] += 1
            if deaths[0] in (10, 30):
                return KILL
            return GO if result.step_index < 3 else 1  # END

        async with ew.pool(Crashing, size=4, backend="http") as pool:
            rollout = ew.rollout(pool, agent, episodes=12, seed=1)
            return await rollout, rollout.faults

    episodes, faults = asyncio.run(main())

    assert [(one.group, one.usable) for one in episodes] == [(i, True) for i in range(12)]
    assert {fault.reason for fault in faults} == {"lost"}
    assert all("was killed by SIGKILL" in (fault.cause or "") for fault in faults)


@pytest.mark.slow
def test_the_client_of_the_first_protocol_gets_the_reason() -> None:
    provider = ew.SubprocessProvider()
    with EchoEnv.from_docker_image("echo-v0", provider=provider) as env:
        env.reset()
        pid = provider.pid
        kill(pid)

        with pytest.raises(ConnectionLostError, match=f"server process {pid} was killed"):
            env.step(EchoAction("hi"))


@pytest.mark.slow
def test_a_killed_server_and_its_replacement_leave_nothing_behind() -> None:
    left = Leftovers()
    provider = ew.SubprocessProvider()
    with ew.make(Crashing, provider=provider) as env:
        killed = int(env.reset().observation[0])
        kill(killed)
        last = int(env.reset().observation[0])
        assert provider.pid == last != killed

    for pid in (killed, last):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert left.threads() == []
    assert left.descriptors() == []


@pytest.mark.slow
def test_a_replacement_that_is_killed_before_it_was_used_is_replaced_too() -> None:
    with (
        ew.make(Crashing, backend="http") as env,
        ew.make_vector(Crashing, num_envs=2, backend="http") as venv,
    ):
        pids = [int(env.reset(seed=5).observation[0]), int(venv.reset(seed=5).current[0, 0])]
        for pid in pids:
            kill(pid)
        assert env.step(GO).end.reason == "lost"
        assert [row.end.reason for row in venv.step([GO] * 2)] == ["lost"] * 2
        # The replacements start and are connected to, and there is no session there yet.
        env._transport._connection.connect()  # type: ignore[attr-defined]
        venv._transport._calls.connection.connect()  # type: ignore[attr-defined]
        for one in (env, venv):
            transport: Any = one._transport
            line = getattr(transport, "_connection", None) or transport._calls.connection
            kill(line._route.server._provider.pid)

        assert env.reset().info["seed"] == episode_seed(5, 1)
        assert venv.reset().infos[1]["seed"] == episode_seed(6, 1)
        assert env.step(GO).reward == 1.0


@pytest.mark.slow
def test_a_reset_works_after_a_loss_noticed_while_fetching_tasks() -> None:
    with ew.make("pkg://environments.crashing:WithTasks", backend="http") as env:
        pid = int(env.reset(seed=5).observation[0])
        kill(pid)

        assert len(list(env.tasks("train"))) == 2

        again = env.reset()
        assert again.observation[0] != pid
        assert again.info["seed"] == episode_seed(5, 1)
        kill(again.observation[0])
        assert len(list(env.tasks("train"))) == 2
        assert env.step(GO).end == ew.EpisodeEnd(
            "lost", "infrastructure", cause_of(int(again.observation[0]))
        )


@pytest.mark.slow
def test_an_async_caller_resets_after_tasks_were_asked_of_a_killed_server() -> None:
    async def main() -> None:
        async with ew.make_async("pkg://environments.crashing:WithTasks", backend="http") as env:
            pid = int((await env.reset(seed=5)).observation[0])
            await asyncio.to_thread(kill, pid)
            assert len(await asyncio.to_thread(lambda: list(env.tasks("train")))) == 2

            assert (await env.reset()).info["seed"] == episode_seed(5, 1)

    asyncio.run(main())
