"""What a vector refuses, it refuses before anything happens, and says what to do instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import envweave as ew
from envweave.errors import (
    ActionError,
    EnvWeaveError,
    OptionError,
    ResetFailedError,
    ResetNeededError,
    SeedError,
    TaskError,
)
from envweave.examples import CounterAction, CounterEnv, CounterObservation
from envweave.testing import ScriptedEnvironment

MODES = ["serial", "threads", "async"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("wanted", "kind", "words"),
    [
        ({"seed": [1, -1, 2]}, SeedError, r"Environment 1: seed must be an integer >= 0, got -1"),
        ({"seed": "abc"}, SeedError, r"got 'abc'"),
        ({"seed": b"abc"}, SeedError, r"got b'abc'"),
        ({"task": ["first", "first", "frist"]}, TaskError, r"Environment 2: .*'first'"),
        ({"task": ["first"]}, OptionError, r"task: got 1 for 3"),
        ({"ids": [1, 2], "seed": [4]}, SeedError, r"got 1 for 2"),
    ],
)
def test_a_refused_reset_changes_nothing(
    mode: str, wanted: Any, kind: type[EnvWeaveError], words: str
) -> None:
    with ew.make_vector(ScriptedEnvironment, num_envs=3, mode=mode) as venv:
        first = venv.reset(seed=0)
        venv.step([{}] * 3)

        with pytest.raises(kind, match=words):
            venv.reset(**wanted)

        batch = venv.step([{}] * 3)
        assert batch.step_index.tolist() == [2, 2, 2]
        assert batch.episode_id == first.episode_id


@pytest.mark.parametrize("mode", MODES)
def test_options_that_reset_does_not_take_are_refused_and_no_row_is_reset(mode: str) -> None:
    with ew.make_vector(CounterEnv, num_envs=2, mode=mode) as venv:
        venv.reset(seed=0)
        venv.step(np.ones(2, int))

        with pytest.raises(OptionError, match=r"Environment 0: options="):
            venv.reset(options={"x": 1})

        assert venv.step(np.ones(2, int)).step_index.tolist() == [2, 2]


def test_a_seed_may_be_a_0_dimensional_array() -> None:
    venv = ew.make_vector(CounterEnv, num_envs=2)

    assert [info["seed"] for info in venv.reset(seed=np.array(7)).infos] == [7, 8]


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (np.array([False, True, False]), r"np\.flatnonzero\(mask\)"),
        ([True, False, False], r"np\.flatnonzero\(mask\)"),
        ([0.0], r"got 0.0 in \[0.0\]"),
        (np.array([0.9]), "integers from 0 to 2"),
        (["1"], "got '1' in"),
        ("12", "a list or an array of environment indices"),
        (b"\x01", "a list or an array of environment indices"),
        (1, r"ids=\[1\]"),
        (np.int64(2), r"ids=\[2\]"),
        ({1, 2}, "a list or an array of environment indices"),
        (np.array([[0], [1]]), "integers"),
        ([None], "got None in"),
    ],
)
def test_ids_must_be_integers(ids: Any, words: str) -> None:
    venv = ew.make_vector(CounterEnv, num_envs=3)
    venv.reset(seed=0)
    venv.step(np.ones(3, int))

    with pytest.raises(OptionError, match=words):
        venv.reset(ids=ids)
    with pytest.raises(OptionError, match=words):
        venv.send([{"delta": 1}], ids=ids)

    assert venv.step(np.ones(3, int)).step_index.tolist() == [2, 2, 2]


@pytest.mark.parametrize("ids", [[2], (2,), range(2, 3), np.array([2], np.uint8), [np.int64(2)]])
def test_ids_may_be_any_sequence_of_numbers(ids: Any) -> None:
    venv = ew.make_vector(CounterEnv, num_envs=3)
    venv.reset()

    assert venv.reset(ids=ids).began.tolist() == [False, False, True]


def test_ids_may_be_empty() -> None:
    venv = ew.make_vector(CounterEnv, num_envs=2)
    venv.reset()

    assert venv.reset(ids=np.flatnonzero([False, False])).began.tolist() == [False, False]


@pytest.mark.parametrize(
    "column", [5, "abc", b"abc", None, {"a": 1}, {1, 2, 3}, np.array(5), CounterAction(1)]
)
def test_a_value_that_is_not_a_column_is_refused(column: Any) -> None:
    venv = ew.make_vector(CounterEnv, num_envs=3)
    venv.reset()

    with pytest.raises(ActionError, match=r"actions\.delta: .* one value per environment"):
        venv.step({"delta": column})

    assert venv.step({"delta": (1, 1, 1)}).step_index.tolist() == [1, 1, 1]


class EndsBadly(CounterEnv):
    """Its second reset fails."""

    resets = 0

    def reset(self, *, seed: int | None = None) -> CounterObservation:
        self.resets += 1
        if self.resets == 2:
            raise OSError("no more")
        return super().reset(seed=seed)


@pytest.mark.parametrize("mode", MODES)
def test_a_vector_with_autoreset_is_not_advised_to_use_autoreset(mode: str) -> None:
    with ew.make_vector(EndsBadly, num_envs=2, autoreset=True, mode=mode) as venv:
        venv.reset()
        assert venv.step(np.array([1, 3])).needs_reset.tolist() == [False, True]

        with pytest.raises(ResetNeededError) as refused:
            venv.step(np.ones(2, int))

    words = str(refused.value)
    assert "environments [1]. Environment 1: its autoreset failed: OSError: no more" in words
    assert words.endswith("Call reset(ids=[…]) first.")


@pytest.mark.parametrize("mode", MODES)
def test_the_refusal_of_an_idle_row_contains_the_reason(mode: str) -> None:
    with ew.make_vector(EndsBadly, num_envs=2, mode=mode) as venv:
        venv.reset()
        venv.step(np.array([1, 3]))

        with pytest.raises(ResetNeededError, match=r"1: its episode is over.*autoreset=True\."):
            venv.step(np.ones(2, int))
        with pytest.raises(ResetFailedError):
            venv.reset(ids=[1])
        with pytest.raises(ResetNeededError, match=r"1: .*reset\(\) failed: OSError: no more"):
            venv.send([{"delta": 1}], ids=[1])


@pytest.mark.parametrize("min_ready", ["2", 1.5, None, 0])
def test_min_ready_must_be_a_positive_integer(min_ready: Any) -> None:
    venv = ew.make_vector(CounterEnv, num_envs=2)
    venv.reset()
    venv.send(np.ones(2, int))

    with pytest.raises(OptionError, match="must be an integer of 1 or more"):
        venv.recv(min_ready)

    assert len(venv.drain()) == 2


@pytest.mark.parametrize(
    "wrong", [{"min_ready": True}, {"timeout_s": "a"}, {"timeout_s": -1}], ids=str
)
def test_recv_refuses_invalid_arguments(wrong):
    with ew.make_vector("counter-v0", num_envs=2) as venv:
        venv.reset()
        venv.send([{"delta": 1}] * 2)

        with pytest.raises(OptionError, match=f"^{next(iter(wrong))} must be"):
            venv.recv(**wrong)

        assert len(venv.drain()) == 2
