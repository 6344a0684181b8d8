"""Run by `test_verifiers.py` in a virtual environment with verifiers 0.3."""

from __future__ import annotations

import asyncio
import math
import signal
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import verifiers as vf
import verifiers_classic_environments as environments
import verifiers_exports as exports

import envweave as ew
from envweave.adapters.verifiers import ChatAction, ChatToolCall, TurnMessage
from envweave.errors import (
    DefinitionError,
    EnvNotFoundError,
    MissingExtraError,
    OptionError,
    ResetFailedError,
    TaskError,
)

ID = "verifiers://verifiers_classic_environments"


def test_a_single_turn_is_an_episode_of_one_step_with_the_score_and_its_parts():
    with ew.make(ID) as env:
        first = env.reset(task="train-2")
        result = env.step("secret 5")

    assert first.observation.messages == [
        TurnMessage(role="system", content="Add."),
        TurnMessage(role="user", content="What is 2+3?"),
    ]
    assert first.observation.is_new
    assert (result.terminated, result.truncated, result.reward) == (True, False, 1.25)
    assert result.reward_parts == {"correct": 1.0, "brief": 0.25}
    assert result.metrics == {"correct": 1.0, "brief": 1.0, "num_turns": 1.0}


def test_tasks_are_the_rows_and_the_seed_chooses_one():
    with ew.make(ID) as env:
        rows = [env.reset(seed=seed).task_id for seed in range(8)]
        again = [env.reset(seed=seed).task_id for seed in range(8)]
        held_out = env.reset(task="eval-1").observation.messages[-1].content

    assert env.tasks.splits == ("train", "eval")
    assert [env.tasks.length(split) for split in env.tasks.splits] == [5, 2]
    assert rows == again
    assert len(set(rows)) > 2
    assert held_out == "What is 4+3?"


def test_answers_do_not_leave_the_environment():
    with ew.make(ID) as env:
        first = env.reset(task="train-2")
        last = env.step("5")
        shown = (
            f"{first!r} {first.info} {last!r} {last.info} {env.state()} {env.tasks.get('train-2')}"
        )

    assert "secret" not in shown


def test_each_step_of_many_turns_shows_what_is_new():
    with ew.make(ID, kind="talk") as env:
        env.reset(task="train-0")
        middle = env.step("hello")
        last = env.step("secret 3")

    assert middle.observation.messages == [TurnMessage(role="user", content="You said 'hello'.")]
    assert not middle.observation.is_new
    assert (middle.reward, middle.done) == (0.0, False)
    assert last.observation.messages == [TurnMessage(role="user", content="You said 'secret 3'.")]
    assert (last.terminated, last.reward) == (True, 1.0)
    assert last.info["stop_condition"] == "has_final_env_response"


def test_a_changed_history_is_shown_whole():
    with ew.make(ID, kind="forgetful") as env:
        env.reset(task="train-0")
        result = env.step("hello")

    assert result.observation.is_new
    assert [message.content for message in result.observation.messages] == ["You said 'hello'."]


def test_the_limit_of_turns_truncates():
    with ew.make(ID, kind="talk", max_turns=2) as env:
        env.reset(task="train-0")
        env.step("a")
        result = env.step("b")

    assert (result.terminated, result.truncated, result.reward) == (False, True, 0.0)


def test_tools_are_announced_and_called():
    with ew.make(ID, kind="tools") as env:
        first = env.reset(task="train-2")
        call = ChatToolCall(name="add", arguments={"a": 2, "b": 3})
        called = env.step(ChatAction(content="Let me see.", tool_calls=[call]))
        as_dict = env.step({"tool_calls": [{"name": "add", "arguments": {"a": 5, "b": 0}}]})
        last = env.step("secret 5")

    assert [tool.name for tool in first.observation.tools] == ["add"]
    assert first.observation.tools[0].description == "Add two numbers."
    assert set(first.observation.tools[0].parameters["properties"]) == {"a", "b"}
    assert called.observation.messages == [
        TurnMessage(role="tool", content="5", tool_call_id="call_1")
    ]
    assert as_dict.observation.messages[0].tool_call_id == "call_2"
    assert (last.terminated, last.reward) == (True, 1.25)


