"""`flatten=True`: one flat array as observation, and one kind of action."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import pytest
from gymnasium import spaces

import envweave as ew
from envweave.errors import ActionError, OptionError, SpecError


@dataclass
class Steer(ew.Action):
    gear: Annotated[int, ew.Bounds(1, 3)]
    lights: bool
    wipers: Annotated[np.ndarray, ew.Bounds(shape=(2,), dtype="bool")]


@dataclass
class Pull(ew.Action):
    force: Annotated[float, ew.Bounds(-1, 1)]
    torque: Annotated[np.ndarray, ew.Bounds(0, 1, shape=(2, 2), dtype="float32")]


@dataclass
class Mixed(ew.Action):
    gear: Annotated[int, ew.Bounds(1, 3)]
    force: Annotated[float, ew.Bounds(-1, 1)]


@dataclass
class Gauges(ew.Observation):
    speed: Annotated[float, ew.Bounds(0, 9)]
    gear: Literal["low", "high"]
    tank: Annotated[np.ndarray, ew.Bounds(0, 1, shape=(2, 2), dtype="float32")]


def car(action_type, taken=None):
    class Car(ew.Environment):
        def reset(self) -> Gauges:
            return self.show()

        def step(self, action: action_type) -> Gauges:
            if taken is not None:
                taken.append(action)
            return self.show()

        def show(self) -> Gauges:
            return Gauges(2.5, "high", np.full((2, 2), 0.5, np.float32))

    return Car


def test_flatten_shows_one_box_with_numbers_as_they_are_and_choices_one_hot():
    env = ew.to_gymnasium(car(Steer), flatten=True)

    seen, _ = env.reset()

    assert env.observation_space.shape == (7,)
    assert isinstance(env.observation_space, spaces.Box)
    assert seen.tolist() == [0, 1, 2.5, 0.5, 0.5, 0.5, 0.5]  # gear, speed, tank, by name
    assert env.observation_space.contains(seen)
    env.close()


def test_flatten_numbers_the_choices_of_every_discrete_field_from_0():
    acted = []
    env = ew.to_gymnasium(car(Steer, acted), flatten=True)
    env.reset()

    env.step(np.array([2, 1, 0, 1]))

    assert env.action_space == spaces.MultiDiscrete([3, 2, 2, 2])
    assert (acted[0].gear, acted[0].lights, acted[0].wipers.tolist()) == (3, True, [False, True])
    with pytest.raises(ActionError, match=r"^action\[0\]: 3 is not between 0 and 2"):
        env.step(np.array([3, 1, 0, 1]))
    env.close()


def test_flatten_joins_real_fields_into_one_box():
    acted = []
    env = ew.to_gymnasium(car(Pull, acted), flatten=True)
    env.reset()

    env.step(np.array([-1, 0, 0.25, 0.5, 1], np.float32))

    assert env.action_space == spaces.Box(
        np.array([-1, 0, 0, 0, 0], np.float32), np.ones(5, np.float32)
    )
    assert (acted[0].force, acted[0].torque.tolist()) == (-1.0, [[0, 0.25], [0.5, 1]])
    with pytest.raises(ActionError, match=r"^action: .* is not in Box"):
        env.step(np.array([-2, 0, 0, 0, 0], np.float32))
    env.close()


def test_flatten_numbers_a_single_choice_from_0():
    acted = []

    class Dial(ew.Environment):
        def reset(self) -> Gauges:
            return Gauges(0.0, "low", np.zeros((2, 2), np.float32))

        def step(self, action: Annotated[int, ew.Bounds(5, 7)]) -> Gauges:
            acted.append(action)
            return self.reset()

    env = ew.to_gymnasium(Dial, flatten=True)
    env.reset()

    env.step(np.int64(2))

    assert env.action_space == spaces.Discrete(3)
    assert acted == [7]
    with pytest.raises(ActionError, match="action: 3 is not between 0 and 2"):
        env.step(3)
    env.close()


@dataclass
class Said(ew.Observation):
    said: str


class Talking(ew.Environment):
    def reset(self) -> Said:
        return Said("hello")

    def step(self, action: bool) -> Said:
        return Said("bye", done=True)


def test_flatten_names_the_part_without_a_flat_form():
    with pytest.raises(SpecError, match=r"observation\['said'\]: .* cannot be flattened"):
        ew.to_gymnasium(Talking, flatten=True)
    with pytest.raises(SpecError, match=r"^action: flatten=True.*'force'.*'gear'"):
        ew.to_gymnasium(car(Mixed), flatten=True)


@dataclass
class Press(ew.Action):
    """Has no fields."""


@dataclass
class Account(ew.Observation):
    balance: Annotated[int, ew.Bounds(-5, 10**12)]
    kind: Literal["a", "b"]


def test_a_whole_number_of_wide_bounds_is_one_number():
    class Bank(ew.Environment):
        def reset(self) -> Account:
            return Account(7, "b")

        def step(self, action: Steer) -> Account:
            return Account(10**12, "a")

    env = ew.to_gymnasium(Bank, flatten=True)

    assert env.observation_space.shape == (3,)
    assert env.reset()[0].tolist() == [7, 0, 1]
    seen = env.step(np.array([0, 0, 0, 0]))[0]
    assert seen.tolist() == [10**12, 1, 0]
    assert seen in env.observation_space


def test_a_single_whole_number_of_wide_bounds_is_one_number():
    class Clock(ew.Environment):
        def reset(self) -> Annotated[int, ew.Bounds(0, 10**15)]:
            return 10**15

        def step(self, action: Steer) -> Annotated[int, ew.Bounds(0, 10**15)]:
            return 0

    env = ew.to_gymnasium(Clock, flatten=True)

    assert env.reset()[0].tolist() == [10**15]


def test_an_action_without_fields_has_no_flat_form():
    with pytest.raises(SpecError, match="action has no fields"):
        ew.to_gymnasium(car(Press), flatten=True)


def test_flatten_is_true_or_false():
    with pytest.raises(OptionError, match="flatten must be True or False"):
        ew.to_gymnasium(car(Steer), flatten="no")
