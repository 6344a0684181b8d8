"""Forks continue from the very state of an episode, or are refused with the first difference."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from environments.forking import CountsSnapshots

import envweave as ew
from envweave.errors import ClosedError, ForkError, OptionError, ResetNeededError


class Walk(ew.Environment):
    """A random walk, which has no snapshot of its own."""

    def reset(self, *, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self._rng = random.Random(seed)
        self._x = 0.0
        return {"x": 0.0}, {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self._x += action * self._rng.random()
        return {"x": self._x}, self._x, self._x > 6, False, {"moved": action}


class CopyableWalk(Walk):
    copyable = True


class SnapshotWalk(Walk):
    """A walk whose author wrote the snapshot."""

    def snapshot(self) -> Any:
        return self._rng.getstate(), self._x

    def restore(self, snapshot: Any) -> None:
        state, self._x = snapshot
        self._rng = random.Random()
        self._rng.setstate(state)


class AsyncWalk(ew.Environment):
    """A walk with async methods."""

    def __init__(self) -> None:
        self._walk = SnapshotWalk()

    async def reset(self, *, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._walk.reset(seed=seed)

    async def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        return self._walk.step(action)

    async def snapshot(self) -> Any:
        await asyncio.sleep(0)
        return self._walk.snapshot()

    async def restore(self, snapshot: Any) -> None:
        await asyncio.sleep(0)
        self._walk.restore(snapshot)


class Unrepeatable(Walk):
    """Takes its randomness from elsewhere, and does not say so."""

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        return {"x": random.SystemRandom().random()}, 0.0, False, False, {}


class Undeterministic(Unrepeatable):
    deterministic = False


WALKS = {
    "deepcopy": (CopyableWalk, False),
    "author": (SnapshotWalk, False),
    "author, async": (AsyncWalk, False),
    "replay": (Walk, True),
    "deepcopy, logged": (CopyableWalk, True),
}


@pytest.fixture(params=["inproc", pytest.param("process", marks=pytest.mark.slow)])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=list(WALKS))
def walk(request: pytest.FixtureRequest, backend: str) -> Iterator[ew.Env]:
    cls, forkable = WALKS[request.param]
    with ew.make(cls, backend=backend, forkable=forkable) as env:
        env.reset(seed=3)
        for _ in range(3):
            env.step(1)
        yield env


def futures(envs: list[ew.Env], actions: list[int]) -> list[list[tuple[Any, ...]]]:
    """Step each environment alone, and return what each shows."""
    shown = []
    for env in envs:
        results = [env.step(action) for action in actions]
        shown.append([(one.observation, one.reward, one.step_index) for one in results])
    return shown


def close_all(envs: list[ew.Env]) -> None:
    for env in envs:
        env.close()


def test_children_continue_as_their_parent_does(walk: ew.Env) -> None:
    children = walk.fork(3)

    first, *others = futures([walk, *children], [1, 1, -1])

    assert others == [first] * 3
    assert [step for _, _, step in first] == [4, 5, 6]
    close_all(children)


def test_children_are_independent_of_each_other_and_of_their_parent(walk: ew.Env) -> None:
    left, right = walk.fork(2)

    assert left.step(0).observation != right.step(1).observation
    walk.close()

    assert left.step(1).step_index == right.step(1).step_index == 5
    close_all([left, right])


def test_a_child_can_be_forked(walk: ew.Env) -> None:
    (child,) = walk.fork()
    child.step(1)
    (grandchild,) = child.fork()

    expected, shown = futures([child, grandchild], [1, 2])

    assert shown == expected
    close_all([child, grandchild])


def test_a_snapshot_is_restored_any_number_of_times(walk: ew.Env) -> None:
    point = walk.snapshot()
    rewards = []
    for _ in range(3):
        start = walk.restore(point)
        rewards.append([walk.step(1).reward, walk.step(1).reward])

    assert rewards == [rewards[0]] * 3
    assert start.step_index == point.step == 3
    assert start.observation == {"x": start.observation["x"]}
    assert start.reward is None
    assert not start.done


def test_a_restored_episode_is_one_of_its_own(walk: ew.Env) -> None:
    point = walk.snapshot()

    restored = walk.restore(point)

    assert point.episode_id is not None
    assert restored.episode_id != point.episode_id
    assert walk.step(1).episode_id == restored.episode_id


def test_a_snapshot_is_restored_after_the_end_of_the_episode(walk: ew.Env) -> None:
    point = walk.snapshot()
    while not walk.step(2).done:
        pass

    walk.restore(point)

    assert walk.step(1).step_index == 4


def test_later_episodes_follow_from_the_seed(walk: ew.Env) -> None:
    children = walk.fork(2)

    seeds = [child.reset().info["seed"] for child in children]

    assert seeds == [walk.reset().info["seed"]] * 2
    close_all(children)


def test_what_cannot_be_copied_is_refused_with_what_to_do(backend: str) -> None:
    with ew.make(Walk, backend=backend) as env:
        env.reset(seed=1)
        env.step(1)

        with pytest.raises(ForkError, match=r"Walk has no snapshot\(\).*forkable=True"):
            env.fork(2)

        assert env.step(1).step_index == 2


def test_what_cannot_be_repeated_is_refused_with_the_first_difference(backend: str) -> None:
    with ew.make(Unrepeatable, backend=backend, forkable=True) as env:
        env.reset(seed=1)
        env.step(1)

        with pytest.raises(ForkError, match=r"step 1, observation\.x: recorded 0\.\d+, replayed"):
            env.fork(2)

        assert env.step(1).step_index == 2


def test_after_a_refused_restore_a_reset_is_needed(backend: str) -> None:
    with ew.make(Unrepeatable, backend=backend, forkable=True) as env:
        env.reset(seed=1)
        env.step(1)
        point = env.snapshot()
        with pytest.raises(ForkError):
            env.restore(point)

        with pytest.raises(ResetNeededError, match=r"its last restore\(\) failed"):
            env.step(1)

        env.reset(seed=2)
        assert env.step(1).step_index == 1


def test_an_environment_that_is_not_deterministic_is_not_played_again() -> None:
    with ew.make(Undeterministic, forkable=True) as env:
        env.reset(seed=1)
        env.step(1)

        with pytest.raises(ForkError, match="not deterministic, as its author declared"):
            env.fork()


def test_a_snapshot_needs_a_running_episode(backend: str) -> None:
    for cls, forkable in ((CopyableWalk, False), (Walk, True)):
        with ew.make(cls, backend=backend, forkable=forkable) as env:
            with pytest.raises((ResetNeededError, ForkError)):
                env.snapshot()
            env.reset(seed=1)
            while not env.step(2).done:
                pass
            with pytest.raises((ResetNeededError, ForkError)):
                env.snapshot()
        with pytest.raises((ClosedError, ForkError)):
            env.snapshot()


def test_only_snapshots_of_the_same_environment_are_restored() -> None:
    with ew.make(CopyableWalk) as walk, ew.make(SnapshotWalk) as other:
        walk.reset(seed=1)
        other.reset()
        point = other.snapshot()

        with pytest.raises(OptionError, match=r"SnapshotWalk' and cannot be restored in '"):
            walk.restore(point)
        with pytest.raises(OptionError, match="got a dict"):
            walk.restore({})  # type: ignore[arg-type]

        assert walk.step(1).step_index == 1


def test_a_snapshot_of_an_environment_that_is_not_logged_is_restored_in_one_that_is() -> None:
    with ew.make(CopyableWalk) as plain, ew.make(CopyableWalk, forkable=True) as logged:
        plain.reset(seed=1)
        logged.reset(seed=2)
        point = plain.snapshot()

        logged.restore(point)
        assert logged.step(1).observation == plain.step(1).observation

        with pytest.raises(ForkError, match="another `backend`, `record` or `forkable`"):
            plain.restore(logged.snapshot())
        assert plain.step(1).step_index == 2


@pytest.mark.slow  # starts a worker process
def test_an_environment_with_a_deadline_is_forked() -> None:
    with ew.make(CopyableWalk, backend="process", timeout_s=20) as env:
        env.reset(seed=1)
        (child,) = env.fork()

        assert child.step(1).observation == env.step(1).observation
        child.close()


def test_a_number_of_forks_that_is_none_is_refused() -> None:
    with ew.make(CopyableWalk) as env:
        env.reset()

        with pytest.raises(OptionError, match="n must be"):
            env.fork(0)


def test_an_object_cannot_be_two_environments_but_can_be_restored() -> None:
    with ew.make(CopyableWalk()) as env:
        env.reset(seed=1)
        env.step(1)
        point = env.snapshot()
        expected = env.step(1).observation

        with pytest.raises(ForkError, match="made of an object"):
            env.fork()
        env.restore(point)

        assert env.step(1).observation == expected


def test_a_failing_snapshot_leaves_the_episode_unharmed() -> None:
    class Failing(Walk):
        def snapshot(self) -> Any:
            raise ValueError("no")

    with ew.make(Failing) as env:
        env.reset(seed=1)

        with pytest.raises(ForkError, match=r"Failing\.snapshot\(\) failed: ValueError: no"):
            env.snapshot()

        assert env.step(1).step_index == 1


def test_a_failing_restore_replaces_the_environment() -> None:
    class Failing(CopyableWalk):
        def restore(self, snapshot: Any) -> None:
            raise ValueError("no")

    with ew.make(Failing) as env:
        env.reset(seed=1)
        point = env.snapshot()

        with pytest.raises(ForkError, match=r"Failing\.restore\(\) failed: ValueError: no"):
            env.restore(point)
        with pytest.raises(ResetNeededError, match=r"its last restore\(\) failed"):
            env.step(1)

        assert env.reset(seed=1).info["seed"] == 1


def test_a_step_limit_counts_the_steps_before_the_fork(backend: str) -> None:
    with ew.make(CopyableWalk, backend=backend, max_episode_steps=4) as env:
        env.reset(seed=1)
        for _ in range(3):
            env.step(0)
        (child,) = env.fork()

        assert child.step(0).truncated
        child.close()


class Asking(ew.Environment):
    """Asks its caller for a number in every step."""

    copyable = True

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self._sum = 0
        self._calls = 0
        return "ready", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._calls += 1
        self.emit(ew.ToolCallRequest(f"call-{self._calls}", "number", {}))
        return "waiting", 1.0, False, False, {}

    def answer(self, result: ew.ToolResult) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._sum += int(result.value)
        return f"sum {self._sum}", 2.0, False, False, {}


class LoggedAsking(Asking):
    copyable = False


@pytest.mark.parametrize(("cls", "forkable"), [(Asking, False), (LoggedAsking, True)])
def test_an_open_tool_call_is_open_in_the_children_too(
    cls: type[ew.Environment], forkable: bool, backend: str
) -> None:
    with ew.make(cls, backend=backend, forkable=forkable) as env:
        env.reset(seed=1)
        env.step("go")
        env.step(ew.ToolResult("call-1", 5))
        env.step("go")
        (child,) = env.fork()

        with pytest.raises(ew.errors.ToolCallOpenError):
            child.step("go")
        answered = [one.step(ew.ToolResult("call-2", 7)) for one in (child, env)]

        assert [one.observation for one in answered] == ["sum 12", "sum 12"]
        assert [one.needs[0].reward for one in answered] == [3.0, 3.0]
        child.close()


def test_agents_keep_what_they_earned_since_they_acted(backend: str) -> None:
    with ew.make("tictactoe-v0", backend=backend, forkable=True) as env:
        result = env.reset(seed=1)
        for cell in (0, 3):
            result = env.step({result.needs[0].agent_id: {"cell": cell}})
        point = env.snapshot()
        restored = env.restore(point)

        assert [need.agent_id for need in restored.needs] == [
            need.agent_id for need in result.needs
        ]
        np.testing.assert_equal(restored.needs[0].action_mask, result.needs[0].action_mask)
        assert [need.reward for need in restored.needs] == [need.reward for need in result.needs]


def test_async_environments_fork(backend: str) -> None:
    async def run() -> None:
        async with ew.make_async(AsyncWalk, backend=backend) as env:
            await env.reset(seed=3)
            await env.step(1)
            children = await env.fork(2)
            expected = (await env.step(1)).observation

            assert [(await child.step(1)).observation for child in children] == [expected] * 2
            for child in children:
                await child.close()

    asyncio.run(run())


def test_async_environments_are_forked_by_replay(backend: str) -> None:
    async def run() -> None:
        async with ew.make_async(Walk, backend=backend, forkable=True) as env:
            await env.reset(seed=3)
            await env.step(1)
            (child,) = await env.fork()

            assert (await child.step(1)).observation == (await env.step(1)).observation
            await child.close()

    asyncio.run(run())


def test_a_task_with_a_private_part_is_given_to_the_children(backend: str) -> None:
    task = ew.Task("mine", data={"prompt": "guess"}, private={"answer": 4})
    with ew.make(Guess, backend=backend, forkable=True) as env:
        env.reset(task=task)
        env.step(1)
        (child,) = env.fork()

        assert child.step(4).reward == 1.0
        assert child.reset().task_id is None
        child.close()


class Guess(ew.Environment):
    """The answer is in the private part of the task."""

    def reset(self, *, task: ew.Task | None = None) -> tuple[str, dict[str, Any]]:
        self._answer = None if task is None else task.private["answer"]
        return "guess", {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "no", float(action == self._answer), action == self._answer, False, {}


@pytest.mark.parametrize("name", ["deepcopy", "replay", "deepcopy, logged"])
def test_a_recorded_child_knows_its_parent_and_is_replayed(name: str, tmp_path: Path) -> None:
    cls, forkable = WALKS[name]
    with ew.make(cls, record=tmp_path, forkable=forkable) as env:
        parent = env.reset(seed=3).episode_id
        env.step(1)
        env.step(1)
        (child,) = env.fork()
        child.step(2)
        while not child.step(2).done:
            pass
        child.close()

    recording = ew.load(tmp_path)
    (recorded,) = [one for one in recording if one.parent is not None]

    assert recorded.parent == ew.EpisodeParent(parent, 2)
    assert recorded.inherited == [1, 1]
    assert recorded.steps[0].step_index == 3
    assert recorded.seed == 3
    report = ew.replay(tmp_path, env=cls, episode=recorded.episode_id)
    assert [one.status for one in report.episodes] == ["equal"]


def test_large_observations_are_compared_by_their_digests() -> None:
    with ew.make(Pictures, forkable=True) as env:
        env.reset(seed=1)
        env.step(1)
        (child,) = env.fork()

        np.testing.assert_equal(child.step(1).observation, env.step(1).observation)
        child.close()


class Pictures(ew.Environment):
    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        self._rng = np.random.default_rng(seed)
        return self._rng.random((64, 64)), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._rng.random((64, 64)), 0.0, False, False, {}


@pytest.mark.slow  # starts worker processes
def test_a_lost_worker_takes_its_snapshots_along() -> None:
    with ew.make(Deadly, backend="process") as env:
        env.reset(seed=1)
        point = env.snapshot()
        (child,) = env.fork()
        assert env.step(-1).end.reason == "lost"  # type: ignore[union-attr]

        with pytest.raises(ForkError, match="not kept here"):
            env.restore(point)
        assert child.step(1).end.reason == "lost"  # type: ignore[union-attr]
        env.reset(seed=2)
        child.reset(seed=2)
        assert child.step(1).observation == env.step(1).observation
        child.close()


class Deadly(SnapshotWalk):
    def step(self, action: int) -> Any:
        if action < 0:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def test_wrappers_are_part_of_the_state() -> None:
    def make() -> ew.Environment:
        return ew.EpisodeStatistics(CopyableWalk())

    with ew.make(make) as env:
        env.reset(seed=3)
        env.step(2)
        (child,) = env.fork()
        ends: list[Callable[[], Any]] = [env.step, child.step]  # type: ignore[list-item]
        infos = []
        for step in ends:
            result = step(2)  # type: ignore[call-arg]
            while not result.done:
                result = step(2)  # type: ignore[call-arg]
            infos.append(result.info["episode"])

        assert infos[0]["return"] == infos[1]["return"]
        assert infos[0]["length"] == infos[1]["length"]
        child.close()


class Board:
    """A part of an environment, which refers to it."""

    def __init__(self, env: Any) -> None:
        self.env = env


class SelfReferring(ew.Environment):
    """Keeps a bound method of its own, and a part that refers to it."""

    copyable = True

    def __init__(self) -> None:
        self._moves = {1: self._move}
        self._board = Board(self)
        self.x = 0

    def _move(self) -> None:
        self._board.env.x += 1

    def reset(self) -> tuple[dict[str, int], dict[str, Any]]:
        self.x = 0
        return {"x": 0}, {}

    def step(self, action: int) -> tuple[dict[str, int], float, bool, bool, dict[str, Any]]:
        self._moves[action]()
        return {"x": self.x}, 0.0, False, False, {}


class Shove(ew.Wrapper):
    """A wrapper that keeps the environment inside under a name of its own."""

    def __init__(self, env: SelfReferring) -> None:
        super().__init__(env)
        self.core = env

    def before_step(self, action: int) -> int:
        self.core.x += 10
        return action


@pytest.mark.parametrize(
    ("made", "step"), [(SelfReferring, 1), (lambda: Shove(SelfReferring()), 11)]
)
def test_what_refers_to_the_environment_refers_to_the_child(made: Any, step: int) -> None:
    with ew.make(made) as env:
        env.reset()
        env.step(1)

        (child,) = env.fork()

        with child:
            seen = [child.step(1).observation["x"] for _ in range(2)]
            assert [*seen, env.step(1).observation["x"]] == [2 * step, 3 * step, 2 * step]


class Slotted(SelfReferring):
    __slots__ = ("hidden",)


def test_slots_are_refused() -> None:
    with ew.make(Slotted) as env:
        env.reset()

        with pytest.raises(ForkError, match="__slots__"):
            env.snapshot()


class Tasked(ew.Environment):
    copyable = True

    def __init__(self) -> None:
        self.tasks = ew.Tasks({"train": [ew.Task("a", private={"answer": 1})]})

    def reset(self, *, task: ew.Task) -> tuple[int, dict[str, Any]]:
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return id(self.tasks), 0.0, False, False, {}


def test_tasks_are_shared_by_copies() -> None:
    with ew.make(Tasked) as env:
        env.reset()
        point, before = env.snapshot(), env.step(1).observation

        env.restore(point)

        assert env.step(1).observation == before


OTHER_WAYS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"backend": "process"}),
    ({"backend": "process"}, {}),
    ({"forkable": True}, {}),
]


@pytest.mark.parametrize(("first", "second"), OTHER_WAYS)
def test_a_snapshot_of_another_way_to_make_it_is_refused(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    with ew.make(CopyableWalk, **first) as env, ew.make(CopyableWalk, **second) as other:
        for one in (env, other):
            one.reset(seed=1)

        with pytest.raises(ForkError, match="`backend`, `record` or `forkable`"):
            other.restore(env.snapshot())

        assert other.step(1).step_index == 1


def test_a_replay_keeps_the_stream_of_seeds() -> None:
    seeds = []
    for cls, forkable in ((CopyableWalk, False), (Walk, True)):
        with ew.make(cls, forkable=forkable) as env:
            env.reset(seed=7)
            point = env.snapshot()
            env.reset()
            env.restore(point)
            seeds.append(env.reset().info["seed"])

    assert seeds[0] == seeds[1]


class Hidden(ew.Environment):
    """Shows nothing of what it was given."""

    def reset(self, *, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        self._given: list[Any] = [options]
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self._given.append(action)
        return 0, 0.0, False, False, {}

    @property
    def state(self) -> ew.State:
        return ew.State(episode_id=repr(self._given))


def test_actions_and_options_are_played_again_as_they_were() -> None:
    with ew.make(Hidden, forkable=True) as env:
        env.reset(options={"size": (3, 4)})
        action = [(1, 0)]
        env.step(action)
        action.append((2, 0))

        (child,) = env.fork()

        with child:
            assert child.state().episode_id == "[{'size': (3, 4)}, [(1, 0)]]"


class Caller(ew.Environment):
    """Calls a tool at the start and in each step, with an id of its own each time."""

    def __init__(self, asks: Callable[[], int] = lambda: 1) -> None:
        self._asks = asks

    def _call(self) -> None:
        self.emit(ew.ToolCallRequest(str(random.SystemRandom().random()), "t", {"q": self._asks()}))

    def reset(self) -> tuple[int, dict[str, Any]]:
        self._sum = 0
        self._call()
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self._call()
        return self._sum, 0.0, False, False, {}

    def answer(self, result: ew.ToolResult) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self._sum += result.value
        return self._sum, 0.0, False, False, {}


def answer(env: ew.Env, result: Any, value: int) -> Any:
    return env.step(ew.ToolResult(result.tool_calls[0].call_id, value)).observation


def test_forks_of_forks_answer_the_tool_calls_that_are_played_again() -> None:
    with ew.make(Caller, forkable=True) as env:
        answer(env, env.reset(), 1)
        env.step(1)
        (child,) = env.fork()
        with child:
            answer(child, child.restore(child.snapshot()), 10)

            (grandchild,) = child.fork()

            with grandchild:
                assert answer(grandchild, grandchild.step(1), 100) == 111


def test_a_tool_call_that_asks_something_else_is_a_difference() -> None:
    numbers = iter(range(9))
    with ew.make(lambda: Caller(lambda: next(numbers)), forkable=True) as env:
        answer(env, env.reset(), 1)

        with pytest.raises(ForkError, match=r"step 0, tool_calls\[0\].arguments.q: recorded 0"):
            env.fork()


class Turns(ew.MultiAgentEnvironment):
    possible_agents = ("a", "b")
    numbers = iter("ab")

    def reset(self) -> tuple[dict[str, int], dict[str, Any]]:
        self._turn = next(self.numbers)
        return {"a": 0, "b": 0}, {}

    def to_act(self) -> list[str]:
        return [self._turn]

    def step(self, action: dict[str, int]) -> Any:
        raise NotImplementedError


def test_another_agent_that_must_act_is_a_difference() -> None:
    with ew.make(Turns, forkable=True) as env:
        env.reset()

        with pytest.raises(ForkError, match=r"step 0, needs: recorded \['a'\], replayed \['b'\]"):
            env.fork()


def test_an_episode_that_goes_on_after_a_refused_restore_is_recorded(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    with (
        ew.make(CopyableWalk, backend="process", record=here) as env,
        ew.make(CopyableWalk, backend="process", record=there) as other,
    ):
        env.reset(seed=1)
        other.reset(seed=1)
        with pytest.raises(ForkError, match="not kept here"):
            env.restore(other.snapshot())
        env.step(1)

    (episode,) = ew.load(here)
    assert episode.length == 1


class Screen(Walk):
    """Shows a large picture among other things."""

    def step(self, action: int) -> Any:
        shown, *rest = super().step(action)
        return {**shown, "screen": np.full(100_000, self._x)}, *rest


def test_large_parts_of_observations_are_not_kept() -> None:
    tracemalloc.start()
    try:
        with ew.make(Screen, forkable=True) as env:
            env.reset(seed=1)
            for _ in range(5):
                env.step(0)
            kept = tracemalloc.get_traced_memory()[0]
            (child,) = env.fork()
            with child:
                assert child.step(0).step_index == 6
    finally:
        tracemalloc.stop()

    assert kept < 4_000_000  # two screens, which the session and this hold


def test_a_child_whose_parent_is_recorded_elsewhere_is_loaded_and_not_replayed(
    tmp_path: Path,
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    with ew.make(CopyableWalk, record=here) as env, ew.make(CopyableWalk, record=there) as other:
        env.reset(seed=1)
        env.step(1)
        other.restore(env.snapshot())
        other.step(1)

    (episode,) = ew.load(there)
    assert [one.step_index for one in episode.steps] == [2]
    (replayed,) = ew.replay(there, env=CopyableWalk).not_replayed
    assert "forked from" in str(replayed.reason)


@pytest.mark.slow  # starts a worker process, or a server
@pytest.mark.parametrize("backend", ["process", "http"])
def test_a_snapshot_elsewhere_is_dropped_with_the_next_one(backend: str) -> None:
    with ew.make(CountsSnapshots, backend=backend) as env:
        env.reset()
        for _ in range(3):
            kept = env.snapshot()
            del kept
        children = env.fork(2)
        last = env.snapshot()

        assert env.step(0).observation == {"snapshots": 1}  # `last`; the one of fork() is dropped

        env.restore(last)
        for child in children:
            child.close()
