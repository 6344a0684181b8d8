"""IDs that name a server or an image, beside a factory or instead of one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from servers import RecordingProvider, served

import envweave as ew
from envweave.errors import (
    AlreadyRegisteredError,
    DefinitionError,
    EnvWeaveError,
    OptionError,
    StartupError,
)
from envweave.examples import CounterEnv


@pytest.fixture
def registry() -> ew.Registry:
    return ew.Registry()


@pytest.fixture(scope="module")
def url():
    with served(CounterEnv, done_at=2) as where:
        yield where


def test_an_id_with_a_server_works_with_every_make_function(registry, url) -> None:
    ew.register("mine-v0", base_url=url, registry=registry)

    async def alone() -> bool:
        async with ew.make_async("mine-v0", registry=registry) as env:
            await env.reset()
            return (await env.step({"delta": 2})).done

    with ew.make("mine-v0", registry=registry) as env:
        env.reset()
        assert env.step({"delta": 2}).done
        assert env.id == "local://mine-v0"
    with ew.make_vector("mine-v0", num_envs=2, registry=registry) as venv:
        venv.reset()
        assert venv.step([{"delta": 2}, {"delta": 1}]).done.tolist() == [True, False]
    assert asyncio.run(alone())


def test_a_backend_chooses_between_a_factory_and_a_server(registry, url) -> None:
    ew.register("mine-v0", CounterEnv, kwargs={"done_at": 1}, base_url=url, registry=registry)

    def ends_at_once(**how: Any) -> bool:
        with ew.make("mine-v0", registry=registry, **how) as env:
            env.reset()
            return env.step({"delta": 1}).done

    assert ends_at_once()
    assert ends_at_once(backend="inproc")
    assert not ends_at_once(backend="http")


def test_a_url_from_the_caller_takes_precedence(registry, url) -> None:
    ew.register("mine-v0", base_url="http://127.0.0.1:1", registry=registry)

    with ew.make("mine-v0", base_url=url, registry=registry) as env:
        assert env.reset().observation.value == 0


@pytest.mark.parametrize("backend", [None, "docker_http"])
def test_an_id_with_an_image_starts_it_and_the_image_decides_what_it_serves(
    registry, backend
) -> None:
    ew.register(
        "mine-v0",
        docker_image="mine:1",
        kwargs={"done_at": 3},
        max_episode_steps=7,
        registry=registry,
    )
    provider = RecordingProvider()

    with pytest.raises(StartupError, match="there is no engine"):
        ew.make("mine-v0", backend=backend, provider=provider, registry=registry)

    ((image, config),) = provider.asked
    assert image == "mine:1"
    assert "id" not in config
    assert (config["kwargs"], config["max_episode_steps"]) == ({"done_at": 3}, 7)


@pytest.mark.parametrize("backend", [None, "docker_http"])
def test_an_id_with_a_factory_and_an_image_runs_in_process_unless_a_backend_or_a_provider_is_given(
    registry, backend
) -> None:
    ew.register("mine-v0", CounterEnv, docker_image="mine:1", registry=registry)
    provider = RecordingProvider()

    with ew.make("mine-v0", registry=registry) as env:
        env.reset()
    with pytest.raises(StartupError):
        ew.make("mine-v0", backend=backend, provider=provider, registry=registry)

    ((image, config),) = provider.asked
    assert (image, config["id"]) == ("mine:1", "pkg://envweave.examples.counter:CounterEnv")


def test_an_id_without_a_factory_is_not_made_here(registry, url) -> None:
    ew.register("far-v0", base_url=url, registry=registry)
    ew.register("boxed-v0", docker_image="mine:1", registry=registry)

    for name, backend in (("far-v0", "inproc"), ("far-v0", "process"), ("boxed-v0", "http")):
        with pytest.raises(OptionError, match=f"'local://{name}' was registered without a factory"):
            ew.make(name, backend=backend, registry=registry)
    with pytest.raises(OptionError, match="is already served"):
        ew.create_fastapi_app("far-v0", registry=registry)


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({}, DefinitionError, r"nothing to make it from.*base_url=….*docker_image=…"),
        ({"base_url": "http://127.0.0.1:1", "max_episode_steps": 3}, OptionError, "makes its env"),
        ({"factory": CounterEnv, "replace": True, "overwrite": False}, OptionError, "contradict"),
    ],
)
def test_contradicting_options_are_refused(
    registry, given: dict[str, Any], kind: type[EnvWeaveError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        ew.register("mine-v0", registry=registry, **given)
    assert "local://mine-v0" not in [spec.id for spec in registry.list()]


def test_overwrite_is_another_name_for_replace(registry) -> None:
    ew.register("mine-v0", CounterEnv, registry=registry)

    with pytest.raises(AlreadyRegisteredError):
        ew.register("mine-v0", dict, overwrite=False, registry=registry)
    ew.register("mine-v0", dict, overwrite=True, registry=registry)

    assert ew.spec("mine-v0", registry=registry).factory is dict
