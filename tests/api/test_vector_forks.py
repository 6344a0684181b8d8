"""Rows of a vector are forked and restored as single environments are, wherever they run."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from environments.forking import AsyncWalk, FixedWalk, Race, UncopiedWalk, Walk
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from servers import served

import envweave as ew
from envweave.errors import (
    BusyError,
    ClosedError,
    ForkError,
    OptionError,
    ResetNeededError,
    ToolCallOpenError,
)

Made = AbstractContextManager[ew.VectorEnv]
Place = Callable[..., Made]


class ArrayWalk(ew.Environment):
    """A walk that shows arrays, which go into shared memory, and ends after a while."""

    copyable = True

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        self._rng = np.random.default_rng(seed)
        self._at = self._rng.random(3)
        return self._at, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._at = self._at + action * self._rng.random(3)
        over = bool(self._at.sum() > 99)
        return self._at, float(self._at.sum()), over, False, {"moved": action}


class PlayedArrayWalk(ArrayWalk):
    """The same, which can only be played again."""

    copyable = False


class Unrepeatable(UncopiedWalk):
    """Takes its randomness from elsewhere, and does not say so."""

    def step(self, action: float) -> Any:
        self.rng = random.Random()
        return super().step(action)


class Unpicklable(Walk):
    """Holds what can be copied, but cannot leave its process."""

    def __init__(self) -> None:
        super().__init__()
        self.held = lambda: self.at

    def snapshot(self) -> Any:
        return self.at, self.rng.getstate(), Live()

    def restore(self, snapshot: Any) -> None:
        self.at, state, _ = snapshot
        self.rng.setstate(state)


class Live:
    def __reduce__(self) -> Any:
        raise ForkError("It is live, and cannot leave its process.")


class Guess(ew.Environment):
    """The answer is in the private part of the task."""

    copyable = True
    tasks = ew.Tasks({"train": [ew.Task("mine", data={"prompt": "guess"}, private={"answer": 4})]})

    def reset(self, *, task: ew.Task | None = None) -> tuple[str, dict[str, Any]]:
        self._task = task
        return "guess", {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = self._task is not None and action == self._task.private["answer"]
        return "no", float(right), False, False, {}


class PlayedGuess(Guess):
    copyable = False


class Deadly(Walk):
    def step(self, action: float) -> Any:
        if action == 66:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class PlayedDeadly(Deadly):
    copyable = False


PLACES: dict[str, dict[str, Any]] = {
    "serial": {},
    "threads": {"mode": "threads"},
    "async": {"mode": "async"},
    "process": {"backend": "process"},
    "http": {},
}


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.slow] if name == "process" else []) for name in PLACES
    ]
)
def place(request: pytest.FixtureRequest) -> Place:
    """Makes vectors in one of the places that they run in."""

    @contextmanager
    def make(env: Any, num_envs: int = 3, **options: Any) -> Iterator[ew.VectorEnv]:
        if request.param != "http":
            with ew.make_vector(env, num_envs=num_envs, **PLACES[request.param], **options) as one:
                yield one
            return
        with (
            served(env, drain_s=0) as url,
            ew.make_vector(env, num_envs=num_envs, base_url=url, **options) as one,
        ):
            yield one

    return make


KINDS = {
    "copied": (Walk, False),
    "author": (FixedWalk, False),
    "arrays": (ArrayWalk, False),
    "arrays, played again": (PlayedArrayWalk, True),
}


@pytest.fixture(params=list(KINDS))
def walks(request: pytest.FixtureRequest, place: Place) -> Iterator[ew.VectorEnv]:
    """Three walks with different seeds, after two steps."""
    cls, forkable = KINDS[request.param]
    with place(cls, forkable=forkable) as venv:
        venv.reset(seed=3)
        for _ in range(2):
            venv.step([1, 2, 1])
        yield venv


def shown(batch: Any, row: int) -> tuple[Any, ...]:
    """What one row shows, in plain values."""
    observation = np.asarray(batch.current[row]).tolist()
    return observation, float(batch.reward[row]), int(batch.step_index[row])


def futures(venv: ew.VectorEnv, steps: int = 3) -> list[list[tuple[Any, ...]]]:
    """Step all environments alike, and return what each row shows."""
    batches = [venv.step([1] * venv.num_envs) for _ in range(steps)]
    return [[shown(batch, row) for batch in batches] for row in range(venv.num_envs)]


def test_forks_continue_as_their_row_does(walks: ew.VectorEnv) -> None:
    with walks.fork(1, 2) as children:
        expected = futures(walks)

        assert futures(children) == [expected[1]] * 2
    assert expected[1] != expected[0]
    assert [step for _, _, step in expected[1]] == [3, 4, 5]
    assert futures(walks)  # also after they are closed


def test_a_fork_outlives_its_parent(walks: ew.VectorEnv) -> None:
    with walks.fork(2) as child:
        expected = futures(walks)[2]
        walks.close()

        assert child.num_envs == 1
        assert futures(child) == [expected]


def test_a_fork_can_be_forked(walks: ew.VectorEnv) -> None:
    with walks.fork(0) as child:
        futures(child)
        with child.fork(0, 2) as grandchildren:
            assert futures(grandchildren) == futures(child) * 2


def test_a_snapshot_is_restored_in_several_rows(walks: ew.VectorEnv) -> None:
    before = walks.step([1, 1, 1])
    point = walks.snapshot(1)
    expected = futures(walks)
    status = walks.step([1, 1, 1])

    batch = walks.restore(point, ids=[0, 2])

    assert batch.began.tolist() == [True, False, True]
    assert batch.step_index.tolist() == [3, 7, 3]
    assert [shown(batch, i)[0] for i in range(3)] == [
        shown(before, 1)[0], shown(status, 1)[0], shown(before, 1)[0]
    ]  # fmt: skip
    assert np.isnan(batch.reward).all()
    assert len({*batch.episode_id, point.episode_id}) == 3
    assert batch.episode_id[1] == point.episode_id
    after = futures(walks)
    assert [after[0], after[2]] == [expected[1]] * 2
    assert [step for _, _, step in after[1]] == [8, 9, 10]


def test_rows_are_restored_each_from_its_own_snapshot(walks: ew.VectorEnv) -> None:
    points = [walks.snapshot(row) for row in range(3)]
    expected = futures(walks)

    walks.restore([points[2], points[0], points[1]])

    assert futures(walks) == [expected[2], expected[0], expected[1]]


def test_rows_that_are_sent_on_their_own_continue_as_well(walks: ew.VectorEnv) -> None:
    point = walks.snapshot(1)
    expected = futures(walks)[1]
    walks.restore(point, ids=[0])

    taken = []
    for _ in range(3):
        walks.send([1], ids=[0])
        batch = walks.drain()
        taken.append(shown(batch, 0))

    assert taken == expected


def test_a_vector_that_was_never_reset_is_restored(place: Place) -> None:
    for cls, forkable in KINDS.values():
        with place(cls, forkable=forkable) as venv:
            venv.reset(seed=3)
            venv.step([1, 1, 1])
            point = venv.snapshot(0)
            expected = futures(venv)[0]
            with venv.fork(1, 2) as other:
                other.restore(point)
                assert futures(other) == [expected] * 2


def test_later_episodes_follow_from_the_rows_own_seed(place: Place) -> None:
    for cls, forkable in ((Walk, False), (UncopiedWalk, True)):
        with place(cls, forkable=forkable, autoreset=True) as venv:
            venv.reset(seed=3)
            venv.step([1, 1, 1])
            with venv.fork(1, 2) as children:
                ends = children.step([200, 200]), venv.step([200, 200, 200])

                seeds = [[one.ready.initial_info["seed"] for one in batch] for batch in ends]
                assert seeds[0] == [seeds[1][1]] * 2
                assert futures(children) == [futures(venv)[1]] * 2


def test_what_cannot_be_copied_is_refused_with_what_to_do(place: Place) -> None:
    with place(UncopiedWalk) as venv:
        venv.reset(seed=3)

        with pytest.raises(ForkError, match=r"Environment 2: .*no snapshot\(\).*forkable=True"):
            venv.fork(2)

        assert venv.step([1, 1, 1]).step_index.tolist() == [1, 1, 1]


def test_what_cannot_be_repeated_is_refused_with_the_first_difference(place: Place) -> None:
    with place(Unrepeatable, forkable=True) as venv:
        venv.reset(seed=3)
        venv.step([1, 1, 1])
        point = venv.snapshot(1)

        with pytest.raises(ForkError, match=r"Environment 0: .*step 1, observation: recorded "):
            venv.fork(1, 2)
        assert venv.step([1, 1, 1]).step_index.tolist() == [2, 2, 2]
        with pytest.raises(ForkError, match=r"Environment 2: .*The first difference"):
            venv.restore(point, ids=[2])

        with pytest.raises(ResetNeededError, match=r"environments \[2\]"):
            venv.step([1, 1, 1])
        with pytest.raises(ResetNeededError, match=r"environments \[2\]"):
            venv.snapshot(2)
        batch = venv.reset(ids=[2])
        assert batch.step_index.tolist() == [2, 2, 0]
        assert venv.step([1, 1, 1]).step_index.tolist() == [3, 3, 1]


def test_the_others_continue_where_one_row_cannot_be_restored(place: Place) -> None:
    with place(FixedWalk) as venv:
        venv.reset(seed=3)
        venv.step([1, 60, 1])
        near, far = venv.snapshot(0), venv.snapshot(1)
        expected = futures(venv)[0]

        with pytest.raises(ForkError, match=r"Environment 1: FixedWalk\.restore\(\).*too far"):
            venv.restore([near, far, near])

        with pytest.raises(ResetNeededError, match="too far"):
            venv.step([1, 1, 1])
        venv.reset(ids=[1])
        after = futures(venv)
        assert [after[0], after[2]] == [expected] * 2


def test_an_open_tool_call_is_open_in_the_forks_too(place: Place) -> None:
    for cls, forkable in ((Walk, False), (UncopiedWalk, True)):
        with place(cls, forkable=forkable) as venv:
            venv.reset(seed=3)
            venv.step([1, 99, 1])
            point = venv.snapshot(1)
            with venv.fork(1) as child:
                with pytest.raises(ToolCallOpenError):
                    child.step([1])
                answers = [ew.ToolResult("call-1", 5)]
                answered = child.step(answers)

                assert shown(answered, 0) == shown(venv.step([1, *answers, 1]), 1)
                assert child.step([1]).step_index.tolist() == [2]
            venv.restore(point, ids=[2])
            with pytest.raises(ToolCallOpenError, match=r"actions\[2\]"):
                venv.step([1, 1, 1])


def test_agents_are_forked_with_what_they_did_and_are_owed(place: Place) -> None:
    with place("tictactoe-v0", forkable=True) as venv:
        batch = venv.reset(seed=1)
        agents = batch.possible_agents
        for cells in ([0, 1, 2], [3, 4, 5], [6, 7, 8]):
            batch = venv.step({agent: [{"cell": cell} for cell in cells] for agent in agents})
        point = venv.snapshot(1)

        restored = venv.restore(point, ids=[0])

        for batch_of_now in (restored, venv.step(dict.fromkeys(agents, [{"cell": 0}] * 3))):
            np.testing.assert_array_equal(batch_of_now.alive[0], batch.alive[1])
        with venv.fork(2, 2) as children:
            cells = {agent: [{"cell": 3}] * 3 for agent in agents}
            expected = venv.step(cells)
            taken = children.step({agent: one[:2] for agent, one in cells.items()})
        for name in ("settled", "earned", "alive", "to_act", "reward", "terminated"):
            column = getattr(expected, name)
            np.testing.assert_array_equal(getattr(taken, name), column[[2, 2]])
        assert expected.settled[2].any()


def test_agents_that_left_stay_away_in_the_forks(place: Place) -> None:
    with place(Race, 2) as venv:
        venv.reset(seed=1)
        venv.step([{"ann": 1, "bob": 2}, {"ann": 3, "bob": 4}])

        with venv.fork(1, 2) as children:
            batch = children.step([{"ann": 1}] * 2)

        assert batch.alive.tolist() == [[True, False]] * 2
        assert batch.successor["ann"].tolist() == [4, 4]
        assert venv.step([{"ann": 1}] * 2).successor["ann"].tolist() == [2, 4]


def test_the_private_part_of_a_task_goes_along(place: Place) -> None:
    for cls, forkable in ((Guess, False), (PlayedGuess, True)):
        with place(cls, forkable=forkable) as venv:
            venv.reset(task="mine")
            venv.step([1, 1, 1])
            with venv.fork(1) as child:
                assert child.step([4]).reward.tolist() == [1.0]


def test_async_environments_fork(place: Place) -> None:
    with place(AsyncWalk) as venv:
        venv.reset(seed=3)
        venv.step([1, 1, 1])
        with venv.fork(1, 2) as children:
            assert futures(children) == [futures(venv)[1]] * 2


def test_calls_that_make_no_sense_are_refused_and_change_nothing(place: Place) -> None:
    with place(Walk) as venv:
        with pytest.raises(ResetNeededError, match=r"snapshot\(\) before the first reset"):
            venv.snapshot(0)
        venv.reset(seed=3)
        point = venv.snapshot(0)
        with place(FixedWalk) as other:
            other.reset()
            other.step([1, 1, 1])
            foreign = other.snapshot(0)
        for row in (3, -1, True, 0.5, "0", None):
            with pytest.raises(OptionError, match="row must be an integer from 0 to 2"):
                venv.snapshot(row)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="n must be"):
            venv.fork(0, 0)
        for given in (foreign, {}, [point, foreign, point]):
            with pytest.raises(OptionError, match=r"cannot be restored in|got a dict"):
                venv.restore(given)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="snapshot: got 2 for 3 environments"):
            venv.restore([point, point])
        with pytest.raises(OptionError, match="ids must be"):
            venv.restore(point, ids=[7])
        venv.send([1, 1, 1])
        for call in (lambda: venv.snapshot(0), lambda: venv.restore(point), lambda: venv.fork(0)):
            with pytest.raises(BusyError, match=r"recv\(\)"):
                call()

        assert venv.drain().step_index.tolist() == [1, 1, 1]
    for call in (lambda: venv.snapshot(0), lambda: venv.restore(point), lambda: venv.fork(0)):
        with pytest.raises(ClosedError):
            call()


def test_a_snapshot_needs_a_running_episode(place: Place) -> None:
    with place(Walk) as venv:
        venv.reset(seed=3)
        venv.step([1, 200, 1])

        with pytest.raises(ResetNeededError, match=r"snapshot\(\).*environments \[1\]"):
            venv.snapshot(1)

        point = venv.snapshot(0)
        assert venv.restore(point, ids=[1]).needs_reset.tolist() == [False] * 3
        assert venv.step([1, 1, 1]).step_index.tolist() == [2, 2, 2]


def test_environments_of_other_kinds_are_refused(place: Place) -> None:
    with place(Walk) as venv, ew.make(Walk) as env:
        env.reset(seed=1)
        venv.reset(seed=1)
        foreign = env.snapshot()
        object.__setattr__(foreign, "state", 7)
        object.__setattr__(foreign, "env_id", venv.snapshot(0).env_id)

        with pytest.raises(ForkError, match="was taken of a Walk"):
            venv.restore(foreign, ids=[1])

        venv.reset(ids=[1])
        assert venv.step([1, 1, 1]).step_index.tolist() == [1, 1, 1]


@pytest.mark.parametrize("forkable", [False, True])
def test_restored_rows_are_recorded_with_their_parent(
    place: Place, tmp_path: Path, *, forkable: bool
) -> None:
    with place(Walk, record=tmp_path, forkable=forkable) as venv:
        parent = venv.reset(seed=3).episode_id[1]
        venv.step([1, 2, 1])
        point = venv.snapshot(1)
        venv.restore(point, ids=[2])
        with venv.fork(1) as child:
            child.step([3])
            child.step([200])
        venv.step([1, 1, 4])
        venv.step([1, 1, 200])

    recording = ew.load(tmp_path)
    forked = [one for one in recording if one.parent is not None]

    assert [one.parent for one in forked] == [ew.EpisodeParent(parent, 1)] * 2
    assert [one.inherited for one in forked] == [[2.0], [2.0]]
    assert sorted([step.action for step in one.steps] for one in forked) == [[3, 200], [4, 200]]
    assert {one.seed for one in forked} == {4}
    for one in forked:
        report = ew.replay(tmp_path, env=Walk, episode=one.episode_id)
        assert [each.status for each in report.episodes] == ["equal"]


def test_a_forked_row_can_be_forked_again_by_replay(place: Place) -> None:
    with place(UncopiedWalk, forkable=True, autoreset=True) as venv:
        venv.reset(seed=3)
        venv.step([1, 200, 1])  # row 1 is in its second episode
        venv.step([1, 1, 1])
        venv.send([2], ids=[1])
        venv.drain()
        venv.restore(venv.snapshot(1), ids=[0])
        venv.step([3, 3, 3])

        with venv.fork(0, 2) as children:
            expected = futures(venv)

            assert futures(children) == [expected[0]] * 2
            assert expected[0] == expected[1]


# In this process


def test_snapshots_of_one_environment_are_restored_in_a_vector_and_back() -> None:
    with ew.make(Walk) as env, ew.make_vector(Walk, num_envs=2) as venv:
        env.reset(seed=3)
        env.step(1.0)
        point = env.snapshot()

        venv.restore(point)
        expected = env.step(1.0).observation

        assert venv.step([1, 1]).current.tolist() == [expected] * 2
        env.restore(venv.snapshot(0))
        assert env.step(1.0).observation == venv.step([1, 1]).current[1]


def test_the_first_restore_is_of_all() -> None:
    with ew.make(Walk) as env, ew.make_vector(Walk, num_envs=2) as venv:
        env.reset(seed=3)

        with pytest.raises(ResetNeededError, match="must be of all environments"):
            venv.restore(env.snapshot(), ids=[0])


def test_gymnasiums_own_vectors_refuse_forks() -> None:
    make = [lambda: gymnasium.make("CartPole-v1")] * 2
    made = SyncVectorEnv(make, autoreset_mode=AutoresetMode.DISABLED)
    with ew.make_vector(made) as venv:
        venv.reset(seed=1)

        with pytest.raises(ForkError, match="a Gymnasium vector") as refused:
            venv.fork(0)

        assert "forkable=True" not in str(refused.value)
        assert venv.step([0, 0]).step_index.tolist() == [1, 1]
    with pytest.raises(OptionError, match="forkable=True cannot be honored"):
        ew.make_vector(SyncVectorEnv(make, autoreset_mode=AutoresetMode.DISABLED), forkable=True)


# In workers


@pytest.mark.slow  # starts worker processes
def test_what_cannot_leave_its_process_is_refused_or_played_again() -> None:
    for forkable in (False, True):
        with ew.make_vector(Unpicklable, num_envs=2, backend="process", forkable=forkable) as venv:
            venv.reset(seed=3)
            venv.step([1, 1])
            if not forkable:
                for row in (0, 1):
                    with pytest.raises(ForkError, match=r"worker process: .*It is live"):
                        venv.fork(row)
                continue
            for row in (0, 1):
                with venv.fork(row) as child:
                    assert shown(child.step([1]), 0)[0] == shown(venv.step([1, 1]), row)[0]


@pytest.mark.slow  # starts worker processes
def test_environments_with_a_deadline_fork() -> None:
    with (
        ew.make_vector(Walk, num_envs=3, backend="process", workers=2, timeout_s=20) as venv,
    ):
        venv.reset(seed=3)
        venv.step([1, 1, 1])
        point = venv.snapshot(0)

        with venv.fork(2, 2) as children:
            expected = futures(venv)
            assert futures(children) == [expected[2]] * 2
        venv.restore(point)
        assert futures(venv) == [expected[0]] * 3


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize("autoreset", [False, True])
@pytest.mark.parametrize("cls", [Deadly, PlayedDeadly])
def test_a_snapshot_outlives_the_worker_that_it_was_taken_in(
    cls: type[ew.Environment], *, autoreset: bool
) -> None:
    with ew.make_vector(
        cls, num_envs=2, backend="process", workers=2, forkable=True, autoreset=autoreset
    ) as venv:
        venv.reset(seed=3)
        venv.step([1, 1])
        points = [venv.snapshot(0), venv.snapshot(1)]
        expected = futures(venv)
        batch = venv.step([66, 1])
        assert batch[0].end.reason == "lost"  # type: ignore[union-attr]

        venv.restore(points)

        assert futures(venv) == expected


@pytest.mark.slow  # starts worker processes
def test_an_episode_that_was_lost_with_its_worker_has_no_snapshot() -> None:
    with ew.make_vector(Walk, num_envs=2, backend="process", workers=2, autoreset=True) as venv:
        venv.reset(seed=3)
        pids = [state.pid for state in venv.state()]  # type: ignore[attr-defined]
        os.kill(pids[0], signal.SIGKILL)
        os.waitid(os.P_PID, pids[0], os.WEXITED | os.WNOWAIT)

        with pytest.raises(ForkError, match=r"The episode was lost: .*SIGKILL"):
            venv.snapshot(0)

        assert venv.snapshot(1).step == 0
        assert venv.step([1, 1])[0].end.reason == "lost"  # type: ignore[union-attr]
        assert venv.snapshot(0).step == 0


# At servers


@pytest.mark.slow  # starts a server process
def test_forks_share_a_server_that_was_started_for_the_vector() -> None:
    venv = ew.make_vector(Walk, num_envs=2, backend="http")
    venv.reset(seed=3)
    child = venv.fork(1, 2)
    expected = futures(venv)[1]
    pid = venv.state()[0].pid  # type: ignore[attr-defined]
    assert [state.pid for state in child.state()] == [pid] * 2  # type: ignore[attr-defined]

    venv.close()

    assert futures(child) == [expected] * 2
    child.close()


@pytest.mark.slow  # starts worker processes
def test_rows_move_to_the_servers_worker_that_keeps_their_snapshot() -> None:
    with (
        served(Walk, workers=2, drain_s=0) as url,
        ew.make_vector(url, num_envs=4) as venv,
    ):
        venv.reset(seed=3)
        pids = {state.pid for state in venv.state()}  # type: ignore[attr-defined]
        assert len(pids) == 2
        point = venv.snapshot(1)
        expected = futures(venv)[1]

        venv.restore(point)

        assert futures(venv) == [expected] * 4
        assert len({state.pid for state in venv.state()}) == 1  # type: ignore[attr-defined]
