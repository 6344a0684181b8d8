"""`kwargs=`: keywords for a constructor that have the names of options."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from environments.edge_cases import Colliding, Needy
from servers import served

import envweave as ew
from envweave.cli import main
from envweave.errors import DefinitionError, OptionError

GIVEN = {"backend": "gpu", "timeout_s": 3, "size": 7, "num_envs": 2}


def test_kwargs_reach_a_constructor_past_the_options_of_make() -> None:
    with ew.make(Colliding, kwargs=GIVEN) as env:
        assert env.reset().observation == json.dumps(GIVEN)


def test_kwargs_and_other_keywords_are_merged() -> None:
    with ew.make(Colliding, kwargs={"backend": "gpu"}, size=1) as env:
        assert json.loads(env.reset().observation) == {
            **GIVEN,
            "timeout_s": 0,
            "size": 1,
            "num_envs": 0,
        }


@pytest.mark.parametrize("backend", ["process"])
def test_kwargs_reach_a_constructor_on_every_backend(backend: str) -> None:
    with ew.make("pkg://environments.edge_cases:Colliding", backend=backend, kwargs=GIVEN) as env:
        assert env.reset().observation == json.dumps(GIVEN)


def test_kwargs_reach_the_constructors_of_a_vector_and_a_pool() -> None:
    async def play() -> list[Any]:
        async with ew.pool(Colliding, size=2, kwargs=GIVEN) as pool:
            return await ew.rollout(pool, lambda _: 0, episodes=1)

    with ew.make_vector(Colliding, num_envs=2, kwargs=GIVEN) as venv:
        assert list(venv.reset().current) == [json.dumps(GIVEN)] * 2
    assert asyncio.run(play())[0].steps[0].observation == json.dumps(GIVEN)


def test_kwargs_reach_the_constructor_at_a_server() -> None:
    with served(Colliding, kwargs={**GIVEN, "workers": 5}) as url, ew.make(url) as env:
        assert env.reset().observation == json.dumps({**GIVEN, "workers": 5})


def test_kwargs_reach_the_constructor_of_an_async_caller() -> None:
    async def look() -> Any:
        async with ew.make_async(Colliding, kwargs=GIVEN) as env:
            return (await env.reset()).observation

    assert asyncio.run(look()) == json.dumps(GIVEN)


def test_registered_kwargs_reach_the_constructor() -> None:
    registry = ew.Registry()
    ew.register("local://colliding-v0", Colliding, kwargs=GIVEN, registry=registry)

    with ew.make("colliding-v0", registry=registry, kwargs={"size": 8}) as env:
        assert json.loads(env.reset().observation)["size"] == 8


@pytest.mark.parametrize("command", ["run", "check"])
def test_an_argument_of_the_command_line_may_have_the_name_of_an_option(command: str) -> None:
    given = ["-a", "backend=gpu", "-a", "timeout_s=3", "-a", "seed=1", "-a", "max_steps=2"]

    code = main([command, "pkg://environments.edge_cases:Colliding", *given])

    assert code == 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"kwargs": {"size": 1}, "size": 2},
            r"'size' was passed twice, as a keyword and in kwargs",
        ),
        ({"kwargs": 3}, r"kwargs must be a dict with string keys, got 3\."),
        ({"kwargs": {1: 2}}, r"kwargs must be a dict with string keys"),
        (
            {"timeout_s": 3},
            r"constructor takes 'timeout_s' as well: pass it as kwargs={'timeout_s'",
        ),
    ],
)
def test_the_error_of_a_collision_names_kwargs(given: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        ew.make(Colliding, **given)


def test_an_unknown_backend_error_mentions_kwargs() -> None:
    with pytest.raises(ew.errors.BackendNotFoundError, match=r"pass it as kwargs={'backend': …}"):
        ew.make(Colliding, backend="gpu")


def test_a_keyword_that_is_needed_and_collides_is_asked_for_in_kwargs() -> None:
    with pytest.raises(
        OptionError, match=r"needs the keyword 'backend': make\(..., kwargs={'backen"
    ):
        ew.make(Needy)


def test_types_that_cannot_be_kept_are_refused_at_registration() -> None:
    class Odd(ew.MultiAgentEnvironment):
        possible_agents = ("a", "b")
        action_spec = {"a": int}  # noqa: RUF012 - as authors write it

        def reset(self) -> dict[str, int]:
            return {"a": 0, "b": 0}

        def step(self, actions: dict[str, Any]) -> Any:
            return {}

    with pytest.raises(DefinitionError, match="There is no action_spec for the possible agent 'b'"):
        ew.register("local://odd-v0", Odd, registry=ew.Registry())
