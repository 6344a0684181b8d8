"""`Action`, `Observation` and `State`, as authors subclass them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import envweave as ew


@dataclass
class Move(ew.Action):
    delta: int
    speed: float = 1.0


@dataclass
class Shown(ew.Observation):
    value: int


@dataclass
class Board(ew.State):
    cells: list[int]


def test_a_subclass_may_have_required_fields_which_come_first():
    assert Move(3) == Move(delta=3, speed=1.0, metadata={})
    assert Shown(1, reward=0.5, done=True).value == 1
    assert Board([1], step_count=2) == Board(cells=[1], episode_id=None, step_count=2)


def test_base_fields_are_given_by_keyword():
    with pytest.raises(TypeError):
        Move(3, 1.0, {})  # type: ignore[misc]


def test_metadata_is_not_shared():
    one, other = Move(1), Move(1)

    one.metadata["a"] = 1

    assert other.metadata == {}


def test_a_reward_is_added_under_its_name_and_the_parts_sum():
    observation = Shown(1, reward=1.0)

    observation.add_reward("safety", -0.5)
    observation.add_reward("speed", 0.25)
    observation.add_reward("safety", -0.5)

    assert observation.metadata["reward_parts"] == {"base": 1.0, "safety": -1.0, "speed": 0.25}
    assert observation.reward == sum(observation.metadata["reward_parts"].values()) == 0.25


def test_a_reward_that_was_not_scored_yet_has_no_base():
    observation = Shown(1)

    observation.add_reward("safety", -1)

    assert (observation.reward, observation.metadata["reward_parts"]) == (-1.0, {"safety": -1.0})


def test_parts_that_an_author_named_are_kept():
    observation = Shown(1, reward=3.0, metadata={"reward_parts": {"goal": 3.0}})

    observation.add_reward("goal", 1)

    assert (observation.reward, observation.metadata["reward_parts"]) == (4.0, {"goal": 4.0})


def test_a_reward_of_zero_is_a_base_as_well():
    observation = Shown(1, reward=0.0)

    observation.add_reward("bonus", 2)

    assert observation.metadata["reward_parts"] == {"base": 0.0, "bonus": 2.0}


def test_a_part_that_is_set_is_exactly_that_and_the_others_stay():
    observation = Shown(1, reward=1.0)

    observation.set_reward("task", 0.5)
    observation.add_reward("task", 3)
    observation.set_reward("task", 0.25)

    assert observation.metadata["reward_parts"] == {"base": 1.0, "task": 0.25}
    assert observation.reward == 1.25


def test_a_part_may_be_set_where_nothing_was_scored_yet():
    observation = Shown(1)

    observation.set_reward("task", 0)

    assert (observation.reward, observation.metadata["reward_parts"]) == (0.0, {"task": 0.0})


def test_an_authors_reward_is_a_part_that_can_be_set():
    observation = Shown(1, reward=5.0)

    observation.set_reward("base", 2)

    assert (observation.reward, observation.metadata["reward_parts"]) == (2.0, {"base": 2.0})


def test_parts_that_did_not_sum_before_one_was_set_still_do_not():
    observation = Shown(1, reward=5.0, metadata={"reward_parts": {"goal": 3.0}})

    observation.set_reward("task", 1)

    assert observation.metadata["reward_parts"] == {"goal": 3.0, "task": 1.0}
    assert observation.reward == 6.0
