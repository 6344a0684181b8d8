"""Tools that an environment asks its caller to run."""

from __future__ import annotations

from typing import Any

import pytest

import envweave as ew
from envweave.errors import ActionError, ToolCallOpenError
from envweave.testing import ScriptedEnvironment


class Asks(ew.Environment):
    """Takes any action; asks two tools at once, and pays for every answer."""

    def __init__(self, *names: str) -> None:
        self.names = names or ("a", "b")

    def reset(self) -> Any:
        return "start", {}

    def step(self, action: Any) -> Any:
        for name in self.names:
            self.emit(ew.ToolCallRequest(name, "search"))
        return "asked", 1.0, False, False, {}

    def answer(self, result: ew.ToolResult) -> Any:
        return f"got {result.value}", 2.0, False, False, {}


def test_open_tool_calls_are_listed_after_every_answer() -> None:
    env = ew.make(Asks())
    env.reset()
    asked = env.step("go")

    first = env.step(ew.ToolResult("a", 1))
    second = env.step(ew.ToolResult("b", 2))

    assert [call.call_id for call in asked.tool_calls] == ["a", "b"]
    assert [call.call_id for call in first.tool_calls] == ["b"]
    assert (first.needs, second.tool_calls) == ([], [])
    assert [result.step_index for result in (asked, first, second)] == [1, 1, 1]


def test_the_need_after_the_last_answer_carries_all_that_was_earned() -> None:
    env = ew.make(Asks())
    env.reset()
    env.step("go")
    env.step(ew.ToolResult("a", 1))

    result = env.step(ew.ToolResult("b", 2))

    assert result.reward == 2.0
    assert [need.reward for need in result.needs] == [5.0]


def test_an_answer_to_no_open_call_is_refused_even_if_any_action_is_taken() -> None:
    for env in (ew.make(Asks()), ew.make_vector(Asks, num_envs=1)):
        env.reset()
        action = ew.ToolResult("a", 1)

        with pytest.raises(ActionError, match="no tool call 'a' waits"):
            env.step(action if isinstance(env, ew.Env) else [action])


def test_two_calls_of_one_name_are_the_environments_error() -> None:
    env = ew.make(Asks("a", "a"))
    env.reset()

    assert "Two tool calls have the id 'a'" in env.step("go").end.cause


def test_an_end_drops_the_calls_that_wait() -> None:
    class EndsAsking(Asks):
        def step(self, action: Any) -> Any:
            super().step(action)
            return "over", 1.0, True, False, {}

    env = ew.make(EndsAsking())
    env.reset()

    result = env.step("go")

    assert (result.tool_calls, result.done) == ([], True)
    assert env.reset().needs


def test_a_vector_reports_which_row_waits_for_a_tool() -> None:
    script = [{"tool": "search"}, {"reward": 1.0}]
    venv = ew.make_vector(ScriptedEnvironment, num_envs=2, script=script)
    venv.reset()
    batch = venv.step([{}, {}])
    calls = [batch[i].tool_calls[0].call_id for i in range(2)]

    with pytest.raises(ToolCallOpenError, match=r"actions\[1\]"):
        venv.step([ew.ToolResult(calls[0]), {}])

    assert venv.step([ew.ToolResult(call) for call in calls]).step_index.tolist() == [1, 1]


def test_events_of_a_new_episode_come_after_the_end_of_the_old_one() -> None:
    class Talks(ew.Environment):
        def reset(self) -> Any:
            self.emit(ew.LogEvent("hello"))
            return 0, {}

        def step(self, action: int) -> Any:
            self.emit(ew.LogEvent("goodbye"))
            return 1, 0.0, True, False, {}

    env = ew.make(Talks(), autoreset=True)
    env.reset()

    sent = env.step(0).requests

    assert [getattr(one, "message", one.type) for one in sent] == [
        "goodbye",
        "episode_end",
        "auto_reset_ready",
        "hello",
        "need_action",
    ]
