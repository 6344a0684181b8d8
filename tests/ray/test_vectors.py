"""Vectors on Ray: the same results as in this process, and what happens to a lost worker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from environments.crashing import GO, HANG, AsyncCrashing, Crashing, kill

import envweave as ew
from envweave.errors import ActionError, OptionError
from envweave.session import episode_seed


def vector(kind: Any = Crashing, num_envs: int = 4, **options: Any) -> ew.VectorEnv:
    return ew.make_vector(kind, num_envs=num_envs, backend="ray", workers=2, **options)


@pytest.mark.parametrize(
    "env_id", ["lineworld-v0", "counter-v0", "tictactoe-v0", "harvest-v0", "echo-v0"]
)
@pytest.mark.parametrize("workers", [1, 3])
def test_the_results_are_those_of_a_serial_vector(env_id: str, workers: int) -> None:
    options: dict[str, Any] = {"num_envs": 6, "autoreset": True}
    rng = [np.random.default_rng(5), np.random.default_rng(5)]
    with (
        ew.make_vector(env_id, **options) as here,
        ew.make_vector(env_id, backend="ray", workers=workers, **options) as there,
    ):
        results = []
        for venv, dice in zip((here, there), rng, strict=True):
            batch, seen = venv.reset(seed=11), []
            for _ in range(12):
                actions = [_action(venv, row, dice) for row in batch]
                batch = venv.step(actions)
                seen += [
                    (
                        repr(row.observation),
                        row.reward,
                        row.terminated,
                        row.truncated,
                        row.ready is None,
                    )
                    for row in batch
                ]
            results.append(seen)

    np.testing.assert_equal(results[1], results[0])


def _action(venv: ew.VectorEnv, row: Any, dice: np.random.Generator) -> Any:
    if venv.possible_agents is None:
        return venv.action_spec.sample(dice)
    sampled = venv.action_spec.sample(dice)
    return {need.agent_id: _legal(sampled[need.agent_id], need, dice) for need in row.needs}


def _legal(sampled: Any, need: Any, dice: np.random.Generator) -> Any:
    if need.action_mask is None:
        return sampled
    cell = int(dice.choice(np.flatnonzero(need.action_mask)))
    return type(sampled)(cell) if not isinstance(sampled, int) else cell


def test_rows_of_a_killed_worker_are_lost_and_continue_in_another() -> None:
    with vector(autoreset=True) as venv:
        venv.reset(seed=5)
        batch = venv.step([GO] * 4)
        killed = int(batch.current[2, 0])
        kill(killed)

        batch = venv.step([GO] * 4)

        assert batch.valid.tolist() == [True, True, False, False]
        np.testing.assert_array_equal(batch.reward, [1, 1, np.nan, np.nan])
        assert batch.current[2:, 1].tolist() == [episode_seed(7, 1), episode_seed(8, 1)]
        end = batch[2].end
        assert (end.reason, end.blame) == ("lost", "infrastructure")
        assert f"the Ray worker {killed} on node " in end.cause
        assert venv.step([GO] * 4).valid.all()


def test_a_worker_that_died_while_idle_is_replaced_by_a_reset() -> None:
    with vector() as venv:
        venv.reset(seed=5)
        kill(int(venv.step([GO] * 4).current[2, 0]))

        batch = venv.reset(seed=9)

        assert batch.current[:, 1].tolist() == [9, 10, 11, 12]
        assert venv.step([GO] * 4).valid.all()


@pytest.mark.parametrize("kind", [Crashing, AsyncCrashing])
def test_a_hanging_row_times_out(kind: Any) -> None:
    with vector(kind, autoreset=True, timeout_s=1.0) as venv:
        venv.reset(seed=5)

        batch = venv.step([GO, GO, GO, HANG])

        assert batch[3].end.reason == "timeout"
        assert batch[3].end.blame == "environment"
        assert batch.valid[:2].all()
        assert venv.step([GO] * 4).valid.all()


def test_the_first_ready_are_received_first() -> None:
    with vector(num_envs=4) as venv:
        venv.reset(seed=5)
        venv.send([GO, GO], ids=[0, 3])

        batch = venv.recv(min_ready=2)

        assert sorted(batch.ids.tolist()) == [0, 3]


def test_a_refused_action_changes_nothing() -> None:
    with ew.make_vector("lineworld-v0", num_envs=2, backend="ray") as venv:
        venv.reset(seed=0)
        with pytest.raises(ActionError, match=r"actions\[1\]"):
            venv.step([{"move": 1}, {"mvoe": 1}])

        assert venv.step([{"move": 1}, {"move": 1}]).step_index.tolist() == [1, 1]


class Large(ew.Environment):
    """Its observations are larger than what Ray sends in a message."""

    def reset(self, *, seed: int | None = None) -> Any:
        self._count = 0
        return np.zeros(50_000), {}

    def step(self, action: int) -> Any:
        self._count += action
        return np.full(50_000, float(self._count)), 1.0, False, False, {}


def test_large_observations_arrive_whole(caplog: pytest.LogCaptureFixture) -> None:
    with ew.make_vector(Large, num_envs=4, backend="ray", workers=2) as venv:
        venv.reset(seed=0)
        for _ in range(3):
            batch = venv.step([1, 2, 3, 4])

    assert batch.successor.shape == (4, 50_000)
    assert batch.successor[:, -1].tolist() == [3, 6, 9, 12]


def test_a_definition_that_nodes_cannot_import_is_sent_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Local(ew.Environment):
        def reset(self) -> Any:
            return 0, {}

        def step(self, action: int) -> Any:
            return action, 1.0, True, False, {}

    with ew.make(Local, backend="ray") as env:
        env.reset()
        assert env.step(4).observation == 4

    assert "is sent to them by value" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"placement": "near"}, "placement must be 'spread' or 'pack', got 'near'"),
        ({"resources": {"CPU": 0}}, "resources must be a dict with a positive number"),
        ({"runtime_env": 3}, "runtime_env must be a dict"),
        ({"envs_per_worker": 0}, "envs_per_worker must be 'auto' or an integer >= 1"),
        ({"envs_per_worker": 2, "workers": 2}, "both say how many workers"),
        ({"mode": "threads"}, "Leave it out, or leave out backend='ray'"),
        ({"address": "10.9.8.7:6379"}, "Ray allows one per process"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ew.make_vector("counter-v0", num_envs=2, backend="ray", **options)


def test_the_options_of_ray_are_refused_by_other_backends() -> None:
    with pytest.raises(OptionError, match="placement"):
        ew.make("counter-v0", placement="pack")


def test_an_environment_that_cannot_be_made_says_why() -> None:
    with pytest.raises(OptionError, match="Did you mean 'done_at'"):
        ew.make_vector("counter-v0", num_envs=2, backend="ray", dune_at=3)


class Walk(ew.Environment):
    """A random walk that can be copied."""

    copyable = True

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        self._rng = np.random.default_rng(seed)
        self._at = self._rng.random(2)
        return self._at, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._at = self._at + self._rng.random(2)
        return self._at, 1.0, False, False, {}


class PlayedWalk(Walk):
    copyable = False


@pytest.mark.parametrize("kind", [Walk, PlayedWalk])
def test_rows_are_forked_and_restored_in_other_workers(kind: Any) -> None:
    with vector(kind, forkable=True) as venv:
        venv.reset(seed=5)
        venv.step([GO] * 4)
        point = venv.snapshot(0)
        with venv.fork(3, 2) as children:
            taken = [children.step([GO] * 2).current.tolist() for _ in range(3)]
            expected = [venv.step([GO] * 4).current.tolist() for _ in range(3)]

        assert taken == [[rows[3]] * 2 for rows in expected]
        venv.restore(point, ids=[1, 3])
        again = [venv.step([GO] * 4).current.tolist() for _ in range(3)]
        assert [[rows[1], rows[3]] for rows in again] == [[rows[0]] * 2 for rows in expected]
