"""Transforms change what is shown and paid, once; wrappers change timing and limits."""

from __future__ import annotations

from typing import Annotated

import pytest

import envweave as ew
from envweave.codec import spec_from_hint
from envweave.examples import CounterAction, CounterEnv, CounterObservation
from envweave.testing import AsyncScriptedEnvironment, ScriptedAgents, ScriptedEnvironment


class Bonus(ew.Transform):
    def __init__(self, part: str = "bonus", value: float = 10.0) -> None:
        self.part, self.value = part, value

    def __call__(self, observation: ew.Observation) -> ew.Observation:
        if observation.reward is not None:
            observation.add_reward(self.part, self.value)
        return observation


def test_a_transform_is_applied_once_and_its_part_is_named() -> None:
    env = ew.make(CounterEnv(), transform=Bonus())
    env.reset()

    result = env.step({"delta": 1})

    assert result.reward == 11.0
    assert result.reward_parts == {"base": 1.0, "bonus": 10.0}


def test_transforms_add_up_and_none_overwrites_another() -> None:
    both = ew.CompositeTransform([Bonus("good", 2.0), Bonus("bad", -5.0)])
    env = ew.make(CounterEnv(), transform=both)
    env.reset()

    result = env.step({"delta": 1})

    assert result.reward == -2.0
    assert result.reward_parts == {"base": 1.0, "good": 2.0, "bad": -5.0}


def test_a_transform_sees_every_agent() -> None:
    env = ew.make(ScriptedAgents(script=[{"rewards": {"a": 1.0, "b": 2.0}}, {}]), transform=Bonus())
    env.reset()

    result = env.step({"a": {}, "b": {}})

    assert result.reward == {"a": 11.0, "b": 12.0}


def test_a_transform_on_an_environment_without_observations_is_refused() -> None:
    class Tuples:
        def reset(self):
            return 0, {}

        def step(self, action):
            return 0, 0.0, False, False, {}

    with pytest.raises(ew.errors.ResetFailedError, match="needs an environment that returns Obs"):
        ew.make(Tuples(), transform=Bonus()).reset()


def test_a_time_limit_truncates_and_an_own_end_in_the_same_step_stays() -> None:
    cut = ew.make(CounterEnv(done_at=9), max_episode_steps=2)
    both = ew.make(CounterEnv(done_at=2), max_episode_steps=2)
    for env in (cut, both):
        env.reset()
        env.step({"delta": 1})

    results = [env.step({"delta": 1}) for env in (cut, both)]

    assert [(r.terminated, r.truncated, r.end.reason) for r in results] == [
        (False, True, "truncated"),
        (True, True, "terminated"),
    ]


def test_a_time_limit_under_a_transform_still_truncates() -> None:
    env = ew.make(CounterEnv(done_at=9), max_episode_steps=1, transform=Bonus())
    env.reset()

    result = env.step({"delta": 1})

    assert (result.truncated, result.reward) == (True, 11.0)


def test_a_time_limit_counts_no_answers_to_tool_calls() -> None:
    script = [{"tool": "search"}, {"reward": 1.0}, {"reward": 1.0}]
    env = ew.make(ew.TimeLimit(ScriptedEnvironment(script), max_steps=2))
    env.reset()
    call = env.step({}).tool_calls[0]

    answered = env.step(ew.ToolResult(call.call_id, 1))
    last = env.step({})

    assert (answered.done, last.truncated) == (False, True)


def test_statistics_contain_return_and_length_at_the_end() -> None:
    env = ew.make(ew.EpisodeStatistics(CounterEnv(done_at=2)))
    env.reset()
    first = env.step({"delta": 1})
    last = env.step({"delta": 1})

    assert "episode" not in first.info
    assert (last.info["episode"]["return"], last.info["episode"]["length"]) == (2.0, 2)


def test_statistics_of_several_agents_are_kept_apart() -> None:
    env = ew.make(ew.EpisodeStatistics(ScriptedAgents(script=[{"rewards": {"a": 1.0, "b": 2.0}}])))
    env.reset()

    last = env.step({"a": {}, "b": {}})

    assert last.info["episode"]["return"] == {"a": 1.0, "b": 2.0}


