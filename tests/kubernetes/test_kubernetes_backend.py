"""`backend="kubernetes"`: environments in pods, through every public function."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from containers import BASE, CODING, ECHO, LINEWORLD, cluster, names, own_mark

import envweave as ew
from envweave import KubernetesProvider
from envweave.envs.echo_env import EchoAction, EchoEnv
from envweave.errors import OptionError, StartupError
from envweave.examples import CounterEnv

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes, pytest.mark.timeout(300)]
in_pods = pytest.mark.usefixtures("pods")

MOVES = [{"move": 1 if i % 2 else -1} for i in range(4)]


def pods(**options: Any) -> KubernetesProvider:
    return KubernetesProvider(cpu_request=0.05, memory_request="32m", **options)


def mine() -> list[str]:
    return names("pods", own_mark())


@in_pods
def test_the_http_client_starts_and_stops_a_pod() -> None:
    small = {"cpu_request": 0.05, "memory_request": "32m", "env_vars": {"GREETING": "hello"}}
    with EchoEnv.from_kubernetes(ECHO, **small) as env:
        before = mine()
        env.reset()
        reward = env.step(EchoAction("Hello, World!")).reward

    assert (len(before), reward) == (1, 1.3)
    assert mine() == []


@in_pods
def test_an_id_is_served_by_the_image_that_is_named() -> None:
    where = {"backend": "kubernetes", "provider": pods(), "docker_image": ECHO}
    with ew.make("counter-v0", done_at=2, **where) as env:
        env.reset()
        ends = [env.step({"delta": 1}).done for _ in range(2)]

    assert ends == [False, True]


@in_pods
def test_a_kubernetes_provider_implies_the_backend() -> None:
    with ew.make(CounterEnv, provider=pods(), docker_image=ECHO, max_episode_steps=1) as env:
        env.reset()
        result = env.step({"delta": 1})

    assert result.truncated
    assert type(result.observation).__module__ == "envweave.examples.counter"


@in_pods
def test_an_image_is_an_id_and_an_id_has_an_image_of_its_name() -> None:
    with ew.make(f"docker://{ECHO}", backend="kubernetes", provider=pods()) as env:
        env.reset()
        echoed = env.step({"message": "hi"}).observation.echoed_message
    with ew.make("lineworld-v0", backend="kubernetes", provider=pods()) as env:
        connection = cluster()
        (image,) = (one["image"] for one in connection.get("pods", mine()[0])["spec"]["containers"])
        connection.close()
        env.reset(seed=1)

    assert (echoed, image) == ("hi", LINEWORLD)


@in_pods
def test_a_vector_shares_one_pod_and_gives_the_same_steps() -> None:
    where = {"backend": "kubernetes", "provider": pods(), "docker_image": LINEWORLD}
    with ew.make_vector("lineworld-v0", num_envs=4, autoreset=True, **where) as far:
        shared = mine()
        first = far.reset(seed=3)
        rewards = [far.step(MOVES).reward.tolist() for _ in range(5)]
    with ew.make_vector("lineworld-v0", num_envs=4, autoreset=True) as near:
        same = near.reset(seed=3)
        expected = [near.step(MOVES).reward.tolist() for _ in range(5)]

    assert len(shared) == 1
    assert rewards == expected
    assert repr(first.current) == repr(same.current)


@in_pods
def test_a_pool_has_one_pod_or_one_for_each() -> None:
    async def count(**options: Any) -> int:
        where = {"backend": "kubernetes", "provider": pods(), "docker_image": ECHO}
        async with (
            ew.pool("counter-v0", size=2, **where, **options) as pool,
            pool.line() as one,
            pool.line() as other,
        ):
            await one.reset()
            await other.reset()
            return len(mine())

    assert asyncio.run(count()) == 1
    assert asyncio.run(count(isolation="container")) == 2
    assert mine() == []


@in_pods
def test_code_runs_behind_walls_in_a_pod() -> None:
    with ew.make("coding-v0", backend="kubernetes", provider=pods(), docker_image=CODING) as env:
        env.reset()

        assert env.step({"code": "print(6 * 7)"}).observation.stdout == "42\n"


@in_pods
def test_a_missing_image_is_reported() -> None:
    with pytest.raises(StartupError, match="ErrImageNeverPull"):
        ew.make(
            "docker://no-such:1", backend="kubernetes", provider=pods(image_pull_policy="Never")
        )


@in_pods
def test_an_id_that_the_image_lacks_is_reported_and_nothing_is_left() -> None:
    with pytest.raises(ew.errors.PluginError, match="no_such_module"):
        ew.make(
            "pkg://no_such_module:Env", backend="kubernetes", provider=pods(), docker_image=BASE
        )

    assert mine() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"provider": ew.SubprocessProvider()}, "does not start pods"),
        ({"docker_image": " "}, "is not the name of an image"),
        ({"encoding": "xml"}, r"encoding must be one of .*, got 'xml'"),
        ({"base_url": "http://127.0.0.1:1"}, "cannot be combined with"),
    ],
)
def test_options_that_contradict_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ew.make("echo-v0", backend="kubernetes", **options)


def test_a_vector_in_pods_has_no_mode() -> None:
    with pytest.raises(OptionError, match="mode='serial' is for vectors in this process"):
        ew.make_vector("counter-v0", num_envs=2, backend="kubernetes", mode="serial")
