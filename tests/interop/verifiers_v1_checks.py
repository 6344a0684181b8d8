"""Run by `test_verifiers.py` in a virtual environment with verifiers 0.4."""

from __future__ import annotations

import asyncio
import json
import math
import os
import threading
import time
import types
import urllib.request
from pathlib import Path

import pytest
import verifiers.v1 as vf
import verifiers_v1_talk as environments

import envweave as ew
from envweave.adapters.verifiers import ChatAction, ChatToolCall, TurnMessage
from envweave.errors import MissingExtraError, OptionError, ResetFailedError

ID = "verifiers://verifiers_v1_talk"


def test_a_single_turn_is_an_episode_of_one_step_with_the_score_and_its_parts():
    with ew.make(ID) as env:
        first = env.reset(task="train-2")
        result = env.step("secret 5")

    assert first.observation.messages == [
        TurnMessage(role="system", content="Add."),
        TurnMessage(role="user", content="What is 2+3?"),
    ]
    assert first.observation.agent == "player"
    assert (result.terminated, result.truncated, result.reward) == (True, False, 1.25)
    assert result.reward_parts == {"correct": 1.0, "brief": 0.25}
    assert result.metrics == {"turns": 1.0}


def test_tasks_are_the_rows_the_seed_chooses_one_and_answers_stay_inside():
    with ew.make(ID) as env:
        rows = [env.reset(seed=seed) for seed in range(5)]
        again = [env.reset(seed=seed).task_id for seed in range(5)]

    assert env.tasks.length("train") == 5
    assert [row.task_id for row in rows] == again
    assert len(set(again)) > 1
    assert "secret" not in f"{rows!r} {env.tasks.get('train-2')}"


def test_each_step_of_many_turns_shows_what_is_new():
    with ew.make(ID, kind="talk") as env:
        env.reset(task="train-0")
        middle = env.step("hello")
        last = env.step("secret 3")

    assert middle.observation.messages == [TurnMessage(role="user", content="You said 'hello'.")]
    assert not middle.observation.is_new
    assert (middle.reward, middle.done) == (0.0, False)
    assert (last.terminated, last.reward, last.metrics) == (True, 1.25, {"turns": 2.0})


def test_the_limit_of_turns_truncates():
    with ew.make(ID, kind="talk", config={"player": {"max_turns": 2}}) as env:
        env.reset(task="train-0")
        env.step("a")
        result = env.step("b")

    assert (result.terminated, result.truncated, result.reward) == (False, True, 0.25)
    assert result.info["stop_condition"] == "max_turns"


def test_several_roles_are_played_in_turn_and_their_rewards_are_summed():
    with ew.make("verifiers://verifiers_v1_pair") as env:
        first = env.reset(seed=0)
        second = env.step("yes")
        result = env.step("no")

    assert (first.observation.agent, second.observation.agent) == ("writer", "critic")
    assert second.observation.is_new
    assert second.observation.messages[0].content == "Was 'yes' right?"
    assert (result.terminated, result.reward) == (True, 5.0)
    assert result.reward_parts == {"writer/length": 3.0, "critic/length": 2.0}


def test_tools_with_a_state_are_listed_and_called_and_bad_calls_are_answered_with_an_error():
    with ew.make("verifiers://verifiers_v1_bag") as env:
        first = env.reset(seed=0)
        calls = [
            ChatToolCall(name="bag_put", arguments={"number": 3}),
            ChatToolCall(name="bag_put", arguments="{nonsense"),
            ChatToolCall(name="take"),
            ChatToolCall(name="bag_put", arguments={"number": "x"}),
        ]
        called = env.step(ChatAction(tool_calls=calls))
        more = env.step({"tool_calls": [{"name": "bag_put", "arguments": {"number": 4}}]})
        last = env.step("done")

    assert [tool.name for tool in first.observation.tools] == ["bag_put"]
    assert set(first.observation.tools[0].parameters["properties"]) == {"number"}
    replies = [message.content for message in called.observation.messages]
    assert replies[0] == "1 in the bag"
    assert replies[1].startswith("error: the arguments are not valid JSON")
    assert replies[2] == "error: unknown tool 'take'; known: bag_put"
    assert "number" in replies[3]
    assert [one.tool_call_id for one in called.observation.messages] == [
        f"call_{n}" for n in (1, 2, 3, 4)
    ]
    assert more.observation.messages[0].content == "2 in the bag"
    assert (last.terminated, last.reward_parts) == (True, {"total": 7.0})


