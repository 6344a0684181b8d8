"""Dead pods and broken connections are reported with the reason, and never hang."""

from __future__ import annotations

import asyncio
import http.client
import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from containers import ECHO, cluster, kill, names, need_own_cluster, own_mark
from environments.crashing import MEMORY_HOG, pod_options
from hostile_servers import CuttingProxy
from servers import http_connection

import envweave as ew
from envweave import KubernetesProvider
from envweave.envs.echo_env import EchoAction, EchoEnv
from envweave.errors import ConnectionLostError, ResetNeededError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kubernetes,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("pods"),
]


def pods(**options: Any) -> KubernetesProvider:
    small = {"stop_timeout_s": 0, "cpu_request": 0.05, "memory_request": "32m"}
    return KubernetesProvider(**{**small, **options})


def mine() -> list[str]:
    return names("pods", own_mark())


def delete_the_only_one() -> str:
    (name,) = mine()
    connection = cluster()
    connection.delete("pods", name)
    connection.close()
    return name


def address_of(provider: KubernetesProvider) -> str:
    """Return where the server is by its pod's own address."""
    connection = cluster()
    found = connection.get("pods", provider.pod)
    connection.close()
    return f"http://{found['status']['podIP']}:8000"


def is_reachable(address: str) -> bool:
    connection = http_connection(address, timeout_s=1.0)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def wait_until(is_so: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < ends_s
        time.sleep(0.05)


def test_a_killed_pod_loses_the_episode_and_the_next_reset_starts_another() -> None:
    need_own_cluster()
    with ew.make("counter-v0", provider=pods(), docker_image=ECHO) as env:
        env.reset(seed=1)
        good = env.step({"delta": 1})
        (first,) = mine()
        kill(first)

        result = env.step({"delta": 1})

        end = result.end
        assert (end.reason, end.blame) == ("lost", "infrastructure")
        assert f"The pod {first} of 'echo-env:latest' exited with code 137" in end.cause
        assert "serving counter-v0" in end.cause  # the last that it printed
        assert math.isnan(result.reward)
        assert not result.valid
        assert result.observation == good.observation
        with pytest.raises(ResetNeededError, match="exited with code 137"):
            env.step({"delta": 1})
        assert env.reset(seed=1).step_index == 0
        assert env.step({"delta": 1}).observation == good.observation
        assert mine() != [first]


def test_a_pod_that_runs_out_of_memory_in_mid_episode_is_reported() -> None:
    provider = pods(**pod_options(memory="192m"))
    with ew.make(MEMORY_HOG, provider=provider, docker_image=ECHO) as env:
        env.reset()
        env.step({"mebibytes": 1})

        end = env.step({"mebibytes": 400}).end

    assert (end.reason, end.blame) == ("lost", "infrastructure")
    assert "ran out of memory: it needed more than 192 MiB, and was killed (OOMKilled" in end.cause
    assert "memory=…" in end.cause


def test_a_server_that_exits_in_mid_episode_is_lost_and_not_started_again() -> None:
    with ew.make(MEMORY_HOG, provider=pods(**pod_options()), docker_image=ECHO) as env:
        env.reset()

        end = env.step({"exit": 3}).end

    assert (end.reason, end.blame) == ("lost", "infrastructure")
    assert "exited with code 3" in end.cause


def test_a_pod_deleted_by_another_client_is_reported() -> None:
    provider = pods()
    with ew.make("counter-v0", provider=provider, docker_image=ECHO) as env:
        env.reset()
        address = address_of(provider)
        delete_the_only_one()
        wait_until(lambda: not is_reachable(address))  # a process outlives its pod a little

        end = env.step({"delta": 1}).end

    assert (end.reason, end.blame) == ("lost", "infrastructure")
    assert "was deleted by another client" in end.cause


def test_every_row_of_a_vector_reports_why() -> None:
    need_own_cluster()
    options = {"num_envs": 3, "docker_image": ECHO, "autoreset": True}
    with ew.make_vector("counter-v0", provider=pods(), done_at=100, **options) as vector:
        vector.reset(seed=0)
        vector.step([{"delta": 1}] * 3)
        kill(*mine())

        batch = vector.step([{"delta": 1}] * 3)

        ends = [batch[i].end for i in range(3)]
        assert [end.reason for end in ends] == ["lost"] * 3
        assert all("exited with code 137" in end.cause for end in ends)
        assert not batch.valid.any()
        assert vector.step([{"delta": 1}] * 3).valid.all()


def test_async_callers_get_the_reason() -> None:
    need_own_cluster()

    async def play() -> list[Any]:
        async with (
            ew.pool("counter-v0", size=2, docker_image=ECHO, provider=pods()) as pool,
            pool.line() as one,
            pool.line() as other,
        ):
            await one.reset(seed=1)
            await other.reset(seed=2)
            await asyncio.to_thread(kill, *await asyncio.to_thread(mine))
            first = await one.step({"delta": 1})
            second = await other.step({"delta": 1})
            again = await one.reset(seed=1)
            return [first, second, again]

    first, second, again = asyncio.run(play())

    for lost in (first, second):
        assert (lost.end.reason, lost.end.blame) == ("lost", "infrastructure")
        assert "exited with code 137" in lost.end.cause
    assert again.step_index == 0


def test_the_http_client_gets_the_reason() -> None:
    need_own_cluster()
    with EchoEnv.from_docker_image(ECHO, provider=pods()) as env:
        env.reset()
        kill(*mine())

        with pytest.raises(ConnectionLostError, match="exited with code 137"):
            env.step(EchoAction("hi"))


def test_connections_to_the_api_server_that_break_lose_nothing(tmp_path: Path) -> None:
    need_own_cluster()
    config = Path(os.environ["KUBECONFIG"]).read_text()
    (port,) = re.findall(r"127\.0\.0\.1:(\d+)", config)
    proxy = CuttingProxy(("127.0.0.1", int(port)), seed=0, mean_bytes=30_000)
    proxy.is_cutting = False
    (tmp_path / "config").write_text(config.replace(f":{port}", f":{proxy.port}"))
    with proxy:
        provider = pods(kubeconfig=str(tmp_path / "config"))
        with ew.make("counter-v0", provider=provider, docker_image=ECHO, done_at=1000) as env:
            env.reset(seed=1)
            proxy.is_cutting = True
            values = []
            while proxy.cuts < 5 and len(values) < 900:
                values.append(env.step({"delta": 1}).observation.value)
            proxy.is_cutting = False

    assert proxy.cuts >= 5
    assert values == list(range(1, len(values) + 1))