def test_wrappers_wrap_coroutines_too() -> None:
    wrapped = ew.EpisodeStatistics(ew.TimeLimit(AsyncScriptedEnvironment(), max_steps=2))
    with ew.make(wrapped) as env:
        env.reset()
        env.step({})

        last = env.step({})

    assert (last.truncated, last.info["episode"]["return"]) == (True, 3.0)


def test_a_wrapper_may_change_actions() -> None:
    class Doubled(ew.Wrapper):
        def before_step(self, action):
            action.delta *= 2
            return action

    env = ew.make(Doubled(CounterEnv()))
    env.reset()

    assert env.step({"delta": 1}).observation.value == 2


def test_the_environments_own_transform_comes_before_the_callers() -> None:
    environment = CounterEnv()
    environment.transform = Bonus("own", -10.0)
    env = ew.make(environment, transform=Bonus("callers", 1.0), max_episode_steps=5)
    env.reset()

    result = env.step({"delta": 1})

    assert result.reward_parts == {"base": 1.0, "own": -10.0, "callers": 1.0}


def test_a_transform_set_after_make_is_used_from_the_next_episode_on() -> None:
    environment = CounterEnv()
    env = ew.make(environment, max_episode_steps=5)
    environment.transform = Bonus()
    env.reset()

    assert env.step({"delta": 1}).reward == 11.0


def test_a_wrappers_word_survives_a_transform() -> None:
    class Doubled(ew.Wrapper):
        def after_step(self, result):
            result.reward *= 2
            return result

    env = ew.make(ew.EpisodeStatistics(Doubled(CounterEnv(done_at=1))), transform=Bonus())
    env.reset()

    result = env.step({"delta": 1})

    assert result.reward == 12.0
    assert result.info["episode"]["return"] == 2.0


def test_transforms_and_limits_write_nothing_into_an_observation_that_is_used_again() -> None:
    class OneObject(CounterEnv):
        shown = None

        def step(self, action: CounterAction) -> CounterObservation:
            fresh = super().step(action)
            if self.shown is None:
                self.shown = fresh
            self.shown.value, self.shown.reward = fresh.value, fresh.reward
            return self.shown

    env = ew.make(OneObject(done_at=99), transform=Bonus(), max_episode_steps=2, autoreset=True)
    env.reset()

    results = [env.step({"delta": 1}) for _ in range(6)]

    assert [result.reward for result in results] == [11.0] * 6
    assert [result.truncated for result in results] == [False, True] * 3


def test_a_limit_waits_for_the_answer_to_the_last_steps_tool_call() -> None:
    script = [{"tool": "search"}, {"reward": 1.0}]
    env = ew.make(ScriptedEnvironment(script), max_episode_steps=1)
    env.reset()

    asked = env.step({})
    answered = env.step(ew.ToolResult(asked.tool_calls[0].call_id, 1))

    assert (asked.done, answered.truncated) == (False, True)


def test_a_wrapper_may_set_another_action_spec() -> None:
    class ByNumber(ew.Wrapper):
        action_spec = spec_from_hint(Annotated[int, ew.Bounds(0, 3)])

        def before_step(self, action):
            return CounterAction(action)

    env = ew.make(ByNumber(CounterEnv()))
    env.reset()

    assert env.step(2).observation.value == 2


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("before_reset", "before_step"),
        ("befor_reset", "before_step"),
        ("after_close", "after_step"),
        ("afterstep", "after_step"),
        ("before_steps", "before_step"),
    ],
)
def test_a_misspelled_hook_of_a_wrapper_is_refused_when_it_is_defined(
    name: str, nearest: str
) -> None:
    with pytest.raises(ew.errors.DefinitionError) as refused:
        type("Shy", (ew.Wrapper,), {name: lambda self, action: action})

    message = str(refused.value)
    assert message.startswith(f"Shy.{name} is not a hook of Wrapper, so nothing would call it.")
    assert f"Did you mean '{nearest}'?" in message
    assert "before_step, after_reset, after_step, after_answer" in message


def test_other_methods_of_a_wrapper_are_its_own() -> None:
    class Counting(ew.Wrapper):
        after_all = 3

        def _before_lunch(self) -> None: ...

        def count(self) -> int:
            return 1

    assert Counting(CounterEnv()).count() == 1
