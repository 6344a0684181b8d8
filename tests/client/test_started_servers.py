"""Servers that are started for a caller: one, with room for every session."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from servers import served

import envweave as ew
from envweave.envs.echo_env import EchoEnv
from envweave.errors import AccessError, CallOrderError, DefinitionError, OptionError
from envweave.examples import CounterEnv


@pytest.mark.slow  # starts the command line anew
def test_a_provider_in_use_is_refused_and_its_server_continues() -> None:
    provider = ew.SubprocessProvider()
    with ew.make("echo-v0", provider=provider) as env:
        env.reset()

        for again in (
            lambda: ew.make("echo-v0", provider=provider),
            lambda: EchoEnv.from_docker_image("echo-v0", provider=provider),
        ):
            with pytest.raises(CallOrderError, match="started a server already"):
                again()

        assert env.step({"message": "hi"}).end is None


def test_another_kind_of_provider_that_is_in_use_is_not_stopped() -> None:
    class Full(ew.ContainerProvider):
        stopped = 0

        def start_container(self, image: str, *_: Any, **__: Any) -> str:
            raise CallOrderError("one at a time")

        def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
            raise AssertionError

        def stop_container(self) -> None:
            self.stopped += 1

    provider = Full()

    with pytest.raises(CallOrderError, match="one at a time"):
        ew.make("echo-v0", provider=provider)
    with pytest.raises(CallOrderError, match="one at a time"):
        EchoEnv.from_docker_image("echo-v0", provider=provider)

    assert provider.stopped == 0


@pytest.mark.slow  # starts the command line anew
def test_the_token_is_shown_to_a_server_that_a_provider_starts() -> None:
    provider = ew.SubprocessProvider(token="right")
    with ew.make("echo-v0", provider=provider, token="right") as env:
        assert env.reset().step_index == 0

    with pytest.raises(AccessError):
        ew.make("echo-v0", provider=ew.SubprocessProvider(token="right"), token="wrong")


@pytest.mark.slow  # starts the command line anew
def test_a_server_that_is_started_for_a_token_asks_for_it() -> None:
    with ew.make("echo-v0", backend="http", token="right") as env:
        url = env._transport._connection.address.url  # type: ignore[attr-defined]
        with pytest.raises(AccessError):
            ew.make(url, token="wrong")


@pytest.mark.parametrize("make", [ew.make, ew.make_async])
def test_an_empty_url_is_refused(make: Any) -> None:
    with pytest.raises(OptionError, match=r"base_url='' is not the URL of a server"):
        make("counter-v0", base_url="")


@pytest.mark.slow  # starts the command line anew
def test_a_started_server_has_room_for_all_sessions() -> None:
    with ew.make_vector("counter-v0", num_envs=1100, backend="http") as vector:
        assert len(vector.reset(seed=0).infos) == 1100


@pytest.mark.slow  # starts the command line anew
def test_a_pool_continues_at_the_same_server_after_an_environment_could_not_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign, started = tmp_path / "sign", []
    start = ew.SubprocessProvider.start

    def counted(self: Any, *what: Any) -> str:
        started.append(self)
        return start(self, *what)

    monkeypatch.setattr(ew.SubprocessProvider, "start", counted)

    async def play(pool: ew.Pool) -> int:
        async with pool, pool.line() as first, pool.line() as second:
            await first.reset()
            sign.touch()
            with pytest.raises(DefinitionError, match="no licence"):
                await second.reset()
            return (await second.reset()).step_index

    env_id = "pkg://environments.crashing:FailsOnce"
    index = asyncio.run(play(ew.pool(env_id, size=2, backend="http", sign=str(sign))))

    assert (index, len(started)) == (0, 1)


def test_the_scheme_of_a_url_may_be_in_capitals() -> None:
    with served(CounterEnv, drain_s=0) as url:
        loud = url.replace("unix://", "UNIX://").replace("http://", "HTTP://")
        with ew.make(loud) as env:
            assert env.reset().step_index == 0
        with ew.make(CounterEnv, base_url=loud) as env:
            assert env.reset().step_index == 0
