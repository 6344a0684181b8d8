"""Arrays and infos of a batch belong to the caller, and are independent of the author's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import envweave as ew
from envweave.errors import OptionError


class Hoarder(ew.Environment):
    """Keeps something of what it returned, and writes to it at the next step."""

    def __init__(self, keeps: str) -> None:
        self.keeps = keeps
        self.buffer = np.zeros(2)
        self.kept: Any = None
        self.at = 0

    def reset(self) -> Any:
        self.at, self.kept = 0, None
        return self.buffer.copy(), {}

    def step(self, action: int) -> Any:
        self.at += 1
        if self.keeps == "info" and self.kept is not None:
            self.kept["at"] = -1
        if self.keeps == "outcome" and self.kept is not None:
            self.kept[0][:] = -1
            self.kept[4]["at"] = -1
        self.buffer[:] = self.at
        shown = self.buffer if self.keeps == "buffer" else self.buffer.copy()
        outcome = shown, 1.0, False, False, {"at": self.at}
        self.kept = outcome[4] if self.keeps == "info" else outcome
        return outcome


class Grid(ew.Environment):
    """Fills one array again and again; with `changes`, at step 3 in another form."""

    def __init__(self, changes: str = "") -> None:
        self.cells = np.zeros((2, 2), np.float32)
        self.changes = changes
        self.at = 0

    def reset(self) -> Any:
        self.at = 0
        return self.cells.copy(), {}

    def step(self, action: int) -> Any:
        self.at += 1
        self.cells[:] = self.at
        shown: Any = self.cells
        if self.at == 3 and self.changes:
            other = {"longer": (3, 2), "shorter": (1, 2), "flat": (4,)}
            shown = np.ones(other[self.changes], np.float32)
        return shown, 1.0, False, self.at >= 5, {}


@dataclass
class Count(ew.Observation):
    at: int = 0


class Recounter(ew.Environment):
    """Counts in one object, which it shows again and again, but not at a reset."""

    def __init__(self) -> None:
        self.mine = Count(reward=1.0)

    def reset(self) -> Count:
        self.mine.at = 0
        return Count()

    def step(self, action: int) -> Count:
        self.mine.at += 1
        return self.mine


def test_a_dataclass_that_its_author_returns_repeatedly_is_copied() -> None:
    with ew.make(Recounter()) as env, ew.make_vector(Recounter, num_envs=2) as venv:
        env.reset()
        venv.reset()
        results = [env.step(0) for _ in range(3)]
        batches = [venv.step([0, 0]) for _ in range(3)]

    assert [result.observation.at for result in results] == [1, 2, 3]
    assert [batch[1].observation.at for batch in batches] == [1, 2, 3]


def test_a_dataclass_without_other_references_is_not_copied() -> None:
    made: list[int] = []

    class Maker(ew.Environment):
        def reset(self) -> Count:
            return Count()

        def step(self, action: int) -> Count:
            one = Count(reward=1.0)
            made.append(id(one))
            return one

    with ew.make(Maker()) as env, ew.make_vector(Maker, num_envs=2) as venv:
        env.reset()
        venv.reset()
        result, batch = env.step(0), venv.step([0, 0])
        shown = [result, *batch]

    assert [id(one.observation) for one in shown] == made


@pytest.mark.parametrize("keeps", ["nothing", "buffer", "info", "outcome"])
def test_an_observation_that_its_author_writes_to_later_is_copied(keeps: str) -> None:
    with ew.make_vector(lambda: Hoarder(keeps), num_envs=3) as venv:
        venv.reset()
        batches = [venv.step([0, 0, 0]) for _ in range(3)]

        infos = [batch.infos for batch in batches]
        cells = [batch.current[:, 0].tolist() for batch in batches]

    assert infos == [[{"at": at}] * 3 for at in (1, 2, 3)]
    assert cells == [[at] * 3 for at in (1, 2, 3)]


@pytest.mark.parametrize("changes", ["longer", "shorter", "flat"])
def test_a_reused_array_is_checked_again_when_another_one_is_returned(changes: str) -> None:
    made = iter(["", changes, ""])
    with ew.make_vector(lambda: Grid(next(made)), num_envs=3) as venv:
        venv.reset()
        batches = [venv.step([0, 0, 0]) for _ in range(3)]

    assert batches[1].valid.tolist() == [True, True, True]
    assert batches[2].valid.tolist() == [True, False, True]
    assert batches[2].current[:, 0, 0].tolist() == [3.0, 2.0, 3.0]
    assert "fixed as float32(2, 2)" in batches[2][1].end.cause


@pytest.mark.parametrize("shape", [(1, 2), (3, 2)])
def test_an_array_resized_in_place_fails_only_its_row(shape: tuple[int, int]) -> None:
    grids: list[Grid] = []

    def make() -> Grid:
        grids.append(Grid())
        return grids[-1]

    with ew.make_vector(make, num_envs=2) as venv:
        venv.reset()
        venv.step([0, 0])
        grids[1].cells.resize(shape, refcheck=False)

        batch = venv.step([0, 0])

    assert batch.valid.tolist() == [True, False]
    assert batch.current[:, 0, 0].tolist() == [2.0, 1.0]


def test_the_arrays_of_a_batch_belong_to_the_caller() -> None:
    with ew.make_vector(Grid, num_envs=2) as venv:
        venv.reset()
        first = venv.step([0, 0])
        first.current[:] = first.successor[:] = 99
        second = venv.step([0, 0])

    assert second.current[:, 0, 0].tolist() == [2.0, 2.0]
    assert first[0].observation[0, 0] == 1.0


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize("mode", ["serial", "threads", "async"])
def test_without_copies_batches_are_equal_and_read_only(mode: str) -> None:
    with (
        ew.make_vector(Grid, num_envs=2, mode=mode, autoreset=True) as copying,
        ew.make_vector(Grid, num_envs=2, mode=mode, autoreset=True, copy=False) as lending,
    ):
        own: Any = copying.reset()
        lent: Any = lending.reset()
        for _ in range(7):
            np.testing.assert_array_equal(own.current, lent.current)
            np.testing.assert_array_equal(own.successor, lent.successor)
            assert own.current.flags.writeable
            assert own.successor.flags.writeable
            assert not lent.current.flags.writeable
            assert not lent.successor.flags.writeable
            own, lent = copying.step([0, 0]), lending.step([0, 0])


def test_without_copies_nothing_is_copied_where_no_episode_ended() -> None:
    with ew.make_vector(Grid, num_envs=2, copy=False) as venv:
        venv.reset()
        batch = venv.step([0, 0])

    assert np.shares_memory(batch.current, batch.successor)


def test_copy_must_be_a_bool() -> None:
    with pytest.raises(OptionError, match="copy must be True or False, got 1"):
        ew.make_vector(Grid, num_envs=2, copy=1)  # type: ignore[arg-type]
