"""Our client against OpenEnv's own server, with its own echo environment and a staged one."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import Any

import pytest
from processes import Leftovers

import envweave as ew
from envweave.errors import ActionError, EnvironmentLostError, ResetNeededError

pytestmark = pytest.mark.slow  # starts servers and clients of OpenEnv


def test_openenvs_echo_environment_can_be_played(server: Any) -> None:
    with ew.make(server.echo) as env:
        first = env.reset(seed=3)
        result = env.step({"message": "Hello"})
        state = env.state()

    assert first.observation.echoed_message == "Echo World environment ready!"
    assert first.info["seed"] == 3
    assert result.observation.message_length == 5
    assert (result.reward, result.done) == (0.5, False)
    assert result.info == {"original_message": "Hello", "step": 1}
    assert (state.episode_id, state.step_count) == (first.episode_id, 1)


def test_the_same_for_an_async_caller(server: Any) -> None:
    async def play() -> tuple[Any, Any]:
        async with ew.make_async(server.echo) as env:
            await env.reset()
            return await env.step({"message": "Hello"}), await env.state()

    result, state = asyncio.run(play())

    assert result.observation.echoed_message == "Hello"
    assert state.step_count == 1


def test_sixteen_sessions_at_once_on_one_thread(server: Any) -> None:
    with ew.make_vector(server.staged, num_envs=16) as envs:
        first = envs.reset(seed=100)
        envs.step([{"amount": 100 + i} for i in range(16)])
        second = envs.step([{"amount": 100 + i} for i in range(16)])
        keepers = [one.name for one in threading.enumerate() if "openenv" in one.name]

    assert first.current["seed"] == list(range(100, 116))
    assert second.current["total"].tolist() == [200 + 2 * i for i in range(16)]
    assert second.reward.tolist() == [0.5] * 16
    assert len(keepers) == 1


def test_a_pool_plays_whole_episodes_over_many_sessions(server: Any) -> None:
    async def agent(result: Any) -> dict[str, Any]:
        return {"do": "end" if result.current.total == 2 else "count"}

    async def play() -> list[ew.Episode]:
        async with ew.pool(server.staged, size=8) as pool:
            return await ew.rollout(pool, agent, episodes=24)

    episodes = asyncio.run(play())

    assert [len(one.steps) for one in episodes] == [3] * 24
    assert all(one.usable and one.reward == 1.5 for one in episodes)


def test_the_order_of_calls_is_enforced_by_the_client(server: Any) -> None:
    with ew.make(server.staged) as env:
        with pytest.raises(ResetNeededError, match="before its first episode"):
            env.step({})
        env.reset()
        env.step({"do": "end"})
        with pytest.raises(ResetNeededError, match="after the end"):
            env.step({})


def test_an_autoreset_brings_the_end_and_the_next_start_in_one_result(server: Any) -> None:
    with ew.make(server.staged, autoreset=True) as env:
        env.reset(seed=1)
        result = env.step({"do": "end", "amount": 4})
        going_on = env.step({})

    kinds = [request.type for request in result.requests]
    assert kinds == ["episode_end", "auto_reset_ready", "need_action"]
    assert (result.observation.total, result.current.total) == (4, 0)
    assert going_on.observation.total == 1


@pytest.mark.parametrize(("pay", "reward"), [(True, 1.0), (2, 2.0), (0.25, 0.25), (None, None)])
def test_a_reward_is_a_float_or_none(server: Any, pay: Any, reward: float | None) -> None:
    with ew.make(server.staged) as env:
        env.reset()
        result = env.step({"pay": pay})

    assert result.reward == reward
    assert type(result.reward) is type(reward)


def test_options_are_keywords_of_their_reset(server: Any) -> None:
    with ew.make(server.staged) as env:
        result = env.reset(options={"note": "hello"}, episode_id="mine")
        state = env.state()

    assert result.observation.note == "hello"
    assert result.info["begun"] is True
    assert state.episode_id == "mine"


def test_an_action_that_its_schema_forbids_is_refused_before_it_is_sent(server: Any) -> None:
    with ew.make(server.staged) as env:
        env.reset()
        with pytest.raises(ActionError, match=r"action\.amuont: unknown field"):
            env.step({"amuont": 1})
        with pytest.raises(ActionError, match=r"action\.do"):
            env.step({"do": "dance"})
        result = env.step({"amount": 1})

    assert result.step_index == 1


def test_an_action_that_only_their_server_can_refuse_leaves_the_episode_unharmed(
    server: Any,
) -> None:
    with ew.make(server.staged) as env:
        env.reset()
        env.step({"amount": 2})
        with pytest.raises(ActionError, match=r"the server refuses it: .*thirteen is unlucky"):
            env.step({"amount": 13})
        result = env.step({"amount": 1})

    assert (result.observation.total, result.step_index) == (3, 2)


def test_a_refusal_that_their_server_breaks_on_is_a_lost_episode(server: Any) -> None:
    """OpenEnv 0.10 cannot write a `ValueError` of a validator, and closes the session instead."""
    with ew.make(server.staged) as env:
        env.reset()
        lost = env.step({"amount": 14})
        env.reset()
        result = env.step({"amount": 1})

    assert lost.end is not None
    assert (lost.end.reason, lost.end.blame) == ("lost", "infrastructure")
    assert result.observation.total == 1


def test_an_environment_that_fails_there_ends_its_episode_and_is_replaced(server: Any) -> None:
    with ew.make(server.staged) as env:
        env.reset()
        env.step({"amount": 2})
        failed = env.step({"do": "raise"})
        again = env.reset()

    assert math.isnan(failed.reward)
    assert failed.observation.total == 2
    assert failed.end is not None
    assert (failed.end.reason, failed.end.blame) == ("error", "environment")
    assert "as requested" in (failed.end.cause or "")
    assert again.observation.total == 0


def test_a_step_past_its_deadline_is_a_timeout_and_the_next_episode_takes_a_new_connection(
    server: Any,
) -> None:
    with ew.make(server.staged, timeout_s=0.5) as env:
        env.reset()
        late = env.step({"do": "hang", "amount": 7})
        env.reset()
        result = env.step({"amount": 1})

    assert late.end is not None
    assert (late.end.reason, late.end.blame) == ("timeout", "environment")
    assert math.isnan(late.reward)
    assert result.observation.total == 1


def test_a_lost_server_is_reported_and_never_replaced_silently(disposable_server: Any) -> None:
    with ew.make(disposable_server.staged) as env:
        env.reset()
        env.step({"amount": 3})
        lost = env.step({"do": "exit"})
        with pytest.raises(EnvironmentLostError, match="No OpenEnv server answers"):
            env.reset()

    assert lost.end is not None
    assert (lost.end.reason, lost.end.blame) == ("lost", "infrastructure")
    assert math.isnan(lost.reward)
    assert lost.observation.total == 3


def test_a_full_server_is_reported_as_full(server: Any) -> None:
    with (
        ew.make_vector(server.echo, num_envs=64) as envs,
        ew.make(server.echo) as one,
    ):
        envs.reset()
        with pytest.raises(EnvironmentLostError, match="no room for another session"):
            one.reset()


def test_no_thread_is_left_when_all_are_closed(server: Any) -> None:
    left = Leftovers()

    with ew.make(server.echo) as one, ew.make(server.echo) as other:
        one.reset()
        other.reset()

    assert left.threads("openenv") == []


@pytest.mark.parametrize("path", ["quiz", "exam"])
def test_a_reset_may_show_other_fields_than_the_steps(server: Any, path: str) -> None:
    """`quiz` declares only what its steps show, as most servers do; `exam` declares both."""
    with ew.make(f"{server.host}/{path}") as env:
        first = env.reset(seed=1)
        result = env.step({"answer": 3})

    assert first.observation.question == "2 + 1?"
    assert (first.observation.correct, first.observation.explanation) == (None, None)
    assert (result.observation.correct, result.observation.question) == (True, None)
    assert type(first.observation) is type(result.observation)


@pytest.mark.parametrize("path", ["quiz", "exam"])
def test_fields_that_only_some_observations_have_are_lists_in_a_vector(
    server: Any, path: str
) -> None:
    with ew.make_vector(f"{server.host}/{path}", num_envs=3, autoreset=True) as envs:
        first = envs.reset(seed=1)
        batches = [envs.step([{"answer": 3}] * 3) for _ in range(3)]

    assert first.current.keys() == {"question", "correct", "explanation"}
    assert first.current["question"] == ["2 + 1?", "0 + 1?", "3 + 1?"]
    assert first.current["correct"] == [None] * 3
    assert batches[0].current["question"] == [None] * 3
    assert batches[0].current["correct"] == [True, False, False]
    assert batches[2].successor["explanation"] == ["so it is"] * 3
    assert all(text.endswith("+ 1?") for text in batches[2].current["question"])


def test_tools_called_by_actions_run_in_a_vector(server: Any) -> None:
    with ew.make_vector(f"{server.host}/kitchen", num_envs=2) as envs:
        first = envs.reset()
        batch = envs.step([{"tool_name": "cook", "arguments": {"dish": one}} for one in "ab"])

    assert first.current["tool_name"] == [None, None]
    assert batch.current["tool_name"] == ["cook", "cook"]
    assert [one["data"] for one in batch.current["result"]] == ["a, cooked", "b, cooked"]