@pytest.mark.parametrize(
    ("call", "replies"),
    [
        (ChatToolCall(name="add", arguments='{"a": 2,'), "Expecting property name"),
        (ChatToolCall(name="add", arguments={"a": 2}), "missing 1 required positional argument"),
        (ChatToolCall(name="multiply"), "multiply"),
    ],
)
def test_a_bad_tool_call_is_answered_with_an_error(call, replies):
    with ew.make(ID, kind="tools") as env:
        env.reset(seed=0)
        result = env.step(ChatAction(tool_calls=[call]))

    assert not result.done
    assert replies in result.observation.messages[0].content


def test_tools_may_have_a_state():
    with ew.make(ID, kind="stateful") as env:
        first = env.reset(seed=0)
        two = [ChatToolCall(name="put", arguments={"number": n}) for n in (3, 4)]
        called = env.step(ChatAction(tool_calls=two))
        last = env.step("done")

    assert set(first.observation.tools[0].parameters["properties"]) == {"number"}
    assert [one.content for one in called.observation.messages] == [
        "1 in the bag",
        "2 in the bag",
    ]
    assert last.reward == 7.0


def test_rubrics_that_compare_rollouts_see_a_group_of_one():
    with ew.make(ID, kind="group") as env:
        env.reset(seed=0)
        assert env.step("hello").reward == 1.0


def test_a_reward_function_that_raises_is_a_failure_not_a_zero():
    with ew.make(ID, kind="failing_rubric") as env:
        env.reset(seed=0)
        result = env.step("hello")
        env.reset(seed=1)

    assert (result.end.reason, result.end.blame) == ("error", "environment")
    assert "broken_reward raised ValueError: the judge is away" in result.end.cause
    assert math.isnan(result.reward)
    assert not result.valid


@pytest.mark.parametrize(("reply", "cause"), [("fail", "the sandbox is gone"), ("crash", "a bug")])
def test_an_environment_that_fails_ends_its_episode_as_an_error(reply, cause):
    with ew.make(ID, kind="talk") as env:
        env.reset(seed=0)
        result = env.step(reply)
        env.reset(seed=1)

    assert (result.end.reason, result.end.blame) == ("error", "environment")
    assert cause in result.end.cause
    assert math.isnan(result.reward)


def test_an_environment_that_cannot_begin_fails_its_reset():
    with (
        ew.make(ID, kind="failing_setup") as env,
        pytest.raises(ResetFailedError, match="no sandbox"),
    ):
        env.reset(seed=0)


def test_an_abandoned_episode_is_cancelled_and_cleaned_up():
    environments.cleaned.clear()
    environments.torn_down.clear()
    threads = set(threading.enumerate())
    env = ew.make(ID, kind="talk")
    env.reset(task="train-1")
    env.reset(task="train-2")
    env.step("hello")

    assert environments.cleaned == [1]
    env.close()
    assert environments.cleaned == [1, 2]
    assert environments.torn_down == ["talk"]
    assert set(threading.enumerate()) <= threads


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
    with ew.make(ID, kind="talk", timeout_seconds=0.05) as env:
        env.reset(seed=0)
        time.sleep(0.1)  # the agent thinks for too long
        result = env.step("hello")

    assert (result.terminated, result.truncated, result.reward) == (False, True, 0.0)
    assert result.info["stop_condition"] == "timeout_reached"


def test_a_call_that_takes_longer_than_timeout_s_ends_the_episode():
    with ew.make(ID, kind="talk", timeout_s=1.0) as env:
        env.reset(seed=0)
        result = env.step("hang")
        again = env.reset(seed=1)

    assert (result.end.reason, result.end.blame) == ("timeout", "environment")
    assert again.observation.is_new