def test_a_reward_that_raises_is_a_failure_not_a_zero():
    with ew.make(ID, kind="failing_reward") as env:
        env.reset(task="train-0")
        result = env.step("secret 3")

    assert (result.end.reason, result.end.blame) == ("error", "environment")
    assert "ValueError: the judge is away" in result.end.cause
    assert math.isnan(result.reward)


def test_an_environment_that_fails_ends_its_episode_as_an_error():
    with ew.make(ID, kind="talk") as env:
        env.reset(seed=0)
        result = env.step("fail")
        env.reset(seed=1)

    assert (result.end.reason, result.end.blame) == ("error", "environment")
    assert "the sandbox is gone" in result.end.cause
    assert math.isnan(result.reward)


def test_an_environment_that_cannot_begin_fails_its_reset():
    with (
        ew.make(ID, kind="failing_setup") as env,
        pytest.raises(ResetFailedError, match="no sandbox"),
    ):
        env.reset(seed=0)


def test_an_abandoned_episode_is_cancelled_and_cleaned_up():
    environments.cleaned.clear()
    threads, files = set(threading.enumerate()), open_files()
    env = ew.make(ID, kind="talk")
    env.reset(task="train-1")
    env.reset(task="train-2")
    env.step("hello")

    assert environments.cleaned == [1]
    env.close()
    assert environments.cleaned == [1, 2]
    assert set(threading.enumerate()) <= threads
    assert open_files() == files


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_reset_that_is_cancelled_while_servers_start_leaves_the_next_one_to_wait_for_them():
    async def play() -> bool:
        async with ew.make_async(ID, kind="slow_start") as env:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(env.reset(task="train-0"), 0.1)
            return (await env.reset(task="train-0")).observation.is_new

    assert asyncio.run(play())


def test_no_process_of_a_tool_is_left_after_close():
    env = ew.make("verifiers://verifiers_v1_bag")
    env.reset(seed=0)
    running = child_processes()
    env.close()

    assert len(running) == 1
    assert child_processes() == []


def child_processes() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_no_task_is_left_on_the_callers_loop():
    async def play() -> set:
        async with ew.make_async(ID, kind="talk") as env:
            await env.reset(task="train-1")
            result = await env.step("hello")
            assert result.observation.messages[0].content == "You said 'hello'."
            await env.reset(task="train-1")
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(play()) == set()


def test_the_environments_own_time_limit_truncates_with_a_score():
    with ew.make(ID, kind="talk", config={"player": {"timeout": {"rollout": 0.3}}}) as env:
        env.reset(task="train-0")
        env.step("hello")
        time.sleep(0.5)  # the agent thinks for too long
        result = env.step("secret 3")

    assert (result.terminated, result.truncated) == (False, True)
    assert result.info["stop_condition"] == "agent_timeout"
    assert result.reward == 0.25


@pytest.mark.parametrize("how", [{"mode": "async"}, {"mode": "threads"}, {"backend": "process"}])
def test_vectors_play_rows_side_by_side(how):
    with ew.make_vector(ID, num_envs=3, **how) as venv:
        first = venv.reset(seed=5)
        batch = venv.step(["secret 3", "secret 4", "no"])

    assert len(first) == 3
    assert batch.terminated.all()
    assert set(batch.reward) <= {0.25, 1.25}


