"""Code that reads a batch need not ask whether it came from a reset or from a step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import envweave as ew
from envweave.examples import CounterEnv

MODES = ["serial", "threads", "async"]


def batches(mode: str) -> tuple[ew.ResetBatch, ew.StepBatch, ew.ResetBatch]:
    """Return a reset of all, a step in which environment 1 ends, and a reset of 2 alone."""
    with ew.make_vector(CounterEnv, num_envs=3, mode=mode) as venv:
        return venv.reset(seed=5), venv.step(np.array([1, 3, 2])), venv.reset(ids=[2], seed=40)


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_has_the_columns_of_a_step(mode: str) -> None:
    batch, _, _ = batches(mode)

    assert len(batch) == 3
    assert batch.ids.tolist() == [0, 1, 2]
    assert batch.began.tolist() == [True, True, True]
    assert batch.current["value"].tolist() == batch.successor["value"].tolist() == [0, 0, 0]
    assert np.isnan(batch.reward).all()
    assert batch.step_index.tolist() == [0, 0, 0]
    for nowhere in (batch.terminated, batch.truncated, batch.done, batch.needs_reset):
        assert nowhere.tolist() == [False, False, False]
    for everywhere in (batch.valid, batch.bootstrap):
        assert everywhere.tolist() == [True, True, True]


def test_every_column_of_a_step_is_one_of_a_reset() -> None:
    reset, step, _ = batches("serial")
    columns = [name for name in dir(step) if not name.startswith("_") and name != "idle"]

    lengths = {
        (name, len(one["value"]) if isinstance(one, dict) else len(one))
        for name in columns
        if name not in ("observation", "obs")
        for one in (getattr(reset, name), getattr(step, name))
    }

    assert {length for _, length in lengths} == {3}


@pytest.mark.parametrize("mode", MODES)
def test_an_environment_left_out_of_a_reset_shows_its_status(mode: str) -> None:
    _, step, batch = batches(mode)

    assert batch.began.tolist() == [False, False, True]
    assert batch.current["value"].tolist() == [1, 3, 0]
    assert batch.step_index.tolist() == [1, 1, 0]
    assert batch.needs_reset.tolist() == [False, True, False]
    assert batch.infos == [{}, {}, {"seed": 42}]
    assert batch.episode_id[:2] == step.episode_id[:2]
    assert [len(requests) for requests in batch.requests] == [0, 0, 1]


@pytest.mark.parametrize("mode", MODES)
def test_rows_and_columns_of_a_reset_agree(mode: str) -> None:
    for batch in batches(mode):
        rows = list(batch)

        assert len(rows) == len(batch)
        assert [row.observation.value for row in rows] == batch.successor["value"].tolist()
        assert [row.step_index for row in rows] == batch.step_index.tolist()
        assert [row.episode_id for row in rows] == batch.episode_id
        assert [row.valid for row in rows] == batch.valid.tolist()
        assert [row.done for row in rows] == batch.done.tolist()
        assert [row.info for row in rows] == batch.infos
        assert [row.requests for row in rows] == batch.requests
        assert [math.nan if r.reward is None else r.reward for r in rows] == pytest.approx(
            batch.reward.tolist(), nan_ok=True
        )


def test_the_row_of_an_environment_left_out_belongs_to_the_caller() -> None:
    _, _, batch = batches("serial")

    batch[0].observation.value = 99

    assert batch[0].observation.value == 1
    assert isinstance(batch[0], ew.ResetResult)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_rows_are_indexed_by_integers_and_slices(which: int) -> None:
    batch: Any = batches("serial")[which]

    assert [row.episode_id for row in batch[1:]] == batch.episode_id[1:]
    assert batch[-1].episode_id == batch[np.int64(2)].episode_id == batch.episode_id[2]
    with pytest.raises(IndexError, match="Row 3 is out of range: the batch has 3 rows"):
        batch[3]
    with pytest.raises(IndexError, match="Row -4 is out of range"):
        batch[-4]
    for odd in ("a", True, 1.0, [0, 1], None, np.array([True, False, True])):
        with pytest.raises(TypeError, match="indexed by integers or slices"):
            batch[odd]


def test_changing_a_column_of_a_reset_changes_nothing_else() -> None:
    venv = ew.make_vector(CounterEnv, num_envs=2)
    batch = venv.reset(seed=0)
    batch.current["value"][:] = 99
    batch.ids[:] = 99

    again = venv.step(np.ones(2, int))

    assert batch.successor["value"].tolist() == [0, 0]
    assert again.successor["value"].tolist() == [1, 1]
