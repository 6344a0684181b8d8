"""Unsafe code never earns more than the penalty, whatever other transforms add."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from codeact_environments import SAFE, UNSAFE, code_observation, failed_code_observation, parts_of
from hypothesis import given
from hypothesis import strategies as st

import envweave as ew
from envweave import CodeObservation
from envweave.codeact.transforms import UNSAFE_MODULES, UNSAFE_NAMES
from envweave.errors import BadReturnError, OptionError
from envweave.transforms import TransformResult


class Bonus(ew.Transform):
    """Adds to the reward, sets a part of it, or overwrites it."""

    def __init__(self, value: float, how: str = "add", *, last: bool = False) -> None:
        self.value, self.how, self.last = value, how, last

    def __call__(self, observation: ew.Observation) -> ew.Observation:
        if self.how == "add":
            observation.add_reward("bonus", self.value)
        elif self.how == "set":
            observation.set_reward("safety", self.value)
        else:
            observation.reward = self.value
            observation.metadata["reward_parts"] = {"safety": self.value}
        return observation


class HideCode(ew.Transform):
    def __call__(self, observation: Any) -> ew.Observation:
        observation.code = ""
        observation.execution_result.duration_s = 0.0
        return observation


def test_unsafe_code_loses_its_reward_and_gets_the_penalty() -> None:
    shown = ew.CodeSafetyTransform()(code_observation(UNSAFE, reward=5.0))

    assert (shown.reward, parts_of(shown)) == (-1.0, {"base": 5.0, "safety": -6.0})
    assert shown.metadata["code_safety"] == {
        "safe": False,
        "found": [{"line": 1, "what": "imports os"}],
    }


def test_a_negative_reward_of_unsafe_code_is_kept() -> None:
    shown = ew.CodeSafetyTransform(penalty=-2.0)(code_observation(UNSAFE, reward=-3.0))

    assert (shown.reward, parts_of(shown)) == (-5.0, {"base": -3.0, "safety": -2.0})


def test_safe_code_keeps_its_reward() -> None:
    shown = ew.CodeSafetyTransform(safe_reward=0.25)(code_observation(SAFE, reward=1.0))

    assert (shown.reward, parts_of(shown)) == (1.25, {"base": 1.0, "safety": 0.25})
    assert shown.metadata["code_safety"] == {"safe": True, "found": []}


def test_code_that_does_not_parse_is_safe_but_earns_nothing() -> None:
    shown = ew.CodeSafetyTransform(safe_reward=0.25)(failed_code_observation("import os\nx = ("))

    assert (shown.reward, shown.metadata["code_safety"]["safe"]) == (0.0, True)


def test_code_that_does_not_parse_but_ran_is_unsafe() -> None:
    shown = ew.CodeSafetyTransform()(code_observation("import os\nx = ("))

    assert shown.reward == -1.0
    assert shown.metadata["code_safety"]["found"] == [
        {"line": 1, "what": "cannot be judged: it does not parse here, but it ran"}
    ]


def test_the_first_observation_of_an_episode_earns_nothing() -> None:
    first = CodeObservation(prompt="import os", available_tools=["search"])

    shown = ew.CodeSafetyTransform(safe_reward=1.0)(first)

    assert (shown.reward, shown.metadata) == (None, {})


def test_a_step_of_empty_code_is_a_step() -> None:
    shown = ew.CodeSafetyTransform(safe_reward=0.5)(code_observation("", None))

    assert shown.reward == 0.5


def test_a_tool_may_have_the_name_of_a_builtin() -> None:
    observation = code_observation("open('door')")
    observation.available_tools = ["open"]

    shown = ew.CodeSafetyTransform()(observation)

    assert shown.metadata["code_safety"]["safe"]


def test_modules_and_names_are_configurable() -> None:
    lenient = ew.CodeSafetyTransform(modules=UNSAFE_MODULES - {"os"}, names=UNSAFE_NAMES - {"open"})

    shown = [
        lenient(code_observation(code)).reward for code in ("import os\nopen('x')", "import sys")
    ]

    assert shown == [0.0, -1.0]


def test_findings_are_bounded_plain_data() -> None:
    shown = ew.CodeSafetyTransform()(code_observation("eval('1')\n" * 100))

    found = shown.metadata["code_safety"]["found"]
    assert len(found) == 20
    assert {type(value) for one in found for value in one.values()} == {int, str}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"penalty": 1.0}, "penalty=1.0.* would reward unsafe code"),
        ({"penalty": math.nan}, "penalty=nan.* a reward must be a finite number"),
        ({"penalty": "-1"}, "penalty='-1'.* a reward must be a finite number"),
        ({"penalty": True}, "penalty=True.* a reward must be a finite number"),
        ({"safe_reward": math.inf}, "safe_reward=inf.* a reward must be a finite number"),
        ({"penalty": -1.0, "safe_reward": -2.0}, "unsafe code would earn more than safe code"),
        ({"modules": "os"}, "modules='os'.* expected a collection of names"),
        ({"names": 3}, "names=3.* expected a collection of names"),
        ({"names": [3]}, "names must be strings, got 3"),
        ({"part": ""}, "part=''.* part must be a non-empty string"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        ew.CodeSafetyTransform(**options)


def test_an_environment_that_runs_no_code_is_refused() -> None:
    with pytest.raises(BadReturnError, match="needs a CodeObservation, got Observation"):
        ew.CodeSafetyTransform()(ew.Observation())


@pytest.mark.parametrize("how", ["add", "set", "write"])
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("is_nested", [False, True])
def test_no_later_transform_can_reward_unsafe_code(
    how: str, is_last: bool, is_nested: bool
) -> None:
    bonus: Any = Bonus(10.0, how, last=is_last)
    if is_nested:
        bonus = ew.CompositeTransform([ew.CompositeTransform([bonus]), lambda shown: shown])

    shown = ew.CompositeTransform([ew.CodeSafetyTransform(), bonus])(code_observation(UNSAFE))

    assert shown.reward == -1.0


def test_no_earlier_transform_can_hide_the_code() -> None:
    both = ew.CompositeTransform([HideCode(), Bonus(10.0), ew.CodeSafetyTransform()])

    shown = both(code_observation(UNSAFE))

    assert (shown.reward, shown.code) == (-1.0, "")


def test_a_transform_given_to_make_cannot_reward_unsafe_code() -> None:
    class Coding(ew.Environment):
        transform = ew.CodeSafetyTransform()

        def reset(self) -> CodeObservation:
            return CodeObservation()

        def step(self, action: ew.CodeAction) -> CodeObservation:
            return code_observation(action.code, reward=3.0)

    env = ew.make(Coding(), transform=ew.CompositeTransform([HideCode(), Bonus(9.0, last=True)]))
    env.reset()

    results = [env.step({"code": code}) for code in (UNSAFE, SAFE)]

    assert [result.reward for result in results] == [-1.0, 12.0]


def test_a_transform_result_is_applied_once_and_last() -> None:
    class Counting(TransformResult):
        def __init__(self) -> None:
            self.calls: list[str] = []

        def judge(self, observation: ew.Observation) -> Callable[[ew.Observation], ew.Observation]:
            self.calls.append("judges")

            def speak(shown: ew.Observation) -> ew.Observation:
                self.calls.append("speaks")
                return shown

            return speak

    verdict = Counting()
    note = lambda shown: (verdict.calls.append("other"), shown)[1]  # noqa: E731
    inner = ew.CompositeTransform([verdict, note])

    ew.CompositeTransform([note, ew.CompositeTransform([inner]), note])(code_observation())

    assert verdict.calls == ["judges", "other", "other", "other", "speaks"]


rewards = st.floats(-1e6, 1e6)
leaves = st.one_of(
    st.builds(Bonus, rewards, st.sampled_from(["add", "set", "write"]), last=st.booleans()),
    st.builds(HideCode),
    st.builds(ew.CodeSafetyTransform, st.floats(-1e3, 0), st.floats(0, 1e3)),
    st.builds(ew.CodeQualityTransform),
    st.builds(lambda right: ew.MathProblemTransform(42, right=right), st.floats(0.01, 1e6)),
    st.builds(lambda pays: ew.TaskCompletionTransform(lambda _: True, pays), rewards),
)
trees = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4).map(ew.CompositeTransform))


def assert_sum(parts: dict[str, float | None], reward: float) -> None:
    """Check that parts sum to the reward, but for the error of adding them one by one."""
    values = [value for value in parts.values() if value is not None]
    rounding = 1e-14 * max(map(abs, values), default=0.0)

    assert math.fsum(values) == pytest.approx(reward, rel=1e-6, abs=max(1e-9, rounding))


@pytest.mark.slow  # starts several sandboxes
@given(
    st.lists(trees, max_size=5),
    st.lists(trees, max_size=5),
    st.floats(-1e3, 0),
    st.none() | rewards,
)
def test_in_any_order_and_nesting_unsafe_code_earns_at_most_the_penalty(
    before: list[Any], after: list[Any], penalty: float, earned: float | None
) -> None:
    safety = ew.CodeSafetyTransform(penalty)
    every = ew.CompositeTransform([*before, safety, *after])

    shown = every(code_observation(UNSAFE, reward=earned))

    assert shown.reward is not None
    assert shown.reward <= penalty
    assert_sum(parts_of(shown), shown.reward)


@pytest.mark.slow  # starts several sandboxes
@given(st.lists(trees, max_size=5), st.none() | rewards)
def test_the_parts_of_safe_code_sum_to_its_reward(every: list[Any], earned: float | None) -> None:
    shown = ew.CompositeTransform(every)(code_observation(SAFE, reward=earned))

    assert_sum(shown.metadata.get("reward_parts", {"base": earned}), shown.reward or 0.0)
