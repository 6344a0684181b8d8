"""The type of the actions that Gymnasium environments get."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import envweave as ew


class Asks(gym.Env[Any, Any]):
    """Asks its space about each action, and shows its type."""

    observation_space = spaces.Text(20)

    def __init__(self, space: spaces.Space[Any] | None = None) -> None:
        self.action_space = space or spaces.Discrete(3, start=-1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return "", {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return f"{type(action).__name__} {action}", 1.0, False, False, {}


class Trusts(Asks):
    """Does not ask."""

    def step(self, action: Any) -> Any:
        return f"{type(action).__name__} {action}", 1.0, False, False, {}


def shown(env: Any, action: Any, **options: Any) -> str:
    with ew.make(env, **options) as made:
        made.reset()
        return str(made.step(action).observation)


@pytest.mark.parametrize("action", [-1, 1, np.int32(1)])
@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: gym.wrappers.TimeLimit(env, 5)])
def test_an_environment_that_asks_its_space_gets_numpy_ints(action, wrap):
    assert shown(wrap(Asks()), action) == f"int64 {action}"


def test_an_environment_that_does_not_ask_gets_ints():
    assert shown(Trusts(), 1) == "int 1"


@pytest.mark.parametrize("space", [spaces.MultiBinary(2), spaces.Box(-1, 1, (2,))], ids=repr)
def test_actions_of_other_spaces_are_passed_on(space):
    assert shown(Asks(space), space.sample()).startswith("ndarray")


@pytest.mark.parametrize("options", [{}, {"backend": "process", "workers": 1}, {"mode": "threads"}])
def test_the_type_is_the_same_in_every_vector(options):
    with ew.make_vector(Asks, num_envs=2, **options) as venv:
        venv.reset()

        batch = venv.step(np.array([0, 1]))

    assert [row.observation for row in batch] == ["int64 0", "int64 1"]