@pytest.mark.parametrize("how", [{"mode": "async"}, {"mode": "threads"}, {"backend": "process"}])
def test_vectors_play_rows_side_by_side(how):
    with ew.make_vector(ID, num_envs=3, **how) as venv:
        first = venv.reset(seed=5)
        batch = venv.step(["secret 3", "secret 4", "no"])

    assert len(first) == 3
    assert batch.terminated.all()
    assert set(batch.reward) <= {0.25, 1.25}


def test_it_can_be_made_in_any_thread_and_leaves_signals_alone():
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]

    def play() -> float:
        with ew.make(ID) as env:
            env.reset(task="train-0")
            return env.step("secret 3").reward

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda _: play(), range(2))) == [1.25, 1.25]
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_make_takes_an_environment_object():
    with ew.make(environments.load_environment("single")) as env:
        env.reset(task="train-0")
        assert env.step("secret 3").reward == 1.25


def test_an_environment_that_cannot_be_loaded_is_refused_with_the_reason():
    strict = types.ModuleType("strict")
    strict.load_environment = lambda difficulty=1: None
    with pytest.raises(OptionError, match="Did you mean 'difficulty'"):
        ew.from_verifiers(strict, dificulty=3)
    with pytest.raises(DefinitionError, match="returned a NoneType"):
        ew.from_verifiers(strict)
    with pytest.raises(DefinitionError, match="load_environment"):
        ew.make("verifiers://json")
    with pytest.raises(EnvNotFoundError, match="prime env install"):
        ew.make("verifiers://no-such-module")
    with pytest.raises(ew.errors.EnvIdError, match="kwargs"):
        ew.make("verifiers://a?b=c")
    with pytest.raises(DefinitionError, match="failed: TypeError"):
        ew.make(ID, kind="talk", dataset=None)
    with ew.make(ID) as env:
        with pytest.raises(TaskError, match="train-99"):
            env.reset(task="train-99")
        env.reset(seed=0)
        with pytest.raises(ew.errors.ActionError, match="contnt"):
            env.step({"contnt": "x"})


def test_an_exported_environment_plays_tasks_by_their_ids_and_sums_the_reward():
    exported = ew.to_verifiers(exports.Riddles)
    with ew.make(exported) as env:
        first = env.reset(task="train-1")
        result = env.step("4")

    assert exported.get_dataset()["info"] == [
        {"task_id": f"sum-{n}", "seed": None} for n in range(4)
    ]
    assert exported.get_eval_dataset()["info"] == [{"task_id": "sum-9", "seed": None}]
    assert "answer" not in str(exported.get_dataset()[0])
    assert first.observation.messages == [TurnMessage(role="user", content="What is 1+3?")]
    assert [one.content for one in result.observation.messages] == ["Right."]
    assert result.reward == 1.5
    assert result.metrics == {
        "episode_return": 1.5,
        "right": 1.0,
        "style": 0.5,
        "length": 1.0,
        "num_turns": 1.0,
    }


def test_an_invalid_reply_costs_a_turn_and_is_explained():
    with ew.make(ew.to_verifiers("counter-v0", max_turns=6)) as env:
        first = env.reset(seed=0)
        replies = [env.step(reply) for reply in ("three", '{"delta": "x"}', '{"by": 1}')]
        fenced = env.step('```json\n{"delta": 2}\n```')
        last = env.step('{"delta": 1}')

    system, shown = first.observation.messages
    assert '"delta": {"type": "integer"}' in system.content
    assert shown.content == '{"value":0}'
    errors = [one.observation.messages[0].content for one in replies]
    assert [one.startswith("That is not a valid action.") for one in errors] == [True] * 3
    assert "not valid JSON" in errors[0]
    assert "action.delta" in errors[1]
    assert "action.by" in errors[2]
    assert fenced.observation.messages[0].content == '{"value":2}'
    assert (last.terminated, last.reward, last.metrics["num_turns"]) == (True, 3.0, 5.0)


