"""Many environments behind one call."""

from __future__ import annotations

import math
import os
import threading
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest

import envweave as ew
from envweave.errors import (
    ActionError,
    ClosedError,
    OptionError,
    ResetFailedError,
    ResetNeededError,
    SeedError,
)
from envweave.examples import CounterAction, CounterEnv
from envweave.session import episode_seed
from envweave.testing import AsyncScriptedEnvironment, ScriptedEnvironment


def counters(num_envs: int = 3, **options: Any) -> ew.VectorEnv:
    return ew.make_vector(CounterEnv, num_envs=num_envs, **options)


def test_current_and_successor_differ_only_where_an_autoreset_happened() -> None:
    venv = counters(autoreset=True)
    venv.reset(seed=0)

    batch = venv.step(np.array([1, 2, 3]))

    assert batch.successor["value"].tolist() == [1, 2, 3]
    assert batch.current["value"].tolist() == [1, 2, 0]
    assert batch.terminated.tolist() == [False, False, True]
    assert batch.bootstrap.tolist() == [True, True, False]
    assert batch.needs_reset.tolist() == [False, False, False]


def test_environment_i_gets_seed_plus_i_and_later_seeds_derive_from_it() -> None:
    venv = counters(autoreset=True)

    first = venv.reset(seed=10)
    batch = venv.step([{"delta": 3}] * 3)

    assert [info["seed"] for info in first.infos] == [10, 11, 12]
    assert [row.ready.initial_info["seed"] for row in batch] == [
        episode_seed(10 + i, 1) for i in range(3)
    ]


def test_seeds_and_tasks_may_be_sequences() -> None:
    venv = ew.make_vector(ScriptedEnvironment, num_envs=2)

    batch = venv.reset(seed=[5, 5], task=["third", "first"])

    assert [info["seed"] for info in batch.infos] == [5, 5]
    assert batch.task_id == ["third", "first"]
    assert batch.current["noise"][0] == batch.current["noise"][1]
    with pytest.raises(SeedError, match="got 3 for 2"):
        venv.reset(seed=[1, 2, 3])


@pytest.mark.parametrize(
    "actions",
    [
        [CounterAction(1), CounterAction(2), CounterAction(3)],
        [{"delta": 1}, CounterAction(2), {"delta": 3}],
        {"delta": [1, 2, 3]},
        {"delta": np.array([1, 2, 3])},
        np.array([1, 2, 3]),
    ],
)
def test_actions_may_be_a_list_columns_or_one_array(actions: Any) -> None:
    venv = counters()
    venv.reset()

    batch = venv.step(actions)

    assert batch.reward.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ([{"delta": 1}] * 2, "got 2 for 3"),
        ([{"delta": 1}, {"dleta": 1}, {"delta": 1}], r"actions\[1\]\.dleta: unknown field"),
        (np.zeros(3), r"actions\[0\]\.delta: 0.0 is not an int"),
        ({"delta": [1, 2], "metadata": [{}, {}, {}]}, "differ in length"),
        ("abc", "must be a list"),
        (7, "must be a list"),
    ],
)
def test_if_one_action_is_refused_none_is_stepped(actions: Any, words: str) -> None:
    venv = counters()
    venv.reset()

    with pytest.raises(ActionError, match=words):
        venv.step(actions)

    assert venv.step(np.ones(3, int)).successor["value"].tolist() == [1, 1, 1]


def test_a_finished_environment_is_not_stepped_until_it_is_reset() -> None:
    venv = counters()
    venv.reset(seed=0)
    batch = venv.step(np.array([1, 3, 1]))
    assert batch.needs_reset.tolist() == [False, True, False]

    with pytest.raises(ResetNeededError, match=r"environments \[1\]"):
        venv.step(np.ones(3, int))
    again = venv.reset(ids=[1])

    assert again.began.tolist() == [False, True, False]
    assert again.current["value"].tolist() == [1, 0, 1]
    assert venv.step(np.ones(3, int)).step_index.tolist() == [2, 1, 2]


def test_the_first_reset_is_of_all() -> None:
    with pytest.raises(ResetNeededError, match="of all"):
        counters().reset(ids=[0])


