"""Seeds begin streams, are passed on explicitly, and are refused rather than dropped."""

from __future__ import annotations

import numpy as np
import pytest
from environments.edge_cases import Seedless
from hypothesis import given
from hypothesis import strategies as st

import envweave as ew
from envweave.errors import OptionError, SeedError, TaskError
from envweave.examples import CounterEnv
from envweave.session import episode_seed
from envweave.testing import ScriptedEnvironment


def test_a_seed_for_an_environment_that_takes_none_is_refused() -> None:
    env = ew.make(Seedless())

    with pytest.raises(SeedError, match=r"Seedless.reset\(\) takes no seed"):
        env.reset(seed=7)

    assert "seed" not in env.reset().info


@pytest.mark.parametrize("seed", [-1, 1.5, "7", True, [1]])
def test_an_invalid_seed_is_refused(seed: object) -> None:
    with pytest.raises(SeedError, match="integer >= 0"):
        ew.make(CounterEnv()).reset(seed=seed)


def test_a_numpy_integer_is_a_seed() -> None:
    assert ew.make(CounterEnv()).reset(seed=np.int64(7)).info["seed"] == 7


def test_an_autoreset_and_a_reset_take_the_same_next_seed() -> None:
    by_hand = ew.make(CounterEnv(done_at=1))
    by_itself = ew.make(CounterEnv(done_at=1), autoreset=True)
    by_hand.reset(seed=7)
    by_itself.reset(seed=7)

    hand = by_hand.reset().info["seed"]
    itself = by_itself.step({"delta": 1}).ready.initial_info["seed"]

    assert hand == itself == episode_seed(7, 1)


def test_without_a_seed_two_environments_draw_different_ones() -> None:
    seeds = {ew.make(CounterEnv()).reset().info["seed"] for _ in range(8)}

    assert len(seeds) > 1


def test_a_refused_reset_leaves_the_running_episode_alone() -> None:
    env = ew.make(CounterEnv())
    env.reset(seed=1)
    env.step({"delta": 1})

    with pytest.raises(SeedError):
        env.reset(seed=-1)

    assert env.step({"delta": 1}).observation.value == 2


@given(st.integers(0, 2**63), st.lists(st.integers(0, 10_000), unique=True, min_size=2))
def test_seeds_of_a_stream_are_small_whole_and_the_same_each_time(base: int, ks: list[int]) -> None:
    seeds = [episode_seed(base, k) for k in ks]

    assert seeds == [episode_seed(base, k) for k in ks]
    assert all(0 <= s < 2**31 for s, k in zip(seeds, ks, strict=True) if k)


def test_tasks_are_drawn_from_the_first_split_by_seed() -> None:
    env = ew.make(ScriptedEnvironment())

    drawn = {env.reset(seed=seed).task_id for seed in range(20)}

    assert drawn == {"first", "second"}


def test_a_task_for_an_environment_without_tasks_is_refused() -> None:
    with pytest.raises(TaskError, match="takes no task"):
        ew.make(CounterEnv()).reset(task="first")


def test_options_for_an_environment_without_options_are_refused() -> None:
    with pytest.raises(OptionError, match="takes no options"):
        ew.make(CounterEnv()).reset(options={"hard": True})


def test_a_task_object_of_the_callers_own_is_taken() -> None:
    env = ew.make(ScriptedEnvironment())

    result = env.reset(task=ew.Task("mine", data={"a": 1}))

    assert (result.task_id, env.state().task) == ("mine", "mine")