def test_a_program_that_streams_is_answered_in_a_stream():
    """The endpoint by itself, as a harness in a process of its own uses it."""
    from envweave.adapters.verifiers.v1 import load_v1

    rollouts = load_v1(environments, {})

    async def ask(messages, tools, agent):
        return ChatAction(
            content=messages[-1].content.upper(),
            tool_calls=[ChatToolCall(name="f", arguments={"a": 1}, id="c")],
        )

    async def talk() -> tuple[list[str], int]:
        await rollouts._start()
        rollouts._ask, rollouts._roles = ask, {"me": "player"}
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        url = f"{rollouts._endpoint}/chat/completions"
        streamed = await asyncio.to_thread(post, url, body, "me")
        foreign = await asyncio.to_thread(post, url, body, "another")
        await rollouts.close()
        return streamed, foreign

    (status, text), (refused, _) = asyncio.run(talk())

    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    chunks = [json.loads(event) for event in events[:-1]]
    assert (status, events[-1]) == (200, "[DONE]")
    assert chunks[0]["choices"][0]["delta"]["content"] == "HI"
    assert chunks[0]["choices"][0]["delta"]["tool_calls"][0] == {
        "index": 0,
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": '{"a": 1}'},
    }
    assert chunks[1]["choices"][0]["finish_reason"] == "tool_calls"
    assert refused == 410


def post(url: str, body: dict, session: str) -> tuple[int, str]:
    headers = {"Content-Type": "application/json", "X-Session-ID": session}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_an_environment_object_runs_locally_and_not_in_the_cloud():
    loaded = vf.load_environment(vf.resolve_env_config({"taskset": {"id": "verifiers_v1_talk"}}))
    with ew.make(loaded) as env:
        env.reset(task="train-0")
        assert env.step("secret 3").reward == 1.25


def test_an_environment_that_cannot_be_loaded_is_refused_with_the_reason():
    with pytest.raises(OptionError, match="flavour"):
        ew.make(ID, flavour=3)
    with pytest.raises(OptionError, match="max_turnz"):
        ew.make(ID, config={"player": {"max_turnz": 3}})
    classic = types.ModuleType("classic")
    classic.load_environment = lambda: None
    with pytest.raises(MissingExtraError, match=r"pip install 'verifiers<0\.4'"):
        ew.from_verifiers(classic)
    with pytest.raises(MissingExtraError, match=r"verifiers<0\.4"):
        ew.to_verifiers("counter-v0", generation="classic")


def test_an_exported_environment_plays_episodes_and_explains_bad_replies():
    with ew.make("verifiers://verifiers_v1_counter") as env:
        first = env.reset(seed=0)
        replies = env.step("three").observation.messages[0].content
        middle = env.step('{"delta": 2}').observation.messages[0].content
        last = env.step('{"delta": 1}')

    system, shown = first.observation.messages
    assert env.tasks.length("train") == 4
    assert '"delta": {"type": "integer"}' in system.content
    assert shown.content == '{"value":0}'
    assert replies.startswith("That is not a valid action. The reply is not valid JSON")
    assert middle == '{"value":2}'
    assert (last.terminated, last.reward_parts) == (True, {"reward": 3.0})


def test_the_limit_of_turns_of_an_exported_environment_truncates():
    limit = {"player": {"max_turns": 2}}
    with ew.make("verifiers://verifiers_v1_counter", config=limit) as env:
        env.reset(seed=0)
        env.step("nonsense")
        result = env.step('{"delta": 1}')

    assert (result.terminated, result.truncated, result.reward) == (False, True, 1.0)


def test_an_exported_environment_plays_tasks_and_records_the_parts_of_rewards():
    with ew.make("verifiers://verifiers_v1_riddles", split="test") as env:
        first = env.reset(seed=0)
        result = env.step("12")

    assert first.observation.messages == [TurnMessage(role="user", content="What is 9+3?")]
    assert result.reward_parts == {"right": 1.0, "style": 0.5}
    assert result.metrics == {"length": 2.0}


def test_a_failing_exported_environment_is_an_error_of_the_episode_without_a_reward():
    with ew.make("verifiers://verifiers_v1_riddles") as env:
        env.reset(seed=0)
        result = env.step("crash")
        again = env.reset(seed=0)

    assert (result.end.reason, result.end.blame) == ("error", "environment")
    assert "RuntimeError: a bug" in result.end.cause
    assert again.observation.is_new
