"""Several agents: who acts, who earns, who leaves."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest

import envweave as ew
from envweave.errors import ActionError
from envweave.testing import ScriptedAgents
from envweave.types import StepResult


def agents(*script: dict[str, Any], **options: Any) -> ew.Env:
    return ew.make(ScriptedAgents(options.pop("who", ["a", "b"]), script, **options))


def test_all_that_live_act_at_once_by_default() -> None:
    env = agents()

    result = env.reset()

    assert [need.agent_id for need in result.needs] == ["a", "b"]
    assert env.agents == ["a", "b"]


def test_only_the_player_to_move_may_act_and_the_other_is_refused_by_name() -> None:
    env = agents({"act": ["b"]}, {}, first=["a"])
    result = env.reset()
    assert [need.agent_id for need in result.needs] == ["a"]

    with pytest.raises(ActionError, match=r"action\['b'\]: it is not this agent's turn"):
        env.step({"b": {}})
    with pytest.raises(ActionError, match=r"action\['a'\]: this agent's action is missing"):
        env.step({})
    with pytest.raises(ActionError, match=r"action\['zed'\]: there is no such agent"):
        env.step({"a": {}, "zed": {}})

    assert [need.agent_id for need in env.step({"a": {}}).needs] == ["b"]


def test_a_bad_field_is_named_with_its_agent() -> None:
    env = agents()
    env.reset()

    with pytest.raises(ActionError, match=r"action\['b'\]\.number: 'x' is not an int"):
        env.step({"a": {}, "b": {"number": "x"}})


def test_a_need_action_has_the_reward_since_the_agent_last_acted() -> None:
    env = agents(
        {"rewards": {"a": 1.0}, "act": ["b"]},
        {"rewards": {"a": 2.0, "b": 5.0}, "act": ["a"]},
        {"rewards": {"a": 4.0}},
        first=["a"],
    )
    env.reset()

    first = env.step({"a": {}})
    second = env.step({"b": {}})
    last = env.step({"a": {}})

    assert [need.reward for need in first.needs] == [None]
    assert [need.reward for need in second.needs] == [3.0]
    assert last.end.rewards == {"a": 4.0, "b": 5.0}


def test_an_early_leaver_gets_its_last_observation_reward_and_flags_once() -> None:
    env = agents({"rewards": {"a": 1.0, "b": 2.0}}, {"rewards": {"a": 3.0}, "leave": ["a"]}, {}, {})
    env.reset()
    env.step({"a": {}, "b": {}})

    left = env.step({"a": {"text": "bye"}, "b": {}})
    after = env.step({"b": {}})

    ends = [event for event in left.events if isinstance(event, ew.AgentEnd)]
    assert [(end.agent_id, end.observation.text, end.reward) for end in ends] == [("a", "bye", 3.0)]
    assert (ends[0].terminated, ends[0].truncated, left.done) == (True, False, False)
    assert left.terminated == {"a": True, "b": False}
    assert after.events == []
    with pytest.raises(ActionError, match="this agent has left"):
        env.step({"a": {}, "b": {}})


def test_the_episode_ends_when_no_agent_is_left_or_all_is_set() -> None:
    class FiveDicts(ew.MultiAgentEnvironment):
        possible_agents = ("a", "b")

        def reset(self) -> Any:
            return {"a": 0, "b": 0}, {"a": {}, "b": {}}

        def step(self, actions: Any) -> Any:
            return {"a": 1, "b": 1}, {"a": 1.0, "b": 2.0}, {"__all__": True}, {}, {}

    env = ew.make(FiveDicts())
    env.reset()

    result = env.step({"a": 0, "b": 0})

    assert result.done is True
    assert result.terminated == {"a": True, "b": True}
    assert result.end == ew.EpisodeEnd("terminated", rewards={"a": 1.0, "b": 2.0})


def test_a_limit_truncates_the_episode_for_every_agent() -> None:
    env = ew.make(ScriptedAgents(), max_episode_steps=1)
    env.reset()

    result = env.step({"a": {}, "b": {}})

    assert result.truncated == {"a": True, "b": True}
    assert result.terminated == {"a": False, "b": False}
    assert result.end.reason == "truncated"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"act": []}, "at least one agent"),
        ({"act": ["zed"]}, "which takes no part"),
        ({"act": ["a", "a"]}, "none twice"),
        ({"join": ["zed"]}, "not in possible_agents"),
    ],
)
def test_inconsistent_agents_are_an_environment_error(entry: dict[str, Any], words: str) -> None:
    env = agents(entry, {})
    env.reset()

    result = env.step({"a": {}, "b": {}})

    assert words in result.end.cause
    assert all(math.isnan(reward) for reward in result.reward.values())


def test_an_autoreset_asks_the_first_players_of_the_new_episode() -> None:
    env = ew.make(ScriptedAgents(["a", "b"], [{"act": ["b"]}], first=["a"]), autoreset=True)
    env.reset(seed=1)

    result = env.step({"a": {}})

    assert [request.type for request in result.requests] == [
        "episode_end",
        "auto_reset_ready",
        "need_action",
    ]
    assert [need.agent_id for need in result.needs] == ["a"]
    assert result.current["a"].at == 0


def test_an_action_mask_travels_in_the_need() -> None:
    class Masked(ew.MultiAgentEnvironment):
        possible_agents = ("a",)

        def reset(self) -> Any:
            return {"a": 0}, {"a": {"action_mask": [1, 0]}}

        def step(self, actions: Any) -> Any:
            return {"a": 1}, {"a": 0.0}, {"a": False}, {"a": False}, {"a": {"action_mask": [0, 1]}}

    env = ew.make(Masked())

    masks = [env.reset().needs[0].action_mask, env.step({"a": 0}).needs[0].action_mask]

    assert masks == [[1, 0], [0, 1]]


def test_to_act_is_put_in_order_and_a_str_is_refused() -> None:
    class Named(ScriptedAgents):
        named: ClassVar[Any] = {"b", "a"}

        def to_act(self) -> Any:
            return self.named

    env = ew.make(Named(["a", "b"], [{}, {}]))
    in_order = [need.agent_id for need in env.reset().needs]
    Named.named = "ab"

    assert in_order == ["a", "b"]
    with pytest.raises(ew.errors.ResetFailedError, match="the str 'ab'"):
        env.reset()


@pytest.mark.parametrize("possible", [(), ("a", "a"), ("a", "seed"), ("__all__",)])
def test_duplicate_or_reserved_agent_names_are_refused(possible: tuple[str, ...]) -> None:
    class Confused(ScriptedAgents):
        possible_agents = possible

        def __init__(self) -> None:
            pass

    with pytest.raises(ew.errors.DefinitionError, match="possible_agents"):
        ew.make(Confused())


def test_a_flag_for_an_unknown_agent_is_the_environments_error_and_ends_the_episode() -> None:
    class Misspelt(ew.MultiAgentEnvironment):
        possible_agents = ("a", "b")

        def reset(self) -> Any:
            return {"a": 0, "b": 0}, {}

        def step(self, actions: Any) -> Any:
            return {"a": 1, "b": 1}, {}, {"bb": True}, {}, {}

    env = ew.make(Misspelt())
    env.reset()

    result = env.step({"a": 0, "b": 0})

    assert "'bb', which takes no part" in result.end.cause
    assert env.agents == []


class _Done(ew.MultiAgentEnvironment):
    """Returns a `StepResult` with the given `done`."""

    possible_agents = ("a", "b")

    def __init__(self, *dones: Any) -> None:
        self.dones = list(dones)

    def reset(self) -> dict[str, int]:
        return {"a": 0, "b": 0}

    def step(self, actions: dict[str, int]) -> StepResult[dict[str, int]]:
        return StepResult(
            dict.fromkeys(actions, 1), dict.fromkeys(actions, 1.0), done=self.dones.pop(0)
        )


def test_an_agent_whose_done_is_true_has_left_and_the_others_continue() -> None:
    with ew.make(_Done({"a": True, "b": False}, {"b": True})) as env:
        env.reset()

        first = env.step({"a": 1, "b": 1})
        last = env.step({"b": 1})

        assert (first.done, [need.agent_id for need in first.needs]) == (False, ["b"])
        assert first.terminated == {"a": True, "b": False}
        assert (last.done, last.end.reason) == (True, "terminated")


@pytest.mark.parametrize("done", [{"__all__": True}, {"a": False, "__all__": True}, True])
def test_done_for_all_ends_the_episode_of_all(done: Any) -> None:
    with ew.make(_Done(done)) as env:
        env.reset()

        result = env.step({"a": 1, "b": 1})

        assert (result.done, result.terminated) == (True, {"a": True, "b": True})


@pytest.mark.parametrize("done", [{"a": False, "b": False}, {"__all__": False}, False, None])
def test_done_that_is_false_ends_nothing(done: Any) -> None:
    with ew.make(_Done(done)) as env:
        env.reset()

        assert env.step({"a": 1, "b": 1}).done is False


def test_a_done_that_is_not_a_bool_is_the_environments_error() -> None:
    with ew.make(_Done("yes")) as env:
        env.reset()

        end = env.step({"a": 1, "b": 1}).end

        assert end is not None
        assert end.blame == "environment"
        assert "done must be a bool" in (end.cause or "")
