"""`load(run).episode(id).at(7).fork(8)`: environments that continue from a recording."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from environments.walks import (
    AskingWalk,
    CopyableAskingWalk,
    CopyableLongWalk,
    LongWalk,
    UndeterministicWalk,
    UnrepeatableWalk,
)
from processes import descendants

import envweave as ew
from envweave.errors import ForkError, OptionError

SEED = 5


@pytest.fixture(params=["inproc", pytest.param("process", marks=pytest.mark.slow)])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[LongWalk, CopyableLongWalk])
def walk(request: pytest.FixtureRequest) -> type[ew.Environment]:
    return request.param  # type: ignore[no-any-return]


def record(walk: Any, directory: Path, **options: Any) -> tuple[str, list[Any]]:
    """Record an episode to its end; return its id, and what each step showed."""
    with ew.make(walk, record=directory, **options) as env:
        result: ew.StepResult[Any] = env.reset(task="walk-1", seed=SEED)
        episode_id, shown = str(result.episode_id), []
        while not result.done:
            result = env.step(1 + result.step_index % 3)
            shown.append(seen(result))
    return episode_id, shown


def seen(result: ew.StepResult[Any]) -> tuple[Any, ...]:
    return result.observation, result.reward, result.step_index, result.done


def play_on(env: ew.Env, after: int) -> list[Any]:
    """Continue as `record` does, and close the environment."""
    shown, step, done = [], after, False
    while not done:
        result = env.step(1 + step % 3)
        shown.append(seen(result))
        step, done = result.step_index, result.done
    env.close()
    return shown


def test_each_continues_from_the_recorded_point(walk: Any, backend: str, tmp_path: Path) -> None:
    episode_id, shown = record(walk, tmp_path, backend=backend)

    envs = ew.load(tmp_path).episode(episode_id).at(4).fork(3)

    assert [play_on(env, 4) for env in envs] == [shown[4:]] * 3


def test_the_start_can_be_forked(tmp_path: Path) -> None:
    episode_id, shown = record(LongWalk, tmp_path)

    (env,) = ew.load(tmp_path).episode(episode_id).at(0).fork()

    assert play_on(env, 0) == shown


def test_they_are_independent_and_can_be_forked_in_turn(walk: Any, tmp_path: Path) -> None:
    episode_id, shown = record(walk, tmp_path)
    left, right = ew.load(tmp_path).episode(episode_id).at(4).fork(2)
    left.step(3)
    (child,) = right.fork()

    assert play_on(child, 4) == shown[4:]
    assert play_on(right, 4) == shown[4:]
    left.close()


@pytest.mark.slow  # starts worker processes
def test_they_run_on_another_backend(tmp_path: Path) -> None:
    episode_id, shown = record(LongWalk, tmp_path)

    before = len(descendants())

    (env,) = ew.load(tmp_path).episode(episode_id).at(4).fork(backend="process")

    assert len(descendants()) == before + 1
    assert play_on(env, 4) == shown[4:]


def test_a_child_of_a_child_is_forked(walk: Any, tmp_path: Path) -> None:
    with ew.make(walk, record=tmp_path, forkable=True) as env:
        env.reset(task="walk-1", seed=SEED)
        env.step(1)
        (child,) = env.fork()
        child.step(2)
        (grandchild,) = child.fork()
        grandchild.step(3)
        last = seen(grandchild.step(1))
        env.step(3)
        child.close()
        grandchild.close()
    recording = ew.load(tmp_path)
    (recorded,) = [one for one in recording if len(one.inherited) == 2]

    point = recorded.at(3)
    (again,) = point.fork()

    assert (point.inherited, point.actions) == ([1, 2], [3])
    assert seen(again.step(1)) == last
    again.close()


def test_a_continuation_of_a_rollout_is_forked(tmp_path: Path) -> None:
    def agent(result: ew.StepResult[Any]) -> int:
        return 1 + int(str(result.episode_id)[-1] == "1")

    with ew.pool(LongWalk, size=2, record=tmp_path) as pool:
        run = ew.rollout(pool, agent, episodes=1, seed=SEED, branch_at=3, width=2)
        _, right = run.run()

    (env,) = ew.load(tmp_path).episode(str(right.episode_id)).at(5).fork()

    assert env.step(right.steps[2].action).observation == right.steps[3].observation
    env.close()


def test_an_answer_to_a_tool_call_is_given_again(tmp_path: Path) -> None:
    with ew.make(AskingWalk, record=tmp_path) as env:
        episode_id = str(env.reset(task="walk-1", seed=SEED).episode_id)
        for value in (4, 5):
            (call,) = env.step(0).tool_calls
            last = env.step(ew.ToolResult(call.call_id, value))

    (env,) = ew.load(tmp_path).episode(episode_id).at(2).fork()
    (call,) = env.step(0).tool_calls

    assert env.step(ew.ToolResult(call.call_id, 0)).observation == last.observation
    env.close()


def test_an_environment_that_the_recording_cannot_make_is_passed(tmp_path: Path) -> None:
    def make() -> ew.Environment:
        return LongWalk()

    episode_id, shown = record(make, tmp_path)
    point = ew.load(tmp_path).episode(episode_id).at(4)

    with pytest.raises(ForkError, match=r"does not say how to make it again.*env="):
        point.fork()
    (env,) = point.fork(env=LongWalk)

    assert play_on(env, 4) == shown[4:]


class OtherWalk(LongWalk):
    """Another version, whose walks are wider."""

    def step(self, action: int) -> Any:
        return super().step(action * (2 if self.taken == 2 else 1))


@pytest.mark.parametrize("env", [OtherWalk, UnrepeatableWalk])
def test_what_leads_elsewhere_is_refused_with_the_first_difference(
    env: Any, tmp_path: Path
) -> None:
    episode_id, _ = record(LongWalk, tmp_path)
    point = ew.load(tmp_path).episode(episode_id).at(4)

    with pytest.raises(ForkError, match=r"first difference is at step \d, observation\.x: reco"):
        point.fork(2, env=env)


def test_an_environment_that_is_not_deterministic_is_refused(tmp_path: Path) -> None:
    episode_id, _ = record(UndeterministicWalk, tmp_path)

    with pytest.raises(ForkError, match="is not deterministic, as its author declared"):
        ew.load(tmp_path).episode(episode_id).at(4).fork()


def test_nothing_continues_from_the_end(tmp_path: Path) -> None:
    episode_id, shown = record(LongWalk, tmp_path)

    with pytest.raises(ForkError, match=f"it ended with step {len(shown)}, so take an earlier"):
        ew.load(tmp_path).episode(episode_id).at(len(shown)).fork()


def test_a_child_has_no_point_before_its_fork(tmp_path: Path) -> None:
    with ew.make(CopyableLongWalk, record=tmp_path) as env:
        env.reset(task="walk-1", seed=SEED)
        env.step(1)
        env.step(1)
        (child,) = env.fork()
        child.step(1)
        child.close()
    (recorded,) = [one for one in ew.load(tmp_path) if one.parent is not None]

    with pytest.raises(OptionError, match=r"step must be from 2 to 3.*It was forked from '"):
        recorded.at(1)


def test_only_a_loaded_episode_is_forked(tmp_path: Path) -> None:
    episode_id, _ = record(LongWalk, tmp_path)
    sent = pickle.loads(pickle.dumps(ew.load(tmp_path).episode(episode_id)))
    with ew.pool(LongWalk, size=1) as pool:
        (played,) = ew.rollout(pool, lambda result: 1, episodes=1).run()

    for one in (sent, played):
        with pytest.raises(ForkError, match=r"take it from envweave\.load\(\)"):
            one.at(1).fork()


def test_a_number_of_forks_that_is_none_is_refused(tmp_path: Path) -> None:
    episode_id, _ = record(LongWalk, tmp_path)

    with pytest.raises(OptionError, match="n must be"):
        ew.load(tmp_path).episode(episode_id).at(1).fork(0)


def test_an_answer_that_the_parent_gave_after_the_fork_is_not_inherited(tmp_path: Path) -> None:
    with ew.make(AskingWalk, record=tmp_path, forkable=True) as env:
        env.reset(seed=1, task="walk-1")
        first = env.step(1).tool_calls[0]
        env.step(ew.ToolResult(first.call_id, 2))
        second = env.step(1).tool_calls[0]
        (child,) = env.fork()
        env.step(ew.ToolResult(second.call_id, 3))
        child.close()

    loaded = next(one for one in ew.load(tmp_path) if one.parent is not None)

    assert loaded.inherited == [1, ew.ToolResult(first.call_id, 2), 1]


def test_a_child_that_was_forked_before_an_answer_is_forked_again(tmp_path: Path) -> None:
    with ew.make(CopyableAskingWalk, record=tmp_path) as env:
        env.reset(seed=SEED, task="walk-1")
        (call,) = env.step(1).tool_calls
        (child,) = env.fork()
        env.step(ew.ToolResult(call.call_id, 3))
        with child:
            child.step(ew.ToolResult(call.call_id, 7))
            (call,) = child.step(1).tool_calls
            last = child.step(ew.ToolResult(call.call_id, 5))

    loaded = next(one for one in ew.load(tmp_path) if one.parent is not None)
    (again,) = loaded.at(2).fork()
    (call,) = again.step(1).tool_calls

    with again:
        shown = again.step(ew.ToolResult(call.call_id, 0)).observation
    assert shown["x"] == last.observation["x"]


def test_an_episode_whose_parent_was_recorded_elsewhere_cannot_be_forked(tmp_path: Path) -> None:
    with (
        ew.make(CopyableLongWalk, record=tmp_path / "parent") as env,
        ew.make(CopyableLongWalk, record=tmp_path / "child") as other,
    ):
        env.reset(seed=SEED, task="walk-1")
        env.step(1)
        episode_id = str(other.restore(env.snapshot()).episode_id)
        other.step(1)

    point = ew.load(tmp_path / "child").episode(episode_id).at(2)

    with pytest.raises(ForkError, match="is not in this recording"):
        point.fork()
