"""Results do not change when the author writes to them later."""

from __future__ import annotations

import threading
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

import envweave as ew
from envweave.errors import ResetFailedError


@dataclass
class Board(ew.Observation):
    cells: list[int]


class WritesToOneList(ew.Environment):
    """A fresh observation each time, around one list that is written in place."""

    def reset(self) -> Board:
        self.cells = [0]
        return Board(self.cells)

    def step(self, action: int) -> Board:
        self.cells[0] += 1
        if self.cells[0] == 4:
            raise ValueError("no further")
        return Board(self.cells, reward=1.0)


class TwoBuffers:
    """Writes to two arrays in turn, and shows views of them."""

    def reset(self) -> Any:
        self.buffers, self.at = [np.zeros(2), np.zeros(2)], 0
        return self.buffers[0][:], {"action_mask": self.buffers[1], "n": self.buffers}

    def step(self, action: int) -> Any:
        self.at += 1
        buffer = self.buffers[self.at % 2]
        buffer[:] = self.at
        return buffer[:], 1.0, False, False, {"action_mask": buffer, "at": self.at}


@pytest.mark.parametrize("vector", [False, True])
def test_a_list_inside_fresh_observations_is_copied(vector: bool) -> None:
    if vector:
        venv = ew.make_vector(WritesToOneList, num_envs=1)
        batches = [venv.reset(), *[venv.step([0]) for _ in range(3)]]
        shown = [batch.current["cells"][0] for batch in batches]
        failed = venv.step([0])[0]
    else:
        env = ew.make(WritesToOneList())
        results = [env.reset(), *[env.step(0) for _ in range(3)]]
        shown = [result.observation.cells for result in results]
        failed = env.step(0)

    assert shown == [[0], [1], [2], [3]]
    assert failed.observation.cells == [3]  # the last one that was shown


def test_alternating_buffers_and_masks_are_copied() -> None:
    env = ew.make(TwoBuffers())
    results = [env.reset(), *[env.step(0) for _ in range(3)]]

    assert [r.observation.tolist() for r in results] == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert [r.needs[0].action_mask.tolist() for r in results] == [[0, 0], [1, 1], [2, 2], [3, 3]]


def test_writing_into_an_observation_does_not_affect_the_environment() -> None:
    class ShowsItsOwnState:
        def reset(self) -> Any:
            self.at = np.zeros(1)
            return self.at, {}

        def step(self, action: int) -> Any:
            self.at = self.at + 1  # a new array each time
            return self.at, 1.0, False, False, {}

    env = ew.make(ShowsItsOwnState())
    env.reset().observation[:] = 99

    env.step(0).observation[:] = 99
    second = env.step(0)

    assert second.observation.tolist() == [2]


def test_an_info_that_the_author_writes_on_is_copied() -> None:
    class OneInfo:
        def reset(self) -> Any:
            self.info = {"n": 0}
            return 0, self.info

        def step(self, action: int) -> Any:
            self.info["n"] += 1
            return 0, 0.0, False, False, self.info

    env = ew.make(OneInfo())
    infos = [env.reset().info, env.step(0).info, env.step(0).info]

    assert [info["n"] for info in infos] == [0, 1, 2]


@dataclass
class Curious(ew.Observation):
    lock: ClassVar[Any] = threading.Lock()
    start: InitVar[int] = 0
    doubled: int = field(default=0, init=False)

    def __post_init__(self, start: int) -> None:
        self.doubled = 2 * start


@dataclass
class CuriousState(ew.State):
    counted: int = field(default=0, init=False)


class CuriousEnv(ew.Environment):
    def reset(self) -> Curious:
        return Curious(start=2)

    def step(self, action: int) -> Curious:
        return Curious(start=action)

    @property
    def state(self) -> ew.State:
        state = CuriousState()
        state.counted = 7
        return state


def test_class_variables_and_fields_that_no_constructor_takes_survive() -> None:
    env = ew.make(CuriousEnv())

    doubled = [env.reset().observation.doubled, env.step(3).observation.doubled]
    state = env.state()

    assert doubled == [4, 6]
    assert (state.counted, state.step_count) == (7, 1)


def test_an_observation_that_contains_itself_is_refused() -> None:
    class Snake:
        def reset(self) -> Any:
            loop: list[Any] = []
            loop.append(loop)
            return loop, {}

        def step(self, action: int) -> Any:
            return [], 0.0, False, False, {}

    with pytest.raises(ResetFailedError, match="holds itself"):
        ew.make(Snake()).reset()