@pytest.mark.parametrize("ids", [[0, 0], [3], [-1]])
def test_ids_out_of_range_are_refused(ids: list[int]) -> None:
    venv = counters()
    venv.reset()

    with pytest.raises(OptionError, match="from 0 to 2"):
        venv.reset(ids=ids)


def test_a_batch_has_no_observation_and_names_the_two_alternatives() -> None:
    venv = counters()
    batch = venv.reset()

    with pytest.raises(AttributeError, match="`current` to act on, and `successor` to learn from"):
        batch.observation


def test_a_row_is_a_step_result() -> None:
    venv = counters(autoreset=True)
    venv.reset(seed=0)

    row = venv.step(np.array([1, 2, 3]))[2]

    assert isinstance(row, ew.StepResult)
    assert [request.type for request in row.requests] == [
        "episode_end",
        "auto_reset_ready",
        "need_action",
    ]


class FailsInTheSecond(CounterEnv):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.number = FailsInTheSecond.made
        FailsInTheSecond.made += 1

    def step(self, action: CounterAction) -> Any:
        if self.number == 1:
            raise OSError("no more")
        return super().step(action)


def test_a_failure_affects_one_row_of_the_batch() -> None:
    FailsInTheSecond.made = 0
    venv = ew.make_vector(FailsInTheSecond, num_envs=3, autoreset=True)
    venv.reset(seed=0)

    batch = venv.step(np.ones(3, int))

    assert batch.valid.tolist() == [True, False, True]
    assert batch.bootstrap.tolist() == [True, False, True]
    assert [math.isnan(reward) for reward in batch.reward] == [False, True, False]
    assert batch[1].end.cause.startswith("OSError: no more")
    assert batch.successor["value"].tolist() == [1, 0, 1]
    assert venv.step(np.ones(3, int)).successor["value"].tolist() == [2, 1, 2]


class FailsToReset(CounterEnv):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.number = FailsToReset.made
        FailsToReset.made += 1
        self.resets = 0

    def reset(self, *, seed: int | None = None) -> Any:
        self.resets += 1
        if self.number == 1 and self.resets == 2:
            raise OSError("no more")
        return super().reset(seed=seed)


def test_a_failed_reset_names_its_environment_and_only_that_one_is_idle() -> None:
    FailsToReset.made = 0
    venv = ew.make_vector(FailsToReset, num_envs=3)
    venv.reset(seed=0)

    with pytest.raises(ResetFailedError, match=r"Environment 1: .*no more"):
        venv.reset(seed=0)
    with pytest.raises(ResetNeededError, match=r"environments \[1\]"):
        venv.step(np.ones(3, int))
    venv.reset(ids=[1])

    assert venv.step(np.ones(3, int)).valid.all()


def test_a_reward_that_is_not_scored_yet_is_nan_and_valid() -> None:
    venv = ew.make_vector(ScriptedEnvironment, num_envs=1, script=[{}, {"reward": 2}])
    venv.reset()

    batch = venv.step([{}])

    assert math.isnan(batch.reward[0])
    assert batch.valid.all()


@dataclass
class Mixed(ew.Observation):
    image: Annotated[np.ndarray, ew.Bounds(0, 255, shape=(2, 2), dtype="uint8")]
    words: str
    hint: int | None = None


class Painter(ew.Environment):
    wrong = False

    def reset(self, *, seed: int | None = None) -> Mixed:
        return Mixed(np.zeros((2, 2), np.uint8), "blank")

    def step(self, action: int) -> Mixed:
        shape = (3, 3) if action == 9 else (2, 2)
        return Mixed(np.full(shape, action, np.uint8), f"all {action}", action or None)


def test_columns_are_arrays_where_the_shape_is_fixed_and_lists_elsewhere() -> None:
    venv = ew.make_vector(Painter, num_envs=2)
    venv.reset()

    shown = venv.step([0, 7]).current

    assert (shown["image"].dtype, shown["image"].shape) == (np.uint8, (2, 2, 2))
    assert shown["words"] == ["all 0", "all 7"]
    assert shown["hint"] == [None, 7]


def test_an_observation_that_no_longer_fits_fails_its_environment() -> None:
    venv = ew.make_vector(Painter, num_envs=2, autoreset=True)
    venv.reset()

    batch = venv.step([1, 9])

    assert batch.valid.tolist() == [True, False]
    assert "image: An observation is uint8(3, 3)" in batch[1].end.cause


