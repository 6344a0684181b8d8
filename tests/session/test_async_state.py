"""An environment's `state` may be a coroutine, on every road."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from async_state_worlds import Moody, SyncMoody, wrapped
from serving import served

import envweave as ew
from envweave.errors import ClosedError, DeadlineError, StateFailedError
from envweave.session import DirectEnvironment

WORLDS = (Moody, SyncMoody, wrapped)


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.slow  # starts server and worker processes
@pytest.mark.parametrize(
    ("world", "backend"),
    [
        *((world, "inproc") for world in WORLDS),
        (Moody, "process"),
        (SyncMoody, "process"),
        (SyncMoody, "http"),
        (wrapped, "http"),
    ],
)
def test_a_caller_gets_the_state_itself(world: Any, backend: str) -> None:
    with ew.make(world, backend=backend) as env:
        env.reset()
        fresh = env.state()
        env.step("glad")
        result = env.step("sad")
        told = env.state()

    assert fresh.told == ""
    assert (told.told, told.step_count) == ("sad", 2)
    assert told.episode_id == result.episode_id
    assert type(told).__name__ == "Mood"


def test_an_async_caller_gets_the_state_itself(world: Any) -> None:
    async def look() -> Any:
        async with ew.make_async(world) as env:
            await env.reset()
            await env.step("glad")
            return await env.state()

    assert asyncio.run(look()).told == "glad"


def test_a_sync_caller_inside_a_running_loop_gets_the_state_itself(world: Any) -> None:
    async def look() -> Any:
        with ew.make(world) as env:
            env.reset()
            env.step("glad")
            return env.state()

    assert asyncio.run(look()).told == "glad"


def test_an_environment_used_directly_has_the_state_as_a_property(world: Any) -> None:
    with DirectEnvironment(world()) as env:
        env.reset()
        env.step("glad")

        assert env.state.told == "glad"


@pytest.mark.slow  # starts server and worker processes
@pytest.mark.parametrize(
    ("world", "options"),
    [
        *itertools.product(WORLDS, [{}, {"mode": "threads"}, {"mode": "async"}]),
        (SyncMoody, {"backend": "process"}),
        (Moody, {"backend": "process"}),
        (SyncMoody, {"backend": "http"}),
    ],
)
def test_a_vector_gets_the_state_of_each(world: Any, options: dict[str, Any]) -> None:
    with ew.make_vector(world, num_envs=3, **options) as venv:
        venv.reset(seed=0)
        venv.step(["a", "b", "c"])
        told = venv.state()

    assert [one.told for one in told] == ["a", "b", "c"]


@pytest.mark.slow  # starts server and worker processes
@pytest.mark.parametrize(("world", "workers"), [*((world, 0) for world in WORLDS), (SyncMoody, 1)])
def test_a_server_tells_the_state_of_each_session(world: Any, workers: int) -> None:
    with served(world, workers=workers) as url, ew.make(url) as one, ew.make(url) as other:
        one.reset()
        other.reset()
        one.step("glad")
        other.step("sad")

        told = one.state().told, other.state().told

    assert told == ("glad", "sad")


def test_a_failing_state_raises_and_does_not_harm_the_episode(world: Any) -> None:
    with ew.make(world) as env:
        env.reset()
        env.step("raise")

        with pytest.raises(StateFailedError, match="not in the mood"):
            env.state()
        result = env.step("glad")

        assert (result.reward, env.state().told) == (1.0, "glad")


@pytest.mark.slow  # starts server and worker processes
@pytest.mark.parametrize("backend", ["inproc", "process"])
def test_a_state_that_takes_too_long_is_given_up(backend: str) -> None:
    with ew.make(Moody, backend=backend, timeout_s=0.5) as env:
        env.reset()
        env.step("hang")

        with pytest.raises((StateFailedError, DeadlineError)):
            env.state()


def test_a_served_state_that_takes_too_long_times_out_and_the_episode_continues() -> None:
    with served(Moody, timeout_s=0.5) as url, ew.make(url) as env:
        env.reset()
        env.step("hang")

        with pytest.raises((StateFailedError, DeadlineError)):
            env.state()
        result = env.step("glad")

        assert (result.reward, env.state().told) == (1.0, "glad")


def test_events_emitted_while_reading_state_are_dropped(world: Any) -> None:
    with ew.make(world) as env:
        env.reset()
        env.state()
        result = env.step("glad")

    assert [one for one in result.requests if isinstance(one, ew.LogEvent)] == []


def test_a_closed_environment_has_no_state(world: Any) -> None:
    env = ew.make(world)
    env.reset()
    env.close()

    with pytest.raises(ClosedError):
        env.state()
