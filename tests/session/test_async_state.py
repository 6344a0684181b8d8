"""An environment's `state` may be a coroutine, with every client."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from environments.edge_cases import AsyncState, SyncWithAsyncState, wrapped
from servers import served

import envweave as ew
from envweave.errors import ClosedError, DeadlineError, StateFailedError
from envweave.session import DirectEnvironment

ENVIRONMENTS = (AsyncState, SyncWithAsyncState, wrapped)


@pytest.fixture(params=ENVIRONMENTS)
def env_class(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.slow  # starts server and worker processes
@pytest.mark.parametrize(
    ("env_class", "backend"),
    [
        *((env_class, "inproc") for env_class in ENVIRONMENTS),
        (AsyncState, "process"),
        (SyncWithAsyncState, "process"),
        (SyncWithAsyncState, "http"),
        (wrapped, "http"),
    ],
)
def test_a_caller_gets_the_state_itself(env_class: Any, backend: str) -> None:
    with ew.make(env_class, backend=backend) as env:
        env.reset()
        fresh = env.state()
        env.step("glad")
        result = env.step("sad")
        state = env.state()

    assert fresh.last_action == ""
    assert (state.last_action, state.step_count) == ("sad", 2)
    assert state.episode_id == result.episode_id
    assert type(state).__name__ == "LastAction"


def test_an_async_caller_gets_the_state_itself(env_class: Any) -> None:
    async def look() -> Any:
        async with ew.make_async(env_class) as env:
            await env.reset()
            await env.step("glad")
            return await env.state()

    assert asyncio.run(look()).last_action == "glad"


def test_a_sync_caller_inside_a_running_loop_gets_the_state_itself(env_class: Any) -> None:
    async def look() -> Any:
        with ew.make(env_class) as env:
            env.reset()
            env.step("glad")
            return env.state()

    assert asyncio.run(look()).last_action == "glad"


def test_an_environment_used_directly_has_the_state_as_a_property(env_class: Any) -> None:
    with DirectEnvironment(env_class()) as env:
        env.reset()
        env.step("glad")

        assert env.state.last_action == "glad"


@pytest.mark.slow  # starts server and worker processes
@pytest.mark.parametrize(
    ("env_class", "options"),
    [
        *itertools.product(ENVIRONMENTS, [{}, {"mode": "threads"}, {"mode": "async"}]),
        (SyncWithAsyncState, {"backend": "process"}),
        (AsyncState, {"backend": "process"}),
        (SyncWithAsyncState, {"backend": "http"}),
    ],
)
def test_a_vector_gets_the_state_of_each(env_class: Any, options: dict[str, Any]) -> None:
    with ew.make_vector(env_class, num_envs=3, **options) as venv:
        venv.reset(seed=0)
        venv.step(["a", "b", "c"])
        state = venv.state()

    assert [one.last_action for one in state] == ["a", "b", "c"]


@pytest.mark.slow  # starts server and worker processes
@pytest.mark.parametrize(
    ("env_class", "workers"),
    [*((env_class, 0) for env_class in ENVIRONMENTS), (SyncWithAsyncState, 1)],
)
def test_a_server_returns_the_state_of_each_session(env_class: Any, workers: int) -> None:
    with served(env_class, workers=workers) as url, ew.make(url) as one, ew.make(url) as other:
        one.reset()
        other.reset()
        one.step("glad")
        other.step("sad")

        state = one.state().last_action, other.state().last_action

    assert state == ("glad", "sad")


def test_a_failing_state_raises_and_does_not_affect_the_episode(env_class: Any) -> None:
    with ew.make(env_class) as env:
        env.reset()
        env.step("raise")

        with pytest.raises(StateFailedError, match="not in the mood"):
            env.state()
        result = env.step("glad")

        assert (result.reward, env.state().last_action) == (1.0, "glad")


@pytest.mark.slow  # starts server and worker processes
@pytest.mark.parametrize("backend", ["inproc", "process"])
def test_a_state_that_takes_too_long_is_given_up(backend: str) -> None:
    with ew.make(AsyncState, backend=backend, timeout_s=0.5) as env:
        env.reset()
        env.step("hang")

        with pytest.raises((StateFailedError, DeadlineError)):
            env.state()


def test_a_served_state_that_takes_too_long_times_out_and_the_episode_continues() -> None:
    with served(AsyncState, timeout_s=0.5) as url, ew.make(url) as env:
        env.reset()
        env.step("hang")

        with pytest.raises((StateFailedError, DeadlineError)):
            env.state()
        result = env.step("glad")

        assert (result.reward, env.state().last_action) == (1.0, "glad")


def test_events_emitted_while_reading_state_are_dropped(env_class: Any) -> None:
    with ew.make(env_class) as env:
        env.reset()
        env.state()
        result = env.step("glad")

    assert [one for one in result.requests if isinstance(one, ew.LogEvent)] == []


def test_a_closed_environment_has_no_state(env_class: Any) -> None:
    env = ew.make(env_class)
    env.reset()
    env.close()

    with pytest.raises(ClosedError):
        env.state()
