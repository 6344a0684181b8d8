"""`make_vector("http://…")`: many sessions over one connection, stepped by one frame."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from environments.served import Tally
from servers import served, wait_for

import envweave as ew
from envweave.errors import (
    ActionError,
    CapacityError,
    ClosedError,
    ConnectionLostError,
    OptionError,
    SeedError,
)
from envweave.examples import CounterEnv
from envweave.testing import ScriptedEnvironment


@pytest.fixture(scope="module")
def url():
    with served(CounterEnv) as where:
        yield where


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_a_remote_vector_equals_an_in_process_vector(url: str, encoding: str) -> None:
    actions = np.array([1, 2, 3, 1, 1])
    with (
        ew.make_vector(url, num_envs=5, autoreset=True, encoding=encoding) as far,
        ew.make_vector(CounterEnv, num_envs=5, autoreset=True) as near,
    ):
        pairs = [(far.reset(seed=3), near.reset(seed=3))]
        pairs += [(far.step(actions), near.step(actions)) for _ in range(5)]

        for one, other in pairs:
            np.testing.assert_equal(one.current, other.current)
            np.testing.assert_equal(one.successor, other.successor)
            np.testing.assert_equal(one.reward, other.reward)
            assert one.done.tolist() == other.done.tolist()
            assert one.step_index.tolist() == other.step_index.tolist()
            assert one.infos == other.infos
            assert [len(row) for row in one.requests] == [len(row) for row in other.requests]
        assert [state.step_count for state in far.state()] == [2, 1, 0, 2, 2]


def test_one_refused_action_means_that_no_row_is_stepped(url: str) -> None:
    with ew.make_vector(url, num_envs=3) as venv:
        venv.reset(seed=0)

        with pytest.raises(ActionError, match=r"actions\[1\]\.delta: 'x' is not an int"):
            venv.step([{"delta": 1}, {"delta": "x"}, {"delta": 1}])

        assert venv.step(np.ones(3, int)).step_index.tolist() == [1, 1, 1]


class Seedless(ew.Environment):
    def reset(self) -> Any:
        return {"value": 0}, {}

    def step(self, action: int) -> Any:
        return {"value": action}, 1.0, False, False, {}


def test_a_seed_that_one_row_does_not_support_is_refused_before_any_reset() -> None:
    with served(Seedless) as url, ew.make_vector(url, num_envs=2) as venv:
        with pytest.raises(SeedError, match="Environment 0: seed=5 cannot be honored"):
            venv.reset(seed=5)

        assert venv.reset().current["value"].tolist() == [0, 0]


def test_tasks_and_options_are_sent() -> None:
    with served(ScriptedEnvironment) as url, ew.make_vector(url, num_envs=2) as venv:
        batch = venv.reset(task=["first", "second"], options={"text": "hi"})

        assert batch.task_id == ["first", "second"]
        assert batch.current["text"] == ["hi", "hi"]
        assert [task.id for task in venv.tasks.split("train")] == ["first", "second"]


@dataclass
class Page(ew.Observation):
    text: str
    picture: np.ndarray


class Large(ew.Environment):
    """Shows 1 MiB, and takes as much."""

    def reset(self) -> Page:
        return Page("", np.zeros((256, 1024), np.float32))

    def step(self, action: str) -> Page:
        return Page(action[:3], np.full((256, 1024), len(action), np.float32), reward=1.0)


def test_frames_stay_within_the_size_limit_of_a_server() -> None:
    with (
        served(Large, max_message_bytes=6 * 2**20) as url,
        ew.make_vector(url, num_envs=10) as venv,
    ):
        venv.reset()

        batch = venv.step([f"{i:03}" + "x" * 2**20 for i in range(10)])

    assert batch.current["text"] == [f"{i:03}" for i in range(10)]
    assert batch.current["picture"][:, 0, 0].tolist() == [2**20 + 3] * 10


def test_more_environments_than_the_server_allows_are_refused_and_none_stays_open() -> None:
    with served(Tally, max_sessions=3, queue_size=0) as url:
        with pytest.raises(CapacityError, match=r"Environment 3 of 4: .*3 of 3 sessions"):
            ew.make_vector(url, num_envs=4)

        with ew.make_vector(url, num_envs=3) as venv:
            assert venv.reset(seed=0).current["at"].tolist() == [0, 0, 0]


def test_close_frees_every_session_and_may_be_called_twice() -> None:
    with served(Tally) as url:
        venv = ew.make_vector(url, num_envs=8)
        venv.reset(seed=0)
        held = Tally.open

        venv.close()
        venv.close()

        wait_for(lambda: Tally.open <= held - 8)
        with pytest.raises(ClosedError):
            venv.reset()


def test_a_dropped_vector_warns_and_frees_its_sessions() -> None:
    with served(Tally) as url:
        vectors = [ew.make_vector(url, num_envs=2)]
        held = Tally.open

        with pytest.warns(ResourceWarning, match="vector of 2 environments at a server"):
            vectors.clear()

        wait_for(lambda: Tally.open <= held - 2)


def test_a_unix_socket_is_an_address_too(tmp_path: Path) -> None:
    with served(CounterEnv, uds=tmp_path / "s") as url, ew.make_vector(url, num_envs=2) as venv:
        venv.reset(seed=0)

        assert venv.step(np.ones(2, int)).reward.tolist() == [1.0, 1.0]


@pytest.mark.slow  # starts the command line anew
def test_a_server_is_started_where_none_runs() -> None:
    with ew.make_vector("counter-v0", num_envs=3, backend="http", done_at=2) as venv:
        venv.reset(seed=0)
        venv.step(np.ones(3, int))

        assert venv.step(np.ones(3, int)).done.tolist() == [True] * 3


def test_a_missing_server_is_reported() -> None:
    with pytest.raises(ConnectionLostError, match="envweave serve"):
        ew.make_vector("http://127.0.0.1:9", num_envs=2)


def test_a_mode_of_this_process_is_refused(url: str) -> None:
    with pytest.raises(OptionError, match="mode='serial'"):
        ew.make_vector(url, num_envs=2, mode="serial")
