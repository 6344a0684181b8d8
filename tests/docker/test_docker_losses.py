"""Dead containers and engines are reported with the reason, and never hang."""

from __future__ import annotations

import asyncio
import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from containers import ECHO, docker, engine_url, exists, own_containers
from environments.crashing import MEMORY_HOG, copy_into
from hostile_servers import CuttingProxy

import envweave as ew
from envweave import LocalDockerProvider
from envweave.envs.echo_env import EchoAction, EchoEnv
from envweave.errors import ConnectionLostError, EnvironmentLostError, ResetNeededError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.docker,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("images"),
]


def mine() -> list[str]:
    return own_containers()


def kill_the_only_one() -> str:
    (name,) = mine()
    docker("kill", name)
    return name


def test_a_killed_container_loses_the_episode_and_the_next_reset_starts_another() -> None:
    with ew.make("counter-v0", docker_image=ECHO) as env:
        env.reset(seed=1)
        good = env.step({"delta": 1})
        first = kill_the_only_one()

        result = env.step({"delta": 1})

        end = result.end
        assert (end.reason, end.blame) == ("lost", "infrastructure")
        assert f"The container {first} of 'echo-env:latest' exited with code 137" in end.cause
        assert "serving counter-v0" in end.cause  # the last that it printed
        assert math.isnan(result.reward)
        assert not result.valid
        assert result.observation == good.observation
        with pytest.raises(ResetNeededError, match="exited with code 137"):
            env.step({"delta": 1})
        assert env.reset(seed=1).step_index == 0
        assert env.step({"delta": 1}).observation == good.observation
        assert mine() != [first]

    assert not exists(first)


def provider_with_environments(folder: Path, **options: Any) -> LocalDockerProvider:
    """Return one whose containers can import the environments of these tests."""
    folder.chmod(0o755)
    copy_into(folder)
    return LocalDockerProvider(
        volumes={str(folder): "/environments"}, env_vars={"PYTHONPATH": "/environments"}, **options
    )


def test_a_container_that_runs_out_of_memory_is_reported(tmp_path: Path) -> None:
    provider = provider_with_environments(tmp_path, memory="160m")
    with ew.make(MEMORY_HOG, provider=provider, docker_image=ECHO) as env:
        env.reset()

        end = env.step({"mebibytes": 400}).end

    assert (end.reason, end.blame) == ("lost", "infrastructure")
    assert "ran out of memory: it needed more than 160 MiB" in end.cause
    assert "memory=…" in end.cause


def test_with_autoreset_the_next_episode_begins_in_another_container() -> None:
    with ew.make("counter-v0", docker_image=ECHO, autoreset=True) as env:
        env.reset(seed=1)
        first = kill_the_only_one()

        result = env.step({"delta": 1})

        assert result.end.reason == "lost"
        assert result.ready is not None
        assert env.step({"delta": 1}).step_index == 1
        assert mine() != [first]


def test_every_row_of_a_vector_reports_why() -> None:
    with ew.make_vector("counter-v0", num_envs=3, docker_image=ECHO, autoreset=True) as vector:
        vector.reset(seed=0)
        vector.step([{"delta": 1}] * 3)
        kill_the_only_one()

        batch = vector.step([{"delta": 1}] * 3)

        ends = [batch[i].end for i in range(3)]
        assert [end.reason for end in ends] == ["lost"] * 3
        assert all("exited with code 137" in end.cause for end in ends)
        assert not batch.valid.any()
        assert vector.step([{"delta": 1}] * 3).valid.all()


def test_an_idle_row_gets_the_reason_too() -> None:
    with ew.make_vector("counter-v0", num_envs=2, docker_image=ECHO) as vector:
        vector.reset(seed=0)
        kill_the_only_one()
        vector.send([{"delta": 1}], ids=[0])
        first = vector.recv(1)
        vector.send([{"delta": 1}], ids=[1])
        second = vector.recv(1)

    for batch in (first, second):
        assert batch[0].end.reason == "lost"
        assert "exited with code 137" in batch[0].end.cause


def test_with_a_container_for_each_only_one_row_is_lost() -> None:
    options = {"num_envs": 3, "docker_image": ECHO, "isolation": "container", "autoreset": True}
    with ew.make_vector("counter-v0", done_at=100, **options) as vector:
        vector.reset(seed=0)
        victim = mine()[0]
        docker("kill", victim)

        batch = vector.step([{"delta": 1}] * 3)
        after = vector.step([{"delta": 1}] * 3)

        lost = [batch[i].end for i in range(3) if not batch.valid[i]]
        assert len(lost) == 1
        assert (lost[0].reason, lost[0].blame) == ("lost", "infrastructure")
        assert f"The container {victim} of 'echo-env:latest' exited with code 137" in lost[0].cause
        assert after.valid.all()
        assert sorted(after.current["value"].tolist()) == [1, 2, 2]
        assert len(mine()) == 3


