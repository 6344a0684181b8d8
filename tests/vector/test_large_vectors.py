"""Vectors of many environments: what a step keeps, and that rows do not mix."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from comparison import same

import envweave as ew

pytestmark = pytest.mark.slow  # makes thousands of environments

COUNT = 600
ROWS = (0, 255, 256, 300, 511, 512, COUNT - 1)


class Mixed(ew.Environment):
    """Ends, infos, logs, failures and odd rewards, at times that its seed decides."""

    def reset(self, *, seed: int | None = None) -> Any:
        self.at = seed or 0
        self.buffer = np.full(3, self.at, np.float32)
        return self.buffer, {"seed": seed}

    def step(self, action: int) -> Any:
        self.at += 1
        self.buffer += action
        info = {"at": self.at} if self.at % 5 == 0 else {}
        reward: Any = None if self.at % 13 == 0 else self.at / 2
        if self.at % 17 == 0:
            self.emit(ew.LogEvent(f"at {self.at}"))
        if self.at % 19 == 0:
            raise ValueError("not today")
        if self.at % 23 == 0:
            return self.buffer, 1.0
        truncated: Any = np.bool_(self.at % 7 == 0) if self.at % 29 == 0 else self.at % 7 == 0
        return self.buffer, reward, self.at % 11 == 0, truncated, info


@dataclass
class Count(ew.Observation):
    at: int = 0


class Maker(ew.Environment):
    """Returns a new dataclass at each step, and keeps none."""

    made: list[int]

    def reset(self) -> Count:
        return Count()

    def step(self, action: int) -> Count:
        one = Count(reward=1.0)
        self.made.append(id(one))
        return one


class Plain(ew.Environment):
    """Returns tuples."""

    def __init__(self) -> None:
        self.buffer = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None) -> Any:
        return self.buffer, {}

    def step(self, action: int) -> Any:
        return self.buffer, 1.0, False, False, {}


class Telling(Plain):
    """Has an info at each step."""

    def step(self, action: int) -> Any:
        return self.buffer, 1.0, False, False, {"action": action}


def test_the_rows_of_a_large_vector_are_those_of_single_environments() -> None:
    singles = {i: ew.make(Mixed, autoreset=True) for i in ROWS}
    with ew.make_vector(Mixed, num_envs=COUNT, autoreset=True) as venv:
        venv.reset(seed=0)
        for i, env in singles.items():
            env.reset(seed=i)
        for at in range(40):
            batch = venv.step([at % 3] * COUNT)

            for i, env in singles.items():
                expected = env.step(at % 3)
                row = batch[i]
                assert same(list(row), list(expected)), (at, i)
                assert (row.end, row.step_index) == (expected.end, expected.step_index), (at, i)
                assert same(row.needs, expected.needs), (at, i)
                assert same(row.events, expected.events), (at, i)
                assert same(batch.successor[i], expected.observation), (at, i)
                assert same(batch.current[i], expected.current), (at, i)
                assert same(batch.infos[i], expected.info), (at, i)
    for env in singles.values():
        env.close()


def test_dataclasses_of_a_large_vector_are_not_copied() -> None:
    made: list[int] = []

    class Own(Maker):
        pass

    Own.made = made
    with ew.make_vector(Own, num_envs=COUNT) as venv:
        venv.reset()
        batch = venv.step([0] * COUNT)
        shown = [id(row.observation) for row in batch]

    assert shown == made


@pytest.fixture
def collector() -> Iterator[None]:
    """The usual settings of the garbage collector, and no garbage."""
    threshold = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    gc.collect()
    yield
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("collector")
def test_the_steps_of_a_large_vector_give_the_garbage_collector_little_to_do() -> None:
    count, steps = 2048, 20
    with ew.make_vector(Plain, num_envs=count) as venv:
        venv.reset()
        gc.collect()
        before = gc.get_stats()
        for _ in range(steps):
            batch = venv.step([0] * count)
            assert batch.reward.sum() == count
        after = gc.get_stats()

    runs = [new["collections"] - old["collections"] for new, old in zip(after, before, strict=True)]
    assert runs[0] <= 5
    assert runs[1:] == [0, 0]


@pytest.mark.usefixtures("collector")
def test_infos_of_plain_values_do_not_outlive_their_batch_in_the_garbage_collector() -> None:
    count = 2048
    with ew.make_vector(Telling, num_envs=count) as venv:
        venv.reset()
        for _ in range(3):
            batch = venv.step([0] * count)
        tracked = sum(map(gc.is_tracked, batch.infos))

    assert tracked == 0
