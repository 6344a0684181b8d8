"""`timeout_s` in worker processes: hanging code is ended, and the rest of its worker is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from environments.crashing import BLOCK, GO, HANG, AsyncCrashing, Crashing

import envweave as ew
from envweave.errors import ResetFailedError
from envweave.session import episode_seed

TIMEOUT_S = 0.4


def vector(kind: Any = Crashing, **options: Any) -> ew.VectorEnv:
    options = {"autoreset": True, "workers": 2, "timeout_s": TIMEOUT_S, **options}
    return ew.make_vector(kind, num_envs=4, backend="process", **options)


def ends(batch: Any) -> list[tuple[str, str] | None]:
    return [None if row.end is None else (row.end.reason, row.end.blame) for row in batch]


LATE, MATE = ("timeout", "environment"), ("lost", "infrastructure")


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize(("kind", "action"), [(Crashing, HANG), (AsyncCrashing, BLOCK)])
def test_a_hanging_row_times_out_and_the_other_rows_of_its_worker_are_lost(
    kind: Any, action: int
) -> None:
    with vector(kind) as venv:
        venv.reset(seed=5)

        batch = venv.step([GO, GO, GO, action])

        assert ends(batch) == [None, None, MATE, LATE]
        assert f"environment 3 took longer than timeout_s={TIMEOUT_S:g}" in batch[2].end.cause
        assert batch.successor[:, 1:].tolist() == [[5, 1], [6, 1], [7, 0], [8, 0]]
        nexts = [episode_seed(7, 1), episode_seed(8, 1)]
        assert batch.current[2:, 1].tolist() == nexts
        assert venv.step([GO] * 4).step_index.tolist() == [2, 2, 1, 1]


@pytest.mark.slow  # starts worker processes
def test_a_coroutine_past_its_deadline_affects_only_its_own_row() -> None:
    with vector(AsyncCrashing) as venv:
        venv.reset(seed=5)

        batch = venv.step([GO, GO, GO, HANG])

        assert ends(batch) == [None, None, None, LATE]
        assert venv.step([GO] * 4).step_index.tolist() == [2, 2, 2, 1]


@pytest.mark.slow  # starts worker processes
def test_a_reset_that_hangs_fails_and_the_next_one_is_of_another_episode(tmp_path: Path) -> None:
    with vector(at=str(tmp_path), autoreset=False) as venv:
        venv.reset(seed=5)
        (tmp_path / f"hang-reset-{episode_seed(5, 1)}").touch()

        with pytest.raises(ResetFailedError, match=r"Environment 0: .*environment 0 took longer"):
            venv.reset(ids=[0])

        assert venv.reset(ids=[0])[0].info["seed"] == episode_seed(5, 2)
        batch = venv.step([GO] * 4)
        assert ends(batch) == [
            None,
            MATE,
            None,
            None,
        ]  # 1 was lost with its worker


@pytest.mark.slow  # starts worker processes
def test_after_an_autoreset_that_hangs_the_next_reset_skips_that_episode(tmp_path: Path) -> None:
    with vector(at=str(tmp_path)) as venv:
        venv.reset(seed=5)
        (tmp_path / f"hang-reset-{episode_seed(5, 1)}").touch()

        batch = venv.step([1, GO, GO, GO])

        assert ends(batch) == [LATE, MATE, None, None]
        assert batch.needs_reset.tolist() == [True, True, False, False]
        assert "took longer than timeout_s" in batch[0].info["reset_error"]
        began = venv.reset(ids=[0, 1])
        assert began[0].info["seed"] == episode_seed(5, 2)
        assert began[1].info["seed"] == episode_seed(6, 1)
        assert venv.step([GO] * 4).valid.all()


@pytest.mark.slow  # starts worker processes
def test_with_a_deadline_the_callers_thread_steps_no_rows() -> None:
    with vector(workers=None) as venv:
        venv.reset(seed=5)

        batch = venv.step([HANG, GO, GO, GO])

        assert batch[0].end.reason == "timeout"


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize(("kind", "action"), [(Crashing, HANG), (AsyncCrashing, HANG)])
@pytest.mark.parametrize("autoreset", [True, False])
def test_one_environment_that_hangs_is_replaced(kind: Any, action: int, autoreset: bool) -> None:
    how = {"backend": "process", "timeout_s": TIMEOUT_S, "autoreset": autoreset}
    with ew.make(kind, **how) as env:
        env.reset(seed=5)

        result = env.step(action)

        assert (result.end.reason, result.end.blame) == LATE
        again = result.ready.initial_info if autoreset else env.reset().info
        assert again["seed"] == episode_seed(5, 1)
        assert env.step(GO).step_index == 1


@pytest.mark.slow  # starts worker processes
def test_a_single_environment_skips_the_episode_of_a_reset_that_hangs(tmp_path: Path) -> None:
    with ew.make(Crashing, backend="process", timeout_s=TIMEOUT_S, at=str(tmp_path)) as env:
        env.reset(seed=5)
        (tmp_path / f"hang-reset-{episode_seed(5, 1)}").touch()

        with pytest.raises(ResetFailedError, match="took longer"):
            env.reset()

        assert env.reset().info["seed"] == episode_seed(5, 2)