@pytest.mark.parametrize("isolation", [None, "container"])
def test_a_reset_replaces_a_container_killed_between_calls(
    isolation: str | None,
) -> None:
    options = {"num_envs": 2, "docker_image": ECHO, "isolation": isolation}
    with ew.make_vector("counter-v0", **options) as vector:
        vector.reset(seed=0)
        docker("kill", mine()[0])

        vector.reset()

        assert vector.step([{"delta": 1}] * 2).valid.all()
        assert len(mine()) == (1 if isolation is None else 2)


def test_async_and_idle_callers_get_the_reason() -> None:
    async def play() -> list[Any]:
        async with (
            ew.pool("counter-v0", size=2, docker_image=ECHO) as pool,
            pool.line() as one,
            pool.line() as other,
        ):
            await one.reset(seed=1)
            await other.reset(seed=2)
            await asyncio.to_thread(kill_the_only_one)
            first = await one.step({"delta": 1})
            second = await other.step({"delta": 1})
            again = await one.reset(seed=1)
            return [first, second, again]

    first, second, again = asyncio.run(play())

    for lost in (first, second):
        assert (lost.end.reason, lost.end.blame) == ("lost", "infrastructure")
        assert "exited with code 137" in lost.end.cause
    assert again.step_index == 0


def test_a_typed_client_gets_the_reason_and_its_reset_starts_another_container() -> None:
    with EchoEnv.from_docker_image(ECHO) as env:
        env.reset()
        first = kill_the_only_one()

        with pytest.raises(ConnectionLostError, match="exited with code 137") as caught:
            env.step(EchoAction("hi"))
        env.reset()

        assert "Call reset(), which starts another one." in str(caught.value)
        assert env.step(EchoAction("hi")).reward == 0.2
        assert not exists(first)
    assert mine() == []


def test_a_container_removed_by_another_program_is_reported() -> None:
    with ew.make("counter-v0", docker_image=ECHO) as env:
        env.reset()
        docker("rm", "--force", *mine())

        assert "was removed by another program" in env.step({"delta": 1}).end.cause


def test_an_image_removed_meanwhile_is_reported_at_the_next_reset() -> None:
    docker("tag", ECHO, "envweave-short-lived:1")
    with ew.make("counter-v0", docker_image="envweave-short-lived:1") as env:
        env.reset()
        docker("rmi", "envweave-short-lived:1")
        kill_the_only_one()

        assert env.step({"delta": 1}).end.reason == "lost"
        with pytest.raises(EnvironmentLostError, match="no image 'envweave-short-lived:1'"):
            env.reset()


def test_an_engine_that_stops_during_a_run_is_reported_without_hanging() -> None:
    front = CuttingProxy(engine_url().removeprefix("unix://"), seed=0, mean_bytes=1)
    front.is_cutting = False
    with ExitStack() as stopping:
        stopping.enter_context(front)
        provider = LocalDockerProvider(docker_host=f"tcp://127.0.0.1:{front.port}")
        with ew.make("counter-v0", provider=provider, docker_image=ECHO) as env:
            env.reset()
            env.step({"delta": 1})
            name = provider.container
            stopping.close()
            docker("rm", "--force", name)  # as an engine that stops ends its containers

            end = env.step({"delta": 1}).end
            with pytest.raises(EnvironmentLostError, match=r"engine at tcp.* does not answer"):
                env.reset()

    assert (end.reason, end.blame) == ("lost", "infrastructure")
    assert "cannot be reached. The Docker engine at tcp" in end.cause
    assert "systemctl start docker" in end.cause


def test_a_stopped_container_is_reported() -> None:
    with ew.make("counter-v0", docker_image=ECHO, done_at=1000) as env:
        env.reset()
        docker("stop", *mine())

        end = env.step({"delta": 1}).end

    assert (end.reason, end.blame) == ("lost", "infrastructure")
    assert "exited with code 0" in end.cause


def test_an_episode_of_a_durable_pool_goes_on_in_another_container() -> None:
    def step(result: Any) -> dict[str, int]:
        return {"delta": 1 + result.step_index % 2}

    def agent(result: Any) -> dict[str, int]:
        if result.step_index == 4 and result.episode_id.split("-")[1] in "02":
            killed.append(kill_the_only_one())
        return step(result)

    killed: list[str] = []
    with ew.pool("counter-v0", size=1, done_at=20) as pool:
        expected = ew.rollout(pool, step, episodes=4, seed=5).run()

    with ew.pool("counter-v0", docker_image=ECHO, size=2, durable=True, done_at=20) as pool:
        run = ew.rollout(pool, agent, episodes=4, seed=5, on_fault="raise")
        episodes = run.run()

    assert len(set(killed)) == 2
    assert [(one.reward, one.length, one.end) for one in episodes] == [
        (one.reward, one.length, one.end) for one in expected
    ]
    assert run.restored >= 2
