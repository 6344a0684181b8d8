"""Whatever an environment does to its process, its caller survives and gets a report."""

from __future__ import annotations

from typing import Any

import pytest
from environments.crashing import (
    EXIT,
    GO,
    KILL,
    LAMBDA,
    LEAVE,
    LOCK,
    MEMORY,
    RAISE,
    SEGV,
    TRICKY,
    AsyncCrashing,
    Crashing,
    LeavesAThread,
    Unreadable,
    Unsendable,
)

import envweave as ew
from envweave.errors import ResetFailedError, StateFailedError
from envweave.session import episode_seed

GONE = [
    (KILL, "was killed by SIGKILL"),
    (SEGV, "was killed by SIGSEGV"),
    (EXIT, "ended with exit code 3"),
    (LEAVE, "ended with exit code 4"),
]
FAILED = [
    (RAISE, "OSError: no more"),
    (MEMORY, "MemoryError"),
    (TRICKY, "TrickyError: 1 and 2"),
    (LOCK, "cannot be sent to another process: cannot pickle '_thread.lock' object"),
]


COLOURS = [Crashing, pytest.param(AsyncCrashing, marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=COLOURS)
def venv(request: pytest.FixtureRequest) -> Any:
    how = {"backend": "process", "workers": 2, "autoreset": True}
    with ew.make_vector(request.param, num_envs=4, **how) as venv:
        yield venv


@pytest.fixture(scope="module", params=COLOURS)
def env(request: pytest.FixtureRequest) -> Any:
    with ew.make(request.param, backend="process", autoreset=True) as env:
        yield env


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize(("action", "cause"), GONE)
def test_a_process_that_ends_loses_the_rows_in_it(venv: Any, action: int, cause: str) -> None:
    venv.reset(seed=5)

    batch = venv.step([GO, GO, action, GO])

    assert [row.end and row.end.reason for row in batch] == [None, None, "lost", "lost"]
    assert batch[2].end.cause.endswith(cause)
    assert venv.step([GO] * 4).step_index.tolist() == [2, 2, 1, 1]


@pytest.mark.parametrize(("action", "cause"), FAILED)
def test_an_environment_that_fails_costs_its_own_row(venv: Any, action: int, cause: str) -> None:
    venv.reset(seed=5)

    batch = venv.step([GO, GO, action, GO])

    assert [row.end and row.end.reason for row in batch] == [None, None, "error", None]
    assert batch[2].end.blame == "environment"
    assert cause in batch[2].end.cause
    assert batch[2].ready.initial_info["seed"] == episode_seed(7, 1)
    assert venv.step([GO] * 4).step_index.tolist() == [2, 2, 1, 2]


def test_a_function_in_an_info_is_sent(venv: Any) -> None:
    venv.reset(seed=5)

    batch = venv.step([LAMBDA] * 4)

    assert [row.info["double"](4) for row in batch] == [8] * 4


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize(("action", "cause"), [*GONE, *FAILED])
def test_a_single_environment_continues_after_a_loss_or_a_failure(
    env: Any, action: int, cause: str
) -> None:
    env.reset(seed=5)
    env.step(GO)

    result = env.step(action)

    assert result.end.reason == ("lost" if (action, cause) in GONE else "error")
    assert cause in result.end.cause
    assert result.ready.initial_info["seed"] == episode_seed(5, 1)
    assert env.step(GO).step_index == 1


@pytest.mark.slow  # starts worker processes
def test_a_leftover_thread_does_not_delay_the_report_of_a_lost_worker() -> None:
    with ew.make_vector(LeavesAThread, num_envs=2, backend="process", workers=1) as venv:
        venv.reset()

        batch = venv.step([LEAVE, GO])

        assert batch[0].end.cause.endswith("ended with exit code 4")


@pytest.mark.slow  # starts worker processes
def test_a_reset_or_state_that_cannot_be_pickled_fails_with_a_message() -> None:
    with ew.make_vector(Unsendable, num_envs=2, backend="process", workers=1) as venv:
        with pytest.raises(StateFailedError, match="cannot be sent to another process"):
            venv.state()

        with pytest.raises(ResetFailedError, match=r"Environment 0: .*cannot pickle"):
            venv.reset()

    with ew.make(Unsendable, backend="process") as env:
        with pytest.raises(StateFailedError, match="cannot be sent to another process"):
            env.state()

        with pytest.raises(ResetFailedError, match="cannot pickle"):
            env.reset()


@pytest.mark.slow  # starts worker processes
def test_a_reply_that_cannot_be_unpickled_loses_its_worker() -> None:
    how: Any = {"backend": "process", "autoreset": True}
    with ew.make_vector(Unreadable, num_envs=2, workers=2, **how) as venv:
        venv.reset()

        batch = venv.step([RAISE, GO])

        assert [row.end and row.end.reason for row in batch] == ["lost", None]
        assert "its reply cannot be read: TypeError" in batch[0].end.cause
        assert venv.step([GO, GO]).valid.all()

    with ew.make(Unreadable, **how) as env:
        env.reset()

        result = env.step(RAISE)

        assert "its reply cannot be read: TypeError" in result.end.cause
        assert env.step(GO).valid
