"""`pool(durable=True)`: episodes are brought back after a loss, or say why they were not."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from environments.tasks import Walk
from environments.tasks import forward as step_by_one
from environments.walks import AskingWalk, Dying, LongWalk, UndeterministicWalk, UnrepeatableWalk
from processes import descendants
from servers import process_serving

import envweave as ew
from envweave.errors import OptionError
from envweave.rollouts.progress import RolloutProgress

TASKS = ["walk-0", "walk-1", "walk-2"]


def forward(result: ew.StepResult[Any]) -> Any:
    """Walk on; what a step does depends on the observation."""
    if result.tool_calls:
        return ew.ToolResult(result.tool_calls[0].call_id, 2)
    return 1 if result.observation["x"] < 3 else 2


def content(episodes: list[ew.Episode]) -> list[Any]:
    """Everything in episodes that is the same in every run."""
    ordered = sorted(episodes, key=lambda one: (one.group, one.member))
    return [
        (
            one.task_id,
            one.seed,
            one.observations,
            [(step.action, step.reward, step.info, step.step_index) for step in one.steps],
            one.reward,
            one.end,
            one.attempts,
        )
        for one in ordered
    ]


def undisturbed(env: type[ew.Environment], episodes: int, group_size: int = 1) -> list[Any]:
    with ew.pool(env, size=2) as pool:
        run = ew.rollout(pool, forward, episodes=episodes, seed=5, group_size=group_size)
        return content(run.run())


@pytest.fixture
def children() -> Callable[[], list[int]]:
    """The worker processes and servers that the test has started, the oldest first."""
    others = {one.pid for one in descendants()}

    def ours() -> list[int]:
        found = [one for one in descendants() if one.pid not in others and not one.is_dead]
        return [one.pid for one in sorted(found, key=lambda one: (one.started, one.pid))]

    return ours


async def disturbed(
    pool: ew.Pool, run: ew.Rollout, every: int, kill: Callable[[], None]
) -> list[ew.Episode]:
    """Play a rollout, and kill something each time some more episodes have finished."""
    episodes: list[ew.Episode] = []
    async with pool:
        async for episode in run:
            episodes.append(episode)
            if len(episodes) % every == 0:
                kill()
    return episodes


@pytest.mark.slow  # starts worker processes, and kills them
def test_episodes_go_on_when_their_workers_are_killed(children: Callable[[], list[int]]) -> None:
    rng = random.Random(1)
    pool = ew.pool(LongWalk, size=6, backend="process", workers=2, durable=True)
    run = ew.rollout(pool, forward, episodes=48, seed=5, on_fault="raise")

    episodes = asyncio.run(
        disturbed(pool, run, 4, lambda: os.kill(rng.choice(children()[:2]), signal.SIGKILL))
    )

    assert content(episodes) == undisturbed(LongWalk, 48)
    assert run.restored >= 5
    assert sum(one.restored for one in episodes) == run.restored
    assert run.fault_counts == {}
    assert children() == []


@pytest.mark.slow  # starts servers, and kills them
def test_episodes_go_on_when_their_server_is_killed(children: Callable[[], list[int]]) -> None:
    pool = ew.pool(LongWalk, size=4, backend="http", durable=True)
    run = ew.rollout(pool, forward, episodes=12, seed=5, on_fault="raise")

    def kill() -> None:
        if running := children():
            os.kill(running[0], signal.SIGKILL)

    episodes = asyncio.run(disturbed(pool, run, 4, kill))

    assert content(episodes) == undisturbed(LongWalk, 12)
    assert run.restored >= 1


@pytest.mark.slow  # starts servers, and kills one
def test_episodes_go_on_at_a_server_that_is_started_again() -> None:
    env_id = "pkg://environments.walks:LongWalk"

    async def scenario() -> tuple[list[ew.Episode], ew.Rollout]:
        with process_serving(env_id) as first:
            pool = ew.pool(LongWalk, base_url=first.url, size=2, durable=True)
            run = ew.rollout(pool, forward, episodes=4, seed=5, on_fault="raise")
            stream = aiter(run)
            async with pool:
                episodes = [await anext(stream)]
                first.process.kill()
                first.process.wait()
                with process_serving(env_id, port=first.port):
                    episodes += [one async for one in stream]
            return episodes, run

    episodes, run = asyncio.run(scenario())

    assert content(episodes) == undisturbed(LongWalk, 4)
    assert run.restored >= 1


def test_a_lost_step_is_taken_once(lossy: Any) -> None:
    with ew.pool(Walk, size=1) as pool:
        expected = content(ew.rollout(pool, step_by_one, tasks=["a"], seed=8).run())
    lossy.lost_calls.append("step")

    with ew.pool(Walk, size=1, backend="lossy", durable=True) as pool:
        run = ew.rollout(pool, step_by_one, tasks=["a"], seed=8)
        episodes = run.run()

    assert content(episodes) == expected
    assert (episodes[0].restored, run.restored, run.fault_counts) == (1, 1, {})


def test_a_lost_reset_is_tried_again(lossy: Any) -> None:
    lossy.lost_calls.append("reset")

    with ew.pool(Walk, size=1, backend="lossy", durable=True) as pool:
        run = ew.rollout(pool, step_by_one, tasks=["a"], seed=8)
        (episode,) = run.run()

    assert (episode.usable, episode.attempts, run.fault_counts) == (True, 1, {})


def test_an_action_whose_result_is_lost_three_times_is_given_up(lossy: Any) -> None:
    lossy.lost_calls += ["step", "step", "step"]

    with ew.pool(Walk, size=1, backend="lossy", durable=True) as pool:
        run = ew.rollout(pool, step_by_one, tasks=["a", "b"], seed=8, on_fault="keep")
        lost, good = run.run()

    assert (lost.end.reason, lost.end.blame, good.usable) == ("lost", "infrastructure", True)
    assert "The action was taken 3 times, and its result was lost each" in str(lost.end.cause)
    assert run.restored == 0


def test_an_episode_that_is_lost_in_every_replay_is_given_up(lossy: Any) -> None:
    def agent(result: ew.StepResult[Any]) -> Any:
        lossy.lost_calls[:] = ["step", *["reset"] * 7]
        return step_by_one(result)

    with ew.pool(Walk, size=1, backend="lossy", durable=True) as pool:
        run = ew.rollout(pool, agent, tasks=["a"], seed=8, on_fault="keep", min_usable=0)
        (lost,) = run.run()

    assert "It was lost 8 times in a row" in str(lost.end.cause)


@pytest.mark.slow  # starts worker processes, which kill themselves
def test_an_action_that_always_kills_its_worker_ends_the_episode_as_lost() -> None:
    with ew.pool(Dying, size=1, backend="process", durable=True) as pool:
        run = ew.rollout(pool, forward, tasks=TASKS[:1], on_fault="keep", min_usable=0)
        (episode,) = run.run()

    assert episode.end.reason == "lost"
    assert "The action was taken 3 times" in str(episode.end.cause)
    assert [step.step_index for step in episode.steps] == [1, 2, 3, 4]


class Killer:
    """An agent that kills the workers once, in mid-episode."""

    def __init__(self, children: Callable[[], list[int]]) -> None:
        self.children = children
        self.has_killed = False

    def __call__(self, result: ew.StepResult[Any]) -> Any:
        if result.step_index == 3 and not result.tool_calls and not self.has_killed:
            self.has_killed = True
            for pid in self.children():
                os.kill(pid, signal.SIGKILL)
        return forward(result)


@pytest.mark.slow  # starts worker processes, and kills them
def test_what_cannot_be_repeated_ends_as_lost_with_the_first_difference(
    children: Callable[[], list[int]],
) -> None:
    with ew.pool(UnrepeatableWalk, size=1, backend="process", durable=True) as pool:
        agent = Killer(children)
        run = ew.rollout(pool, agent, tasks=TASKS[:1], on_fault="keep", min_usable=0)
        (episode,) = run.run()

    assert (episode.end.reason, episode.end.blame) == ("lost", "infrastructure")
    assert "SIGKILL" in str(episode.end.cause)
    assert "first difference is at step 1, observation.x: recorded" in str(episode.end.cause)
    assert [step.step_index for step in episode.steps] == [1, 2, 3, 4]
    assert run.restored == 0


@pytest.mark.slow  # starts worker processes, and kills them
def test_an_open_tool_call_is_answered_after_the_loss(children: Callable[[], list[int]]) -> None:
    class AtCall(Killer):
        def __call__(self, result: ew.StepResult[Any]) -> Any:
            if result.step_index == 2 and result.tool_calls and not self.has_killed:
                self.has_killed = True
                os.kill(self.children()[0], signal.SIGKILL)
            return forward(result)

    with ew.pool(AskingWalk, size=1, backend="process", durable=True) as pool:
        run = ew.rollout(pool, AtCall(children), tasks=TASKS[1:2], seed=5)
        (episode,) = run.run()
    with ew.pool(AskingWalk, size=1) as pool:
        (expected,) = ew.rollout(pool, forward, tasks=TASKS[1:2], seed=5).run()

    assert run.restored == 1
    assert (episode.observations, episode.reward) == (expected.observations, expected.reward)


@pytest.mark.slow  # starts worker processes, and kills them
def test_the_private_part_of_a_given_task_is_used_again(children: Callable[[], list[int]]) -> None:
    task = ew.Task("mine", private={"pay": 7})
    with ew.pool(LongWalk, size=1) as pool:
        expected = content(ew.rollout(pool, forward, tasks=[task], seed=5).run())

    with ew.pool(LongWalk, size=1, backend="process", durable=True) as pool:
        run = ew.rollout(pool, Killer(children), tasks=[task], seed=5)
        episodes = run.run()

    assert content(episodes) == expected
    assert run.restored == 1


class Slow(LongWalk):
    def step(self, action: int) -> Any:
        while self.taken == 2:
            pass
        return super().step(action)


@pytest.mark.slow  # waits for a deadline
def test_a_timeout_is_no_loss() -> None:
    with ew.pool(Slow, size=1, backend="process", timeout_s=0.2, durable=True) as pool:
        run = ew.rollout(pool, forward, tasks=TASKS[:1], on_fault="keep", min_usable=0)
        (episode,) = run.run()

    assert (episode.end.reason, episode.end.blame) == ("timeout", "environment")
    assert run.restored == 0


@pytest.mark.slow  # starts worker processes, and kills them
def test_a_recording_counts_what_was_brought_back(
    children: Callable[[], list[int]], tmp_path: Path
) -> None:
    with ew.pool(LongWalk, size=1, backend="process", durable=True, record=tmp_path) as pool:
        (episode,) = ew.rollout(pool, Killer(children), tasks=TASKS[1:2], seed=5).run()

    (recorded,) = ew.load(tmp_path)

    assert (recorded.restored, episode.restored) == (1, 1)
    assert recorded.observations == episode.observations
    assert recorded.reward == episode.reward
    assert ew.replay(tmp_path, against="inproc").is_equal


def test_an_environment_that_is_not_deterministic_is_refused() -> None:
    with pytest.raises(OptionError, match=r"UndeterministicWalk is not deterministic.*Leave dur"):
        ew.pool(UndeterministicWalk, size=1, durable=True)


def test_progress_shows_what_was_brought_back() -> None:
    assert "faults 0  restored 2" in str(RolloutProgress(0.0, restored=2))
    assert "restored" not in str(RolloutProgress(0.0))