def test_arrays_of_a_batch_may_be_written_to() -> None:
    venv = ew.make_vector(Painter, num_envs=2)
    venv.reset()
    first = venv.step([1, 1])
    first.current["image"][:] = 99

    second = venv.step([2, 2])

    assert second.current["image"].max() == 2
    assert first[0].observation.image.max() == 1


def test_a_vector_may_have_async_environments() -> None:
    with ew.make_vector(AsyncScriptedEnvironment, num_envs=3, autoreset=True) as venv:
        venv.reset(seed=0)

        batch = venv.step([{}] * 3)

    assert batch.reward.tolist() == [1.0, 1.0, 1.0]


def test_one_object_cannot_make_a_vector() -> None:
    with pytest.raises(OptionError, match="Pass its class"):
        ew.make_vector(CounterEnv(), num_envs=2)


@pytest.mark.parametrize("num_envs", [0, -1])
def test_a_vector_has_at_least_one_environment(num_envs: int) -> None:
    with pytest.raises(OptionError, match="integer >= 1"):
        counters(num_envs)


def test_after_close_everything_but_close_is_refused() -> None:
    venv = counters()
    venv.reset()
    venv.close()
    venv.close()

    for call in (venv.reset, venv.state, lambda: venv.step(np.ones(3, int))):
        with pytest.raises(ClosedError):
            call()


def test_a_vector_and_single_environments_play_the_same_episodes() -> None:
    venv = ew.make_vector(ScriptedEnvironment, num_envs=4, autoreset=True)
    singles = [ew.make(ScriptedEnvironment, autoreset=True) for _ in range(4)]
    batch = venv.reset(seed=3)
    rows = [env.reset(seed=3 + i) for i, env in enumerate(singles)]

    for _ in range(8):
        assert [r.observation for r in batch] == [r.observation for r in rows]
        assert [r.info for r in batch] == [r.info for r in rows]
        batch = venv.step([{}] * 4)
        rows = [env.step({}) for env in singles]


class Threads(ew.Environment):
    """Shows the name of the thread that steps it."""

    def reset(self) -> tuple[str, dict[str, object]]:
        return "", {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, object]]:
        return threading.current_thread().name, 0.0, False, False, {}


@pytest.mark.parametrize(
    ("how", "threads"),
    [
        ({"max_workers": 2}, 2),
        ({"max_workers": 9}, 4),
        ({"mode": "threads", "workers": 3}, 3),
        ({"mode": "threads"}, 4),
        ({"max_workers": 2, "workers": 2}, 2),
    ],
)
def test_max_workers_is_the_number_of_threads(how, threads) -> None:
    with ew.make_vector(Threads, num_envs=4, **how) as venv:
        venv.reset()
        names = set(venv.step([0] * 4).current)

    assert len(names) == threads
    assert threading.current_thread().name not in names


@pytest.mark.slow  # starts worker processes
def test_max_workers_is_the_number_of_worker_processes() -> None:
    class Processes(ew.Environment):
        def reset(self) -> tuple[int, dict[str, object]]:
            return os.getpid(), {}

        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, object]]:
            return os.getpid(), 0.0, False, False, {}

    with ew.make_vector(Processes, num_envs=4, backend="process", max_workers=2) as venv:
        assert len(set(venv.reset().current)) == 2


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"max_workers": 2, "workers": 3}, "workers=3 and max_workers=2 are two names"),
        ({"max_workers": 0}, "max_workers must be an integer >= 1"),
        ({"mode": "serial", "max_workers": 2}, "workers=2 needs processes or threads"),
        ({"workers": 2}, "workers=2 needs processes or threads"),
    ],
)
def test_invalid_numbers_of_workers_are_refused(how, words) -> None:
    with pytest.raises(OptionError, match=words):
        ew.make_vector(Threads, num_envs=4, **how)


def test_obs_of_a_batch_names_the_two_alternatives() -> None:
    with counters() as venv:
        for batch in (venv.reset(), venv.step(np.ones(3, int))):
            with pytest.raises(AttributeError, match="Use `current` to act on, and `successor`"):
                batch.obs
