"""The order in which transforms are applied, however they are put together."""

from __future__ import annotations

import pytest

import envweave as ew
from envweave.errors import OptionError
from envweave.examples import CounterEnv


class Note(ew.Transform):
    """Writes down that it was applied."""

    def __init__(self, name: str, *, last: bool = False) -> None:
        self.name, self.last = name, last

    def __call__(self, observation: ew.Observation) -> ew.Observation:
        observation.metadata.setdefault("applied", []).append(self.name)
        return observation


def applied(transform: ew.Transform) -> list[str]:
    names: list[str] = transform(ew.Observation()).metadata["applied"]
    return names


def test_last_transforms_come_after_all_others_which_keep_their_order() -> None:
    every = ew.CompositeTransform(
        [Note("z", last=True), Note("a"), Note("y", last=True), Note("b")]
    )

    assert applied(every) == ["a", "b", "z", "y"]


def test_a_nested_composite_is_flattened() -> None:
    inner = ew.CompositeTransform([Note("z", last=True), Note("b")])
    every = ew.CompositeTransform([Note("a"), ew.CompositeTransform([inner]), Note("c")])

    assert applied(every) == ["a", "b", "c", "z"]


def test_transforms_may_be_nested_as_deep_as_one_likes() -> None:
    every = ew.CompositeTransform([Note("z", last=True), Note("a")])
    for _ in range(5_000):
        every = ew.CompositeTransform([every])

    assert applied(every) == ["a", "z"]


def test_the_environments_own_last_word_comes_after_the_callers_transform() -> None:
    environment = CounterEnv()
    environment.transform = ew.CompositeTransform([Note("own last", last=True), Note("own")])
    env = ew.make(environment, transform=Note("callers"))
    env.reset()

    result = env.step({"delta": 1})

    assert result.info["applied"] == ["own", "callers", "own last"]


def test_a_composite_does_not_change_with_its_input_list() -> None:
    given = [Note("a")]
    every = ew.CompositeTransform(given)

    given.append(Note("b"))

    assert applied(every) == ["a"]
    assert every.transforms == tuple(given[:1])


def test_a_composite_refuses_a_non_callable() -> None:
    with pytest.raises(OptionError, match="'bonus' cannot be called"):
        ew.CompositeTransform([Note("a"), "bonus"])  # type: ignore[list-item]


def test_parts_that_cancel_out_still_sum_to_the_reward() -> None:
    def shape(observation: ew.Observation) -> ew.Observation:
        for part, value in (("small", 0.1), ("large", 1e12), ("back", -1e12)):
            observation.add_reward(part, value)
        return observation

    env = ew.make(CounterEnv(), transform=shape)
    env.reset()

    result = env.step({"delta": 1})

    assert result.end is None
    assert result.reward == pytest.approx(1.1, abs=1e-3)
