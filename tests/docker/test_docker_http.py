"""`backend="docker_http"`: environments in containers, through every public function."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from containers import ECHO, LINEWORLD, inspect, own_containers

import envweave as ew
from envweave import LocalDockerProvider
from envweave.envs.echo_env import EchoAction, EchoEnv
from envweave.errors import DefinitionError, OptionError, StartupError
from envweave.examples import CounterEnv

pytestmark = [
    pytest.mark.slow,
    pytest.mark.docker,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("images"),
]


MOVES = [{"move": 1 if i % 2 else -1} for i in range(4)]


def mine() -> list[str]:
    return own_containers()


def test_the_http_client_starts_and_stops_an_image() -> None:
    with EchoEnv.from_docker_image(ECHO, env_vars={"GREETING": "hello"}) as env:
        (name,) = mine()
        env.reset()
        reward = env.step(EchoAction("Hello, World!")).reward
        variables = inspect(name)["Config"]["Env"]

    assert reward == 1.3
    assert "GREETING=hello" in variables
    assert mine() == []


def test_an_id_is_served_by_the_image_that_is_named() -> None:
    with ew.make("counter-v0", backend="docker_http", docker_image=ECHO, done_at=2) as env:
        env.reset()
        ends = [env.step({"delta": 1}).done for _ in range(2)]

    assert ends == [False, True]


def test_an_image_is_an_id() -> None:
    with ew.make(f"docker://{ECHO}") as env:
        env.reset()

        assert env.step({"message": "hi"}).observation.echoed_message == "hi"


@pytest.mark.parametrize("backend", [None, "docker_http"])
def test_an_id_registered_with_an_image_starts_it(backend: str | None) -> None:
    registry = ew.Registry()
    ew.register("mine-v0", docker_image=ECHO, registry=registry)

    with ew.make("mine-v0", backend=backend, registry=registry) as env:
        env.reset()

        assert env.step({"message": "hi"}).observation.echoed_message == "hi"


def test_an_id_has_an_image_of_its_name() -> None:
    with ew.make("lineworld-v0", backend="docker_http") as env:
        (name,) = mine()
        image = inspect(name)["Config"]["Image"]
        env.reset(seed=1)

    assert image == LINEWORLD


def test_a_class_provides_its_types_and_its_step_limit() -> None:
    with ew.make(CounterEnv, docker_image=ECHO, max_episode_steps=1) as env:
        env.reset()
        result = env.step({"delta": 1})

    assert result.truncated
    assert type(result.observation).__module__ == "envweave.examples.counter"


def test_a_vector_shares_one_container_and_gives_the_same_steps() -> None:
    with ew.make_vector("lineworld-v0", num_envs=4, docker_image=LINEWORLD, autoreset=True) as far:
        shared = mine()
        first = far.reset(seed=3)
        rewards = [far.step(MOVES).reward.tolist() for _ in range(5)]
    with ew.make_vector("lineworld-v0", num_envs=4, autoreset=True) as near:
        same = near.reset(seed=3)
        expected = [near.step(MOVES).reward.tolist() for _ in range(5)]

    assert len(shared) == 1
    assert rewards == expected
    assert repr(first.current) == repr(same.current)


def test_a_vector_with_one_container_each_gives_the_same_steps() -> None:
    options = {"num_envs": 3, "autoreset": True}
    moves = [{"move": 1 if i % 2 else -1} for i in range(3)]
    with ew.make_vector(
        "lineworld-v0", docker_image=LINEWORLD, isolation="container", **options
    ) as far:
        count = len(mine())
        first = far.reset(seed=3)
        rewards = [far.step(moves).reward.tolist() for _ in range(8)]
        far.send(moves[:2], ids=[0, 1])
        received = sorted([*far.recv(2).ids])
        states = [state.step_count for state in far.state()]
    with ew.make_vector("lineworld-v0", **options) as near:
        same = near.reset(seed=3)
        expected = [near.step(moves).reward.tolist() for _ in range(8)]
        near.send(moves[:2], ids=[0, 1])
        near.recv(2)
        expected_states = [state.step_count for state in near.state()]

    assert count == 3
    assert (rewards, received, states) == (expected, [0, 1], expected_states)
    assert repr(first.current) == repr(same.current)


def test_a_pool_has_one_container_or_one_for_each() -> None:
    async def count(**options: Any) -> int:
        async with (
            ew.pool("counter-v0", size=2, docker_image=ECHO, **options) as pool,
            pool.line() as one,
            pool.line() as other,
        ):
            await one.reset()
            await other.reset()
            return len(mine())

    assert asyncio.run(count()) == 1
    assert asyncio.run(count(isolation="container")) == 2
    assert mine() == []


def test_an_async_caller_has_a_container_too() -> None:
    async def play() -> Any:
        async with ew.make_async(f"docker://{ECHO}") as env:
            await env.reset()
            return (await env.step({"message": "hi"})).reward

    assert asyncio.run(play()) == 0.2


def test_it_works_without_a_network() -> None:
    provider = LocalDockerProvider(network="none")
    with ew.make("echo-v0", provider=provider) as env:
        env.reset()
        container = provider.container
        reward = env.step({"message": "hi"}).reward
        mode = inspect(container)["HostConfig"]["NetworkMode"]

    assert (reward, mode) == (0.2, "none")


def test_the_callers_token_is_the_servers_token() -> None:
    with ew.make(f"docker://{ECHO}", token="mine") as env:
        (name,) = mine()
        variables = inspect(name)["Config"]["Env"]
        env.reset()

    assert "ENVWEAVE_TOKEN=mine" in variables


def test_a_missing_image_is_reported() -> None:
    with pytest.raises(StartupError, match="no image 'no-such:latest'"):
        ew.make("docker://no-such:latest")


def test_an_id_that_the_image_lacks_is_reported_and_nothing_is_left() -> None:
    with pytest.raises(ew.errors.PluginError, match="no_such_module"):
        ew.make("pkg://no_such_module:Env", docker_image=ECHO)

    assert mine() == []


def test_an_unknown_keyword_is_refused_as_in_this_process() -> None:
    with pytest.raises(OptionError, match="'done_att' is neither an option"):
        ew.make("counter-v0", docker_image=ECHO, done_att=2)

    assert mine() == []


def test_a_class_that_only_this_program_has_is_refused() -> None:
    class Local(CounterEnv):
        pass

    with pytest.raises(DefinitionError, match="importable definition"):
        ew.make(Local, docker_image=ECHO)


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        ("echo-v0", {"docker_image": ECHO, "backend": "process"}, "be combined with the image"),
        ("echo-v0", {"docker_image": ECHO, "base_url": "http://127.0.0.1:1"}, "contradicts"),
        (f"docker://{ECHO}", {"docker_image": ECHO}, "contradicts"),
        (f"docker://{ECHO}", {"backend": "inproc"}, "Leave backend out"),
        ("echo-v0", {"docker_image": " "}, "is not the name of an image"),
        (
            "echo-v0",
            {"backend": "docker_http", "encoding": "xml"},
            r"encoding must be one of .*, got 'xml'",
        ),
        ("pkg://a:B", {"backend": "docker_http"}, "Pass docker_image="),
        (
            "echo-v0",
            {"backend": "docker_http", "provider": ew.SubprocessProvider()},
            "does not start containers",
        ),
        ("docker://", {}, "names nothing"),
        ("docker://a b", {}, "names no image"),
    ],
)
def test_options_that_contradict_are_refused(
    env: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((OptionError, ew.errors.EnvIdError), match=message):
        ew.make(env, **options)


def test_if_one_of_several_containers_cannot_start_none_is_left() -> None:
    with pytest.raises(OptionError, match="'done_att'"):
        ew.make_vector(
            "counter-v0", num_envs=3, docker_image=ECHO, isolation="container", done_att=1
        )

    assert mine() == []


def test_one_container_each_needs_a_provider_that_starts_many() -> None:
    class One(ew.ContainerProvider):
        def start_container(self, image: str, *_: Any, **__: Any) -> str:
            raise AssertionError

        def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
            raise AssertionError

        def stop_container(self) -> None:
            raise AssertionError

    with pytest.raises(OptionError, match="needs 2 containers"):
        ew.make_vector(
            "counter-v0",
            num_envs=2,
            backend="docker_http",
            docker_image=ECHO,
            isolation="container",
            provider=One(),
        )


def test_one_container_each_needs_containers() -> None:
    with pytest.raises(OptionError, match="isolation='container' is for containers"):
        ew.make_vector("counter-v0", num_envs=2, isolation="container")


def test_a_vector_in_containers_has_no_mode() -> None:
    with pytest.raises(OptionError, match="mode='serial' is for vectors in this process"):
        ew.make_vector("counter-v0", num_envs=2, docker_image=ECHO, mode="serial")
