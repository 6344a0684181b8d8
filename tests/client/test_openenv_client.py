"""`openenv://` against slow, broken and refusing servers."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from environments.served import CustomOpenEnvFields, FailsOrWaits, Pixels, Talk
from hostile_servers import SCHEMAS, ScriptedOpenEnvServer, scripted_openenv_server, shown, usual
from servers import served

import envweave as ew
from envweave.errors import (
    AccessError,
    ConnectionLostError,
    EnvIdError,
    EnvironmentLostError,
    ResetFailedError,
    StateFailedError,
)
from envweave.examples import CounterEnv


@pytest.fixture
def server() -> Iterator[ScriptedOpenEnvServer]:
    with scripted_openenv_server() as one:
        yield one


def test_only_known_keys_are_sent(server: ScriptedOpenEnvServer) -> None:
    with ew.make(server.url) as env:
        env.reset(seed=4, episode_id="mine", options={"level": 2})
        env.step({"say": "hi"})
        env.state()
    assert server.left.acquire(timeout=30)

    assert server.requests == [
        {"type": "reset", "data": {"seed": 4, "episode_id": "mine", "level": 2}},
        {"type": "step", "data": {"say": "hi"}},
        {"type": "state"},
        {"type": "close"},
    ]


def test_omitted_fields_of_an_action_are_not_sent(server: ScriptedOpenEnvServer) -> None:
    """pydantic writes no default for what is made anew each time, such as a list."""
    fields = {
        "metadata": {"type": "object", "additionalProperties": True},
        "say": {"type": "string", "minLength": 1},
        "tags": {"type": "array", "items": {"type": "string"}},
    }
    action = {"type": "object", "title": "Act", "properties": fields, "required": ["say"]}
    server.schemas = {**SCHEMAS, "action": action}
    rng = np.random.default_rng(0)

    with ew.make(server.url) as env:
        env.reset()
        env.step({"say": "hi"})
        for _ in range(20):
            env.step(env.action_spec.sample(rng))

    sent = [one["data"] for one in server.requests if one["type"] == "step"]
    assert sent[0] == {"say": "hi", "metadata": {}}
    assert all(one["say"] and None not in one.values() for one in sent)
    assert {len(one) for one in sent} == {2, 3}


def test_a_reset_that_shows_what_no_schema_declares_adds_it_to_every_observation(
    server: ScriptedOpenEnvServer,
) -> None:
    declared = {"score": {"type": "integer", "default": 0}, "steps": {"type": "integer"}}
    observation = {"type": "object", "title": "Seen", "properties": declared}
    server.schemas = {**SCHEMAS, "observation": {**observation, "required": ["steps"]}}

    def answer(request: dict[str, Any], connection: Any) -> Any:
        if request["type"] == "reset":
            observed: dict[str, Any] = {"task": 7, "steps": 0}
        else:
            observed = {"score": 5, "steps": 1}
        return {
            "type": "observation",
            "data": {"observation": observed, "reward": 1, "done": False},
        }

    server.answer = answer
    with ew.make_vector(server.url, num_envs=2) as envs:
        first = envs.reset()
        second = envs.step([{"say": "hi"}] * 2)

    assert first.current["task"] == [7, 7]
    assert first.current["score"] == second.current["task"] == [None, None]
    assert second.current["score"] == [5, 5]
    assert second.current["steps"].tolist() == [1, 1]


def test_pings_are_answered_between_calls(server: ScriptedOpenEnvServer) -> None:
    """A server that gets no pong closes the connection, and the episode is lost."""
    answered = threading.Event()

    def ping(request: dict[str, Any], connection: Any) -> Any:
        if request["type"] == "reset":
            pong = connection.ping()
            threading.Thread(target=lambda: pong.wait(20) and answered.set()).start()
        return usual(request, connection)

    server.answer = ping
    with ew.make(server.url) as env:
        env.reset()

        assert answered.wait(20)  # without any call meanwhile
        assert env.step({"say": "still here"}).observation.echo == "still here"


def test_a_connection_lost_between_two_steps_is_a_lost_episode_and_nothing_is_sent_again(
    server: ScriptedOpenEnvServer,
) -> None:
    def hang_up(request: dict[str, Any], connection: Any) -> Any:
        if request.get("data", {}).get("say") == "leave":
            connection.send('{"type":"observation","data":{"observation":{"echo":"bye"}}}')
            connection.close()
            return None
        return usual(request, connection)

    server.answer = hang_up
    with ew.make(server.url) as env:
        env.reset()
        env.step({"say": "leave"})
        assert server.left.acquire(timeout=30)
        lost = env.step({"say": "more"})
        observed = [one["data"].get("say") for one in server.requests if one["type"] == "step"]
        again = env.reset()

    assert lost.end is not None
    assert (lost.end.reason, lost.end.blame) == ("lost", "infrastructure")
    assert math.isnan(lost.reward)
    assert lost.observation.echo == "bye"
    assert observed == ["leave"]
    assert again.step_index == 0
    assert server.connections == 2


def test_a_connection_lost_after_the_end_of_an_episode_loses_nothing(
    server: ScriptedOpenEnvServer,
) -> None:
    def end(request: dict[str, Any], connection: Any) -> Any:
        if request["type"] == "step":
            connection.send('{"type":"observation","data":{"observation":{},"done":true}}')
            connection.close()
            return None
        return usual(request, connection)

    server.answer = end
    with ew.make(server.url) as env:
        env.reset()
        last = env.step({"say": "x"})
        assert server.left.acquire(timeout=30)
        again = env.reset()

    assert last.terminated is True
    assert again.observation.echo == ""


@pytest.mark.parametrize("reply", ["{", "[]", '{"type":"observation","data":7}', '"x"'])
def test_an_invalid_reply_loses_the_episode(server: ScriptedOpenEnvServer, reply: str) -> None:
    server.answer = lambda request, line: (
        reply if request["type"] == "step" else usual(request, line)
    )

    with ew.make(server.url) as env:
        env.reset()
        lost = env.step({"say": "x"})

    assert lost.end is not None
    assert lost.end.reason == "lost"


def test_an_unexpected_frame_is_never_taken_for_a_reply(server: ScriptedOpenEnvServer) -> None:
    def chatter(request: dict[str, Any], connection: Any) -> Any:
        if request.get("data", {}).get("say") == "one":
            connection.send('{"type":"observation","data":{"observation":{"echo":"one"}}}')
            return shown("unasked")
        return usual(request, connection)

    server.answer = chatter
    with ew.make(server.url) as env:
        env.reset()
        first = env.step({"say": "one"})
        assert server.left.acquire(timeout=30)
        second = env.step({"say": "two"})

    assert first.observation.echo == "one"
    assert second.end is not None
    assert second.end.reason == "lost"


def test_after_a_deadline_the_socket_is_dropped_and_a_late_reply_is_ignored(
    server: ScriptedOpenEnvServer,
) -> None:
    late = threading.Event()

    def dawdle(request: dict[str, Any], connection: Any) -> Any:
        if request.get("data", {}).get("say") == "slow":
            assert late.wait(20)
        return usual(request, connection)

    server.answer = dawdle
    with ew.make(server.url, timeout_s=0.2) as env:
        env.reset()
        timed_out = env.step({"say": "slow"})
        late.set()
        env.reset()
        result = env.step({"say": "quick"})

    assert timed_out.end is not None
    assert (timed_out.end.reason, timed_out.end.blame) == ("timeout", "environment")
    assert result.observation.echo == "quick"
    assert server.connections == 2


def test_a_cancelled_step_drops_its_connection(server: ScriptedOpenEnvServer) -> None:
    asked, late = threading.Event(), threading.Event()

    def dawdle(request: dict[str, Any], connection: Any) -> Any:
        if request.get("data", {}).get("say") == "slow":
            asked.set()
            assert late.wait(20)
        return usual(request, connection)

    server.answer = dawdle

    async def scenario() -> Any:
        async with ew.make_async(server.url) as env:
            await env.reset()
            step = asyncio.ensure_future(env.step({"say": "slow"}))
            await asyncio.to_thread(asked.wait, 20)
            step.cancel()
            await asyncio.wait({step})
            late.set()
            await env.reset()
            return await env.step({"say": "quick"})

    result = asyncio.run(scenario())

    assert result.observation.echo == "quick"
    assert server.connections == 2


def test_metadata_become_the_info_wherever_the_server_puts_them(
    server: ScriptedOpenEnvServer,
) -> None:
    inside = shown("x")
    inside["data"]["observation"]["metadata"] = {"from": "inside"}
    replies = iter([shown("x", metadata={"from": "beside"}), inside, shown("x")])
    server.answer = lambda request, line: (
        next(replies) if request["type"] == "step" else usual(request, line)
    )

    with ew.make(server.url) as env:
        env.reset()
        infos = [env.step({"say": "x"}).info for _ in range(3)]

    assert infos == [{"from": "beside"}, {"from": "inside"}, {}]


def test_a_server_without_schemas_takes_any_action(server: ScriptedOpenEnvServer) -> None:
    server.schemas = None

    with ew.make(server.url) as env:
        first = env.reset()
        env.step({"say": "x", "and": ["more"]})

    assert first.observation == {"echo": ""}
    assert server.requests[1]["data"] == {"say": "x", "and": ["more"]}


def test_a_state_has_the_fields_that_no_schema_names(server: ScriptedOpenEnvServer) -> None:
    with ew.make(server.url) as env:
        env.reset()
        state: Any = env.state()

    assert isinstance(state, ew.State)
    assert (state.episode_id, state.step_count, state.extra) == ("theirs", 1, 5)


def test_a_failed_state_is_reported(server: ScriptedOpenEnvServer) -> None:
    with ew.make(server.url) as env, pytest.raises(StateFailedError, match="never made"):
        env.state()


def test_make_reports_a_missing_server() -> None:
    with pytest.raises(ConnectionLostError, match="No OpenEnv server answers at http://127"):
        ew.make("openenv://127.0.0.1:9")


@pytest.mark.parametrize("env_id", ["openenv://unix:///x", "openenv://host:0", "openenv://ftp://x"])
def test_an_invalid_address_is_refused(env_id: str) -> None:
    with pytest.raises(EnvIdError):
        ew.make(env_id)


def test_a_server_that_reports_it_is_full_is_named(server: ScriptedOpenEnvServer) -> None:
    server.answer = lambda request, line: {
        "type": "error",
        "data": {"message": "all 1 sessions are taken", "code": "CAPACITY_REACHED"},
    }

    with ew.make(server.url) as env, pytest.raises(EnvironmentLostError, match="all 1 sessions"):
        env.reset()


def test_a_refusal_before_the_first_request_is_read_and_the_next_reset_tries_again(
    server: ScriptedOpenEnvServer,
) -> None:
    refusal = {"message": "all 1 sessions are taken", "code": "CAPACITY_REACHED"}
    server.greeting = json.dumps({"type": "error", "data": refusal})

    with ew.make(server.url) as env:
        with pytest.raises(EnvironmentLostError, match="all 1 sessions"):
            env.reset()
        server.greeting = None
        again = env.reset()

    assert again.observation.echo == ""


def test_a_token_is_shown_only_when_it_is_given(
    server: ScriptedOpenEnvServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVWEAVE_TOKEN", "of another server")

    with ew.make(server.url) as env:
        env.reset()
    with ew.make(server.url, token="mine") as env:
        env.reset()

    assert server.tokens == [None, None, "Bearer mine", "Bearer mine"]


def test_a_token_for_an_openenv_server_reaches_it_and_leaves_the_keywords_alone(
    server: ScriptedOpenEnvServer,
) -> None:
    kwargs: dict[str, Any] = {}

    with ew.make(server.url.replace("openenv://", "OpenEnv://"), token="x", kwargs=kwargs) as env:
        env.reset()

    assert set(server.tokens) == {"Bearer x"}
    assert kwargs == {}


def test_a_missing_token_is_refused_with_advice() -> None:
    with served(CounterEnv, token="open sesame") as url:
        theirs = url.replace("http://", "openenv://")

        with pytest.raises(AccessError, match="token="):
            ew.make(theirs)
        with ew.make(theirs, token="open sesame") as env:
            assert env.reset().observation.value == 0


def test_an_envweave_server_works_with_the_openenv_client() -> None:
    with served(Pixels) as url, ew.make(url.replace("http://", "openenv://")) as env:
        first = env.reset(options={"start": 1})
        result = env.step(2)

    assert np.array_equal(first.observation, np.ones((2, 2)))
    assert (result.terminated, result.truncated) == (False, True)
    assert np.array_equal(result.observation, np.full((2, 2), 3.0))


def test_arguments_of_reset_that_the_server_refuses_are_reported() -> None:
    with (
        served(Talk) as url,
        ew.make(url.replace("http://", "openenv://")) as env,
        pytest.raises(ResetFailedError, match="takes no seed"),
    ):
        env.reset(seed=1)


def test_a_failure_at_our_own_server_keeps_its_owner() -> None:
    with served(FailsOrWaits) as url, ew.make(url.replace("http://", "openenv://")) as env:
        env.reset()
        failed = env.step({"do": "fail"})

    assert failed.end is not None
    assert (failed.end.reason, failed.end.blame) == ("error", "environment")
    assert math.isnan(failed.reward)


def test_fields_unknown_to_openenv_are_in_the_metadata() -> None:
    with served(CustomOpenEnvFields) as url, ew.make(f"openenv://{url}") as env:
        env.reset()
        result = env.step(3)

    assert result.observation.value == 3
    assert result.observation.note is None
    assert result.info == {"note": "there you are", "more": 1}