def test_the_last_turn_that_is_allowed_is_played_and_truncates():
    with ew.make(ew.to_verifiers("counter-v0", max_turns=2)) as env:
        env.reset(seed=0)
        env.step('{"delta": 1}')
        result = env.step('{"delta": 1}')
    with ew.make(ew.to_verifiers(exports.Riddles, max_turns=1)) as env:
        env.reset(task="train-1")
        whole = env.step("4")

    assert (result.terminated, result.truncated, result.reward) == (False, True, 2.0)
    assert (whole.terminated, whole.truncated, whole.reward) == (True, False, 1.5)


def test_an_action_that_the_environment_refuses_is_answered_with_an_error():
    with ew.make(ew.to_verifiers(exports.Riddles)) as env:
        env.reset(task="train-1")
        result = env.step("forbidden")

    assert not result.done
    assert "That word is forbidden." in result.observation.messages[0].content


def test_a_dataclass_with_one_text_field_and_a_choice_of_words_take_plain_text():
    with ew.make(ew.to_verifiers(exports.Parrot, num_examples=2)) as env:
        env.reset(seed=0)
        heard = env.step("hello").observation.messages[0].content
        env.step("{}")
        last = env.step("bye")
    with ew.make(ew.to_verifiers(exports.Coin)) as env:
        env.reset(seed=0)
        wrong = env.step("edge").observation.messages[0].content
        right = env.step("heads")

    assert heard == '{"text":"hello","steps":[1]}'
    assert (last.truncated, last.reward) == (True, 3.0)
    assert "'heads', 'tails'" in wrong
    assert right.reward == 1.0


def test_a_failing_exported_environment_is_an_error_of_the_rollout():
    exported = ew.to_verifiers(exports.Riddles)
    client = ScriptedClient("crash")

    outputs = exported.evaluate_sync(
        client=client, model="m", num_examples=1, rollouts_per_example=2, max_concurrent=2
    )["outputs"]

    assert [one["error"]["error"] for one in outputs] == ["InfraError", "InfraError"]
    assert "a bug" in outputs[0]["error"]["message"]


def test_rollouts_run_side_by_side_each_in_an_environment_of_its_own():
    exported = ew.to_verifiers(exports.Riddles)

    outputs = exported.evaluate_sync(
        client=ScriptedClient("12"), model="m", num_examples=1, rollouts_per_example=4
    )["outputs"]

    assert [one["reward"] for one in outputs] == [1.5] * 4


def test_an_env_made_already_is_used_by_one_rollout_at_a_time():
    with ew.make(exports.Riddles) as env:
        exported = ew.to_verifiers(env)
        outputs = exported.evaluate_sync(
            client=ScriptedClient("12"), model="m", num_examples=1, rollouts_per_example=4
        )["outputs"]
        asyncio.run(exported._teardown())
        env.reset(task="sum-0")  # it is still open

    assert [one["reward"] for one in outputs] == [1.5] * 4


def test_an_environment_that_cannot_be_exported_is_refused():
    with pytest.raises(DefinitionError, match="several agents"):
        ew.to_verifiers("tictactoe-v0")
    with pytest.raises(OptionError, match="'classic' or 'v1'"):
        ew.to_verifiers("counter-v0", generation="v2")
    with pytest.raises(MissingExtraError, match=r"verifiers>=0\.4"):
        ew.to_verifiers("counter-v0", generation="v1")
    with pytest.raises(OptionError, match="done_att"):
        ew.to_verifiers("counter-v0", done_att=3)


class ScriptedClient(vf.Client):
    """A model that always says the same."""

    def __init__(self, reply: str) -> None:
        super().__init__(object())
        self.reply = reply

    async def get_response(self, prompt, model, sampling_args, tools=None, **kwargs):
        message = vf.types.ResponseMessage(
            content=self.reply, finish_reason="stop", is_truncated=False
        )
        return vf.types.Response(id="x", created=0, model=model, usage=None, message=message)

    def setup_client(self, config): ...
    async def to_native_tool(self, tool): ...
    async def to_native_prompt(self, messages): ...
    async def get_native_response(self, *args, **kwargs): ...
    async def raise_from_native_response(self, response): ...
    async def from_native_response(self, response): ...
    async def close(self): ...
