"""A killed worker loses the episodes of its rows, is replaced, and the other rows go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from environments.crashing import END, GO, KILL, WAIT, AsyncCrashing, Crashing, kill

import envweave as ew
from envweave.errors import ResetFailedError, StateFailedError
from envweave.session import episode_seed


def vector(kind: Any = Crashing, num_envs: int = 4, **options: Any) -> ew.VectorEnv:
    return ew.make_vector(kind, num_envs=num_envs, backend="process", workers=2, **options)


def shown(batch: Any) -> list[list[int]]:
    """Return the seed and the step that each row shows."""
    return batch[:, 1:].tolist()


def numbers(episode_ids: Any) -> list[str]:
    return [one.partition("-")[2] for one in episode_ids]


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize("kind", [Crashing, AsyncCrashing])
def test_with_autoreset_the_rows_of_a_killed_worker_continue_in_another(kind: Any) -> None:
    with vector(kind, autoreset=True) as venv:
        first = venv.reset(seed=5)
        batch = venv.step([GO] * 4)
        killed = int(batch.current[2, 0])
        kill(killed)

        batch = venv.step([GO] * 4)

        assert batch.valid.tolist() == [True, True, False, False]
        np.testing.assert_array_equal(batch.reward, [1, 1, np.nan, np.nan])
        assert shown(batch.successor) == [[5, 2], [6, 2], [7, 1], [8, 1]]
        nexts = [[episode_seed(7, 1), 0], [episode_seed(8, 1), 0]]
        assert shown(batch.current) == [[5, 2], [6, 2], *nexts]
        end = ew.EpisodeEnd(
            "lost", "infrastructure", f"its worker process {killed} was killed by SIGKILL"
        )
        assert [row.end for row in batch] == [None, None, end, end]
        assert batch.bootstrap.tolist() == [True, True, False, False]
        assert batch.needs_reset.tolist() == [False] * 4
        assert batch.episode_id == first.episode_id
        batch = venv.step([GO] * 4)
        assert batch.valid.all()
        assert batch.step_index.tolist() == [3, 3, 1, 1]
        assert numbers(batch.episode_id) == ["0", "0", "1", "1"]
        assert batch.episode_id[2].partition("-")[0] == first.episode_id[2].partition("-")[0]


@pytest.mark.slow  # starts worker processes
def test_without_autoreset_a_reset_starts_another_worker() -> None:
    with vector() as venv:
        venv.reset(seed=5)
        kill(venv.step([GO] * 4).current[2, 0])

        batch = venv.step([GO] * 4)

        assert batch.valid.tolist() == [True, True, False, False]
        assert batch.needs_reset.tolist() == [False, False, True, True]
        began = venv.reset(ids=[2])
        assert began[2].info["seed"] == episode_seed(7, 1)
        venv.send([GO] * 3, ids=[0, 1, 2])
        assert sorted(shown(venv.drain().successor))[:2] == [[5, 3], [6, 3]]
        assert venv.reset(ids=[3])[3].info["seed"] == episode_seed(8, 1)
        assert venv.step([GO] * 4).step_index.tolist() == [4, 4, 2, 1]


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize("autoreset", [True, False])
def test_a_worker_killed_during_a_step_loses_that_step(
    trap: Callable[[], None], tmp_path: Path, autoreset: bool
) -> None:
    with vector(at=str(tmp_path), autoreset=autoreset) as venv:
        venv.reset(seed=5)
        trap()

        batch = venv.step([GO, GO, GO, WAIT])

        assert batch.valid.tolist() == [True, True, False, False]
        assert shown(batch.successor) == [[5, 1], [6, 1], [7, 0], [8, 0]]
        assert batch.step_index.tolist() == [1, 1, 1, 1]
        if not autoreset:
            venv.reset(ids=[2, 3])
        assert venv.step([GO] * 4).valid.all()


@pytest.mark.slow  # starts worker processes
def test_other_rows_continue_while_a_worker_is_replaced(
    trap: Callable[[], None], tmp_path: Path
) -> None:
    with vector(at=str(tmp_path), autoreset=True) as venv:
        batch = venv.reset(seed=5)
        (tmp_path / "hold-make").touch()
        kill(batch.current[0, 0])
        venv.send([GO] * 4)

        for _ in range(20):  # the replacement does not come before it is let go
            batch = venv.recv(min_ready=2)
            assert batch.ids.tolist() == [2, 3]
            venv.send([GO, GO], ids=[2, 3])
        trap()
        rest = venv.recv(min_ready=3)

        lost = dict(zip(rest.ids.tolist(), rest, strict=True))
        assert lost[0].end.reason == lost[1].end.reason == "lost"
        assert lost[0].ready.initial_info["seed"] == episode_seed(5, 1)
        if venv.in_flight:
            venv.drain()
        assert venv.step([GO] * 4).step_index.tolist()[:2] == [1, 1]


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize("autoreset", [True, False])
def test_a_worker_killed_during_a_reset_fails_only_that_reset(
    trap: Callable[[], None], tmp_path: Path, autoreset: bool
) -> None:
    with vector(at=str(tmp_path), autoreset=autoreset) as venv:
        venv.reset(seed=5)
        (tmp_path / "hold-reset").touch()
        trap()

        with pytest.raises(ResetFailedError, match=r"Environment \d: .*killed by SIGKILL"):
            venv.reset(seed=50)

        again = venv.reset(seed=60)
        assert [info["seed"] for info in again.infos] == [60, 61, 62, 63]
        assert venv.step([GO] * 4).step_index.tolist() == [1] * 4


@pytest.mark.slow  # starts worker processes
def test_a_reset_replaces_an_idle_worker_that_was_killed() -> None:
    with vector() as venv:
        batch = venv.reset(seed=5)
        kill(batch.current[0, 0])

        again = venv.reset()

        assert [info["seed"] for info in again.infos] == [episode_seed(5 + i, 1) for i in range(4)]
        assert venv.step([GO] * 4).valid.all()


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize("when", ["make", "reset"])
def test_a_replacement_that_is_killed_is_replaced_too(
    trap: Callable[[], None], tmp_path: Path, when: str
) -> None:
    with vector(at=str(tmp_path), autoreset=True) as venv:
        batch = venv.reset(seed=5)
        (tmp_path / f"hold-{when}").touch()
        trap()
        kill(batch.current[0, 0])

        batch = venv.step([GO] * 4)

        assert batch.valid.tolist() == [False, False, True, True]
        assert [one.initial_info["seed"] for one in (batch[0].ready, batch[1].ready)] == [
            episode_seed(5, 1),
            episode_seed(6, 1),
        ]
        assert venv.step([GO] * 4).valid.all()


@pytest.mark.slow  # starts worker processes
def test_a_second_kill_before_the_first_was_reported_skips_no_episode() -> None:
    with vector(num_envs=2, autoreset=True) as venv:
        batch = venv.reset(seed=5)
        kill(batch.current[0, 0])
        with pytest.raises(StateFailedError, match=r"Environments 0: .*SIGKILL"):
            venv.state()
        shard = venv._transport._pool.shards[0]  # whose new process nothing reports
        shard.await_respawn()
        kill(shard.worker.process.pid)
        with pytest.raises(StateFailedError, match=r"Environments 0: .*SIGKILL"):
            venv.state()

        batch = venv.step([GO] * 2)

        assert batch[0].end.reason == "lost"
        assert batch[0].ready.initial_info["seed"] == episode_seed(5, 1)
        assert numbers([batch[0].ready.episode_id]) == ["1"]
        assert [state.step_count for state in venv.state()] == [0, 1]


@pytest.mark.slow
def test_under_random_kills_every_episode_ends_exactly_once_with_the_usual_seeds() -> None:
    rng = np.random.default_rng(3)
    begun: dict[str, tuple[int, int]] = {}
    ended: list[str] = []
    with vector(num_envs=6, autoreset=True) as venv:
        first = venv.reset(seed=5)
        for i, one in enumerate(first.episode_id):
            begun[one] = (i, int(first.current[i, 1]))
        for _ in range(40):
            actions = rng.choice([GO, GO, END], 6)
            if rng.random() < 0.2:
                actions[rng.integers(6)] = KILL
            for i, row in enumerate(venv.step(actions.tolist())):
                if row.done:
                    ended.append(row.episode_id)
                if row.ready is not None:
                    begun[row.ready.episode_id] = (i, row.ready.initial_info["seed"])

    assert len(ended) == len(set(ended)) == len(begun) - 6
    for episode_id, (i, seed) in begun.items():
        assert seed == episode_seed(5 + i, int(episode_id.partition("-")[2]))
