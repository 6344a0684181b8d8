"""Containers that are kept ready and paused."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from containers import BASE, ECHO, containers_of, docker, exists, inspect, own_containers

import envweave as ew
from envweave import LocalDockerProvider, WarmPool
from envweave.envs.echo_env import EchoAction, EchoEnv
from envweave.errors import CallOrderError, ClosedError, OptionError, StartupError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.docker,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("images"),
]


def mine() -> list[str]:
    return own_containers()


def statuses() -> list[str]:
    return sorted(inspect(name)["State"]["Status"] for name in mine())


@contextmanager
def warm(image: str = ECHO, **options: Any) -> Iterator[WarmPool]:
    """A pool that is full."""
    with WarmPool(image, **options) as pool:
        pool.wait_until_warm()
        yield pool


def test_containers_wait_paused_and_are_replaced_when_handed_out() -> None:
    threads = threading.enumerate()
    with warm(size=2) as pool:
        before, waiting = statuses(), mine()
        with ew.make("echo-v0", provider=pool) as env:
            env.reset()
            (lent,) = [n for n in waiting if inspect(n)["State"]["Status"] == "running"]
            reward = env.step({"message": "hi"}).reward
            pool.wait_until_warm()
            during = statuses()
        after = exists(lent)

    assert before == ["paused", "paused"]
    assert reward == 0.2
    assert during == ["paused", "paused", "running"]
    assert not after
    assert mine() == []
    assert threading.enumerate() == threads


def test_the_http_client_and_a_vector_take_containers_from_the_pool() -> None:
    with warm(size=3, network="none") as pool:
        with EchoEnv.from_docker_image(ECHO, provider=pool) as client:
            client.reset()
            reward = client.step(EchoAction("hi")).reward
        pool.wait_until_warm()
        waiting = set(mine())
        with ew.make_vector(
            f"docker://{ECHO}", num_envs=2, isolation="container", provider=pool
        ) as vector:
            running = [n for n in waiting if inspect(n)["State"]["Status"] == "running"]
            vector.reset()
            rewards = vector.step([{"message": "hi"}] * 2).reward.tolist()

    assert (reward, rewards) == (0.2, [0.2, 0.2])
    assert len(running) == 2


def test_if_none_is_ready_one_is_started_at_once() -> None:
    with warm(size=1) as pool:
        providers = [pool.provider() for _ in range(3)]
        urls = [one.start_container(ECHO) for one in providers]
        for one, url in zip(providers, urls, strict=True):
            one.wait_for_ready(url)
            one.stop_container()

    assert len(set(urls)) == 3


def test_a_lost_environment_continues_in_the_next_container() -> None:
    with warm(size=1) as pool, ew.make("echo-v0", provider=pool, autoreset=True) as env:
        env.reset()
        pool.wait_until_warm()
        (waiting,) = [n for n in mine() if inspect(n)["State"]["Status"] == "paused"]
        (used,) = set(mine()) - {waiting}
        docker("kill", used)

        result = env.step({"message": "hi"})

        assert result.end.reason == "lost"
        assert result.ready is not None
        assert inspect(waiting)["State"]["Status"] == "running"


def test_a_container_lost_while_waiting_is_skipped() -> None:
    with warm(size=2) as pool:
        victim = mine()[0]
        docker("rm", "--force", victim)
        providers = [pool.provider() for _ in range(2)]
        for one in providers:
            one.wait_for_ready(one.start_container(ECHO))
        names = set(mine())
        for one in providers:
            one.stop_container()

    assert victim not in names


def test_keywords_that_differ_from_the_pools_are_refused() -> None:
    with warm(BASE, size=1, env_vars={"ENVWEAVE_ENV": "counter-v0"}, kwargs={"done_at": 2}) as pool:
        cases = [
            ({"env": f"docker://{ECHO}"}, "has containers of 'envweave-base:latest'"),
            ({"done_at": 3}, "serve kwargs={'done_at': 2}, not {'done_at': 3}"),
            ({"done_at": 2, "max_episode_steps": 5}, "serve max_episode_steps=None, not 5"),
            ({"done_at": 2, "token": "mine"}, "token=… cannot be set"),
        ]
        for options, refusal in cases:
            env = options.pop("env", f"docker://{BASE}")
            with pytest.raises(OptionError, match=refusal):
                ew.make(env, provider=pool, **options)
        provider = pool.provider()
        for options in ({"memory": "1g"}, {"port": 8123}, {"env_vars": {"A": "b"}}):
            with pytest.raises(OptionError, match="cannot be set"):
                provider.start_container(BASE, **options)

        with ew.make(f"docker://{BASE}", provider=pool, done_at=2) as env:
            env.reset()
            ends = [env.step({"delta": 1}).done for _ in range(2)]

    assert ends == [False, True]


def test_a_container_that_cannot_start_is_reported_and_tried_again() -> None:
    with WarmPool(
        BASE, size=1, command=["python", "-c", "print('no'); raise SystemExit(3)"]
    ) as pool:
        with pytest.raises(StartupError, match=r"exited with code 3\. Its last lines:\nno"):
            pool.wait_until_warm()
        with pytest.raises(StartupError, match="exited with code 3"):
            pool.provider().start_container(BASE)

    assert mine() == []


def test_one_provider_has_one_pool() -> None:
    with warm(size=1) as pool:
        provider = pool.provider()
        url = provider.start_container(ECHO)
        try:
            with pytest.raises(CallOrderError, match="has a container already"):
                provider.start_container(ECHO)
        finally:
            provider.stop_container()
            provider.stop_container()
        with pytest.raises(CallOrderError, match="No container was started"):
            provider.wait_for_ready(url)


def test_a_closed_pool_refuses_and_containers_in_use_continue() -> None:
    with warm(size=1) as pool, ew.make("echo-v0", provider=pool) as env:
        pool.close()
        pool.close()
        env.reset()

        assert env.step({"message": "hi"}).reward == 0.2
        assert len(mine()) == 1
        with pytest.raises(ClosedError, match="is closed"):
            pool.provider().start_container(ECHO)
        with pytest.raises(ClosedError, match="is closed"):
            pool.wait_until_warm()


def test_a_forked_copy_may_not_use_it() -> None:
    with warm(size=1) as pool:
        child = os.fork()
        if child == 0:
            try:
                pool.provider().start_container(ECHO)
            except CallOrderError:
                os._exit(7)
            os._exit(1)

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


PROGRAM = """
import os, signal, sys
from envweave.providers.docker.warm_pool import WarmPool
from envweave.providers.cleanup import Owner
pool = WarmPool("echo-env:latest", size=2)
pool.wait_until_warm()
print(Owner.here().mark, flush=True)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["end", "kill"])
def test_an_unclosed_pool_is_removed_at_exit_or_at_the_next_start(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=120
    )
    mark = done.stdout.strip()
    if how == "kill":
        assert len(containers_of(mark)) == 2
        provider = LocalDockerProvider()
        provider.start_container(ECHO)
        provider.stop_container()

    assert containers_of(mark) == []


@pytest.mark.parametrize("size", [0, 257, True, 1.5])
def test_an_invalid_size_is_refused(size: Any) -> None:
    with pytest.raises(OptionError, match="size must be an integer from 1 to 256"):
        WarmPool(ECHO, size=size)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memroy": "1g"}, "Did you mean 'memory'"),
        ({"env_vars": {"ENVWEAVE_TOKEN": "x"}}, "differs for each container"),
        ({"kwargs": {"a": object()}}, "cannot be sent to a container"),
    ],
)
def test_unsupported_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        WarmPool(ECHO, **options)


def test_a_missing_image_is_reported_at_once() -> None:
    with pytest.raises(StartupError, match="no image 'no-such:1'"):
        WarmPool("no-such:1")
