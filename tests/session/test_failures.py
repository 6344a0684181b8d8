"""A failure is never a reward of 0, and it has an owner."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest

import envweave as ew
from envweave.errors import StateFailedError
from envweave.examples import CounterAction, CounterEnv, CounterObservation


class Returns:
    """Returns whatever it was given."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = outcomes

    def reset(self) -> Any:
        self.left = iter(self.outcomes)
        return "start", {}

    def step(self, action: Any) -> Any:
        return next(self.left)


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (None, "NoneType"),
        (("o", 1.0, False, {}), "tuple of 4"),
        (("o", "1.5", False, False, {}), "reward '1.5' is not a number"),
        (("o", 1.0, "yes", False, {}), "terminated 'yes' is not a bool"),
        (("o", 1.0, False, 2, {}), "truncated 2 is not a bool"),
        (("o", 1.0, False, False, ["info"]), "is not a dict"),
        (("o", [1.0, 2.0], False, False, {}), "is not a number"),
    ],
)
def test_an_invalid_return_value_is_the_environments_error(outcome: Any, words: str) -> None:
    env = ew.make(Returns(outcome))
    env.reset()

    result = env.step(0)

    assert (result.end.reason, result.end.blame) == ("error", "environment")
    assert words in result.end.cause
    assert math.isnan(result.reward)
    assert result.observation == "start"


@pytest.mark.parametrize(
    ("reward", "expected"),
    [(True, 1.0), (2, 2.0), (np.float32(0.5), 0.5), (np.array(3.0), 3.0), (None, None)],
)
def test_any_number_is_a_reward_and_none_stays_none(reward: Any, expected: float | None) -> None:
    env = ew.make(Returns(("o", reward, np.bool_(False), 0, {})))
    env.reset()

    result = env.step(0)

    assert result.valid
    assert result.reward == expected
    assert type(result.reward) in (float, type(None))


def test_the_cause_names_the_line_of_the_authors_code(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(CounterEnv):
        def step(self, action: CounterAction) -> CounterObservation:
            raise ZeroDivisionError("too deep")

    env = ew.make(Fails())
    env.reset()

    with caplog.at_level(logging.WARNING, "envweave"):
        result = env.step({"delta": 1})

    assert result.end.cause.startswith("ZeroDivisionError: too deep (test_failures.py:")
    assert "Traceback" in caplog.text


def test_a_failing_state_does_not_affect_the_episode() -> None:
    class Fails(CounterEnv):
        @property
        def state(self) -> ew.State:
            raise OSError("disk on fire")

    env = ew.make(Fails())
    env.reset()

    with pytest.raises(StateFailedError, match="disk on fire"):
        env.state()

    assert env.step({"delta": 1}).valid


def test_a_result_with_an_end_of_the_authors_own_is_taken() -> None:
    end = ew.EpisodeEnd("timeout", "agent", "ran for ever")
    outcome = ew.StepResult("o", -1.0, truncated=True, end=end)
    env = ew.make(Returns(outcome))
    env.reset()

    result = env.step(0)

    assert result.end == end
    assert (result.reward, result.valid, result.done) == (-1.0, True, True)


def test_emitting_a_non_event_is_the_environments_error() -> None:
    class Emits(CounterEnv):
        def step(self, action: CounterAction) -> CounterObservation:
            self.emit("hello")
            return super().step(action)

    env = ew.make(Emits())
    env.reset()

    result = env.step({"delta": 1})

    assert not result.valid
    assert "emit() was given 'hello'" in result.end.cause


def test_an_observation_that_cannot_be_copied_is_refused() -> None:
    class Handle:
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("a handle")

    class ShowsAHandle:
        def reset(self) -> Any:
            return Handle(), {}

        def step(self, action: Any) -> Any:
            return Handle(), 0.0, False, False, {}

    with pytest.raises(ew.errors.ResetFailedError, match="Observations are data"):
        ew.make(ShowsAHandle()).reset()


@pytest.mark.parametrize(
    ("reward", "words"), [(10**400, "too large"), (math.nan, "None means not scored yet")]
)
@pytest.mark.parametrize("vector", [False, True])
def test_an_invalid_reward_fails_only_its_own_row(reward: Any, words: str, vector: bool) -> None:
    outcomes = (("o", reward, False, False, {}), ("o", 1.0, False, False, {}))
    if vector:
        venv = ew.make_vector(lambda: Returns(*outcomes), num_envs=2, autoreset=True)
        venv.reset()
        results = list(venv.step([0, 0]))
    else:
        env = ew.make(Returns(*outcomes))
        env.reset()
        results = [env.step(0)]

    assert all(words in result.end.cause for result in results)


def test_an_end_that_the_environment_declares_is_checked_and_agrees_with_the_flags() -> None:
    class Declares(CounterEnv):
        end = ew.EpisodeEnd("terminated")

        def step(self, action: CounterAction) -> CounterObservation:
            self.emit(self.end)
            return CounterObservation(1, reward=1.0, truncated=True)

    env = ew.make(Declares())
    env.reset()
    both = env.step({"delta": 1})
    Declares.end = ew.EpisodeEnd("tiemout", blame="agnet")
    env.reset()
    wrong = env.step({"delta": 1})

    assert (both.terminated, both.truncated, both.end.reason) == (True, True, "terminated")
    assert "unknown reason or blame" in wrong.end.cause


def test_a_failure_that_the_environment_declares_has_no_reward_and_no_parts() -> None:
    class Declares(CounterEnv):
        def step(self, action: CounterAction) -> CounterObservation:
            self.emit(ew.EpisodeEnd("lost", blame="infrastructure"))
            shown = CounterObservation(1)
            shown.add_reward("part", 1.0)
            return shown

    env = ew.make(Declares())
    env.reset()

    result = env.step({"delta": 1})

    assert math.isnan(result.reward)
    assert (result.reward_parts, result.valid) == ({}, False)


def test_a_reset_that_ends_the_episode_is_refused() -> None:
    class OverAlready(CounterEnv):
        def reset(self, *, seed: int | None = None) -> CounterObservation:
            return CounterObservation(0, done=True)

    class Declares(CounterEnv):
        def reset(self, *, seed: int | None = None) -> CounterObservation:
            self.emit(ew.EpisodeEnd("lost"))
            return CounterObservation(0)

    for environment in (OverAlready, Declares):
        with pytest.raises(ew.errors.ResetFailedError, match=r"over already|before it began"):
            ew.make(environment()).reset()


@pytest.mark.parametrize("vector", [False, True])
def test_an_autoreset_that_finds_no_task_leaves_the_last_step_whole(vector: bool) -> None:
    class NoTasks(ew.Environment):
        tasks = ew.Tasks({"train": [], "test": [ew.Task("t", "test")]})

        def reset(self, *, task: ew.Task) -> Any:
            return 0, {}

        def step(self, action: int) -> Any:
            return 1, 5.0, True, False, {}

    if vector:
        venv = ew.make_vector(NoTasks, num_envs=1, autoreset=True)
        venv.reset(task="t")
        result = venv.step([0])[0]
    else:
        env = ew.make(NoTasks(), autoreset=True)
        env.reset(task="t")
        result = env.step(0)

    assert (result.reward, result.valid, result.ready) == (5.0, True, None)
    assert "is empty" in result.info["reset_error"]
