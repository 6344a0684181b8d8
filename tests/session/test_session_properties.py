"""Random environments and random callers: the rules hold whatever happens."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envweave as ew
from envweave.errors import ActionError, CallOrderError, ResetFailedError
from envweave.testing import ScriptedAgents, ScriptedEnvironment
from envweave.types import AgentEnd, AutoResetReady, EpisodeEnd, NeedAction

rewards = st.one_of(st.none(), st.floats(-5, 5), st.integers(-5, 5), st.booleans())

entries = st.fixed_dictionaries(
    {},
    optional={
        "reward": rewards,
        "terminated": st.booleans(),
        "truncated": st.booleans(),
        "raise": st.just("broken"),
        "log": st.text(max_size=5),
        "tool": st.just("search"),
        "end": st.sampled_from([["timeout", "agent"], ["error", "environment"]]),
        "returns": st.sampled_from([None, 3, ("o", 1.0, False, False, {}), ("o",)]),
    },
)

calls = st.one_of(
    st.just("reset"),
    st.sampled_from(["step", "step", "step", "answer", "nonsense"]),
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(entries, min_size=1, max_size=6),
    st.lists(calls, max_size=30),
    st.lists(st.integers(0, 4), max_size=2),
    st.booleans(),
)
def test_the_rules_hold_for_any_environment_and_caller(
    script: list[dict[str, Any]], plan: list[str], fail_resets: list[int], autoreset: bool
) -> None:
    env = ew.make(ScriptedEnvironment(script, fail_resets=fail_resets), autoreset=autoreset)
    running, waiting, ends, begun = False, None, {}, 0
    for call in plan:
        if call == "reset":
            try:
                result = env.reset(seed=3)
            except ResetFailedError:
                running, waiting = False, None
                continue
            running, begun = True, begun + 1
        else:
            action: Any = {"step": {}, "nonsense": {"no": 1}, "answer": ew.ToolResult("call-1")}[
                call
            ]
            if call == "answer" and waiting is not None:
                action = ew.ToolResult(waiting, 1)
            try:
                result = env.step(action)
            except CallOrderError:
                assert not running or waiting is not None
                continue
            except ActionError:
                assert running
                assert call != "step"
                continue
            assert running
            assert (waiting is not None) == (call == "answer")
            kinds = [type(request) for request in result.requests]
            assert kinds.count(EpisodeEnd) == result.done
            if result.done:
                assert result.episode_id not in ends
                ends[result.episode_id] = result.end
                assert result.valid or math.isnan(result.reward)
                running = result.ready is not None
                begun += running
                assert running <= autoreset
                assert kinds.count(AutoResetReady) == running
        asks_a_tool = result.tool_calls and not result.done
        waiting = result.tool_calls[0].call_id if asks_a_tool else None
        assert bool(result.needs) == (running and waiting is None)
    env.close()
    assert len(ends) <= begun


names = ["a", "b", "c", "d"]
agent_entries = st.fixed_dictionaries(
    {"rewards": st.dictionaries(st.sampled_from(names), st.floats(-5, 5))},
    optional={
        "leave": st.lists(st.sampled_from(names), unique=True),
        "join": st.lists(st.sampled_from(names[2:]), unique=True, max_size=1),
        "act": st.lists(st.sampled_from(names), unique=True, max_size=3),
        "cut": st.booleans(),
    },
)


@pytest.mark.slow  # many generated values
@settings(max_examples=200, deadline=None)
@given(st.lists(agent_entries, min_size=1, max_size=8), st.booleans())
def test_every_reward_reaches_its_agent_once_as_agents_join_and_leave(
    script: list[dict[str, Any]], autoreset: bool
) -> None:
    env = ew.make(ScriptedAgents(["a", "b"], script, possible_agents=names), autoreset=autoreset)
    result: ew.StepResult[Any] = env.reset(seed=1)
    earned, carried, gone = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0), set()
    while True:
        assert len({need.agent_id for need in result.needs}) == len(result.needs)
        result = env.step({need.agent_id: {} for need in result.needs})
        if not result.valid:
            return  # the script broke a rule, and got an error
        for agent, reward in result.reward.items():
            earned[agent] += reward or 0.0
        for event in result.events:
            if isinstance(event, AgentEnd):
                assert event.agent_id not in gone
                gone.add(event.agent_id)
                carried[event.agent_id] += event.reward or 0.0
        if result.end is not None:
            for agent, reward in result.end.rewards.items():
                carried[agent] += reward or 0.0
            break
        for need in result.needs:
            assert isinstance(need, NeedAction)
            assert need.agent_id not in gone
            carried[need.agent_id] += need.reward or 0.0

    for agent in names:
        assert math.isclose(earned[agent], carried[agent], abs_tol=1e-9)
