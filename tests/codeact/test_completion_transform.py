"""A task is rewarded once its condition holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from codeact_environments import code_observation, parts_of

import envweave as ew
from envweave import CodeObservation
from envweave.errors import BadReturnError, OptionError


def says_done(observation: CodeObservation) -> bool:
    return "done" in observation.stdout


def test_it_rewards_the_task_and_ends_the_episode_once_the_condition_holds() -> None:
    transform = ew.TaskCompletionTransform(says_done, reward=5.0)

    before, after = (transform(code_observation(stdout=text)) for text in ("working", "done"))

    assert (before.reward, before.done, parts_of(before)) == (0.0, False, {"task": 0.0})
    assert (after.reward, after.done, parts_of(after)) == (5.0, True, {"task": 5.0})


def test_it_sets_its_part_and_the_others_stay() -> None:
    transform = ew.TaskCompletionTransform(lambda _: True, 2, part="goal", ends=False)

    shown = transform(transform(code_observation(reward=1.0)))

    assert (shown.reward, parts_of(shown)) == (3.0, {"base": 1.0, "goal": 2.0})
    assert shown.done is False


def test_it_ends_an_episode_of_a_real_environment() -> None:
    transform = ew.TaskCompletionTransform(lambda seen: seen.execution_result.return_value == [1])
    with ew.make(ew.create_codeact_env(transform=transform)) as env:
        env.reset()

        results = [env.step({"code": code}) for code in ("x = []", "x.append(1)\nx")]

    assert [(one.reward, one.terminated) for one in results] == [(0.0, False), (1.0, True)]


def test_the_first_observation_of_an_episode_is_not_judged() -> None:
    transform = ew.TaskCompletionTransform(lambda _: True)

    shown = transform(CodeObservation(prompt="x"))

    assert (shown.reward, shown.done, shown.metadata) == (None, False, {})


def test_unsafe_code_that_completes_the_task_ends_the_episode_without_reward() -> None:
    both = ew.CompositeTransform(
        [ew.CodeSafetyTransform(), ew.TaskCompletionTransform(lambda _: True)]
    )

    shown = both(code_observation("import os"))

    assert (shown.reward, shown.done) == (-1.0, True)


def test_a_numpy_bool_is_accepted() -> None:
    shown = ew.TaskCompletionTransform(lambda _: np.bool_(True))(code_observation())

    assert (shown.reward, shown.done) == (1.0, True)


@pytest.mark.parametrize("value", [None, 1, "yes", [1]])
def test_a_condition_that_does_not_return_a_bool_is_refused(value: Any) -> None:
    transform = ew.TaskCompletionTransform(lambda _: value)

    with pytest.raises(BadReturnError, match="must return a bool, got"):
        transform(code_observation())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((3,), "must be a function .*, got 3"),
        ((says_done, float("inf")), "reward=inf.* a reward must be a finite number"),
    ],
)
def test_invalid_options_are_refused(given: tuple[Any, ...], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        ew.TaskCompletionTransform(*given)
