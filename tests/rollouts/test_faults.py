"""Episodes that fail, and not by the agent: counted, and replaced, kept or raised."""

from __future__ import annotations

import asyncio
import math

import pytest
from environments.tasks import Seen, Walk, counted, flaky, forward

import envweave as ew
from envweave.errors import RolloutFailedError
from envweave.testing import ScriptedAgents, ScriptedEnvironment


def once(where: str, *tasks: str):
    """Let the first try at these tasks fail."""
    return lambda task, before: where if task in tasks and before == 0 else None


@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_fault_is_replaced_by_another_run_of_the_same_task_and_seed(where):
    kind, log = flaky(once(where, "b"))

    with ew.pool(kind, size=2) as pool:
        rollout = ew.rollout(pool, forward, tasks=["a", "b", "c"], seed=1)
        episodes = rollout.run()

    assert [(e.task_id, e.usable, e.attempts) for e in episodes] == [
        ("a", True, 1),
        ("b", True, 2),
        ("c", True, 1),
    ]
    seeds = {entry.split()[2] for entry in log if entry.split()[1] == "b"}
    assert seeds == {str(episodes[1].seed)}
    assert rollout.fault_counts == {"error": 1}


def test_a_fault_is_recorded_with_its_cause():
    kind, _ = flaky(once("step", "b"))

    with ew.pool(kind, size=1) as pool:
        rollout = ew.rollout(pool, forward, tasks=["a", "b"], seed=1)
        episodes = rollout.run()

    (fault,) = rollout.faults
    assert (fault.reason, fault.blame, fault.task_id) == ("error", "environment", "b")
    assert "ValueError: the simulator broke" in fault.cause
    assert (fault.group, fault.member, fault.seed) == (1, 0, episodes[1].seed)
    assert fault.replaced
    assert fault.episode_id != episodes[1].episode_id


def test_a_faulty_episode_is_played_again_in_another_environment(lossy):
    lossy.lost_calls.append("step")

    async def in_turn(result: ew.StepResult) -> dict:
        await asyncio.sleep(0)  # so that both environments are in use
        return {"by": 1}

    with ew.pool(Walk, size=2, backend="lossy") as pool:
        rollout = ew.rollout(pool, in_turn, tasks=["a", "b"] + ["c"] * 20)
        rollout.run()

    (fault,) = rollout.faults
    failed, replaced = (number for number, task in lossy.begun if task == fault.task_id)
    assert failed != replaced


def test_an_episode_that_always_fails_is_not_usable():
    kind, _ = flaky(lambda task, before: "step" if task == "b" else None)

    with ew.pool(kind, size=2) as pool:
        rollout = ew.rollout(pool, forward, tasks=["a", "b", "c"])
        episodes = rollout.run()

    assert [episode.usable for episode in episodes] == [True, False, True]
    assert math.isnan(episodes[1].reward)
    assert episodes[1].attempts == 3
    assert rollout.fault_counts == {"error": 3}
    assert [fault.replaced for fault in rollout.faults] == [True, True, False]


def test_an_episode_is_played_as_often_as_the_caller_allows():
    kind, _ = flaky(lambda task, before: "step" if before < 4 else None)

    with ew.pool(kind, size=1) as pool:
        rollout = ew.rollout(pool, forward, tasks=["a"], attempts=5)
        (episode,) = rollout.run()

    assert (episode.usable, episode.attempts) == (True, 5)
    assert rollout.fault_counts == {"error": 4}


def test_an_episode_whose_reset_fails_has_no_steps():
    kind, _ = flaky(lambda task, before: "reset" if task == "b" else None)

    with ew.pool(kind, size=1) as pool:
        _, bad = ew.rollout(pool, forward, tasks=["a", "b"]).run()

    assert (bad.end.reason, bad.end.blame) == ("error", "environment")
    assert "the disk is full" in bad.end.cause
    assert (bad.steps, bad.length, bad.task_id) == ([], 0, "b")
    assert math.isnan(bad.reward)
    assert not bad.usable


def test_no_more_faults_are_replaced_than_allowed():
    kind, _ = flaky(lambda task, before: "step" if before == 0 else None)

    with ew.pool(kind, size=1) as pool:
        rollout = ew.rollout(pool, forward, tasks=list("abcd"), max_faults=2)
        episodes = rollout.run()

    assert [episode.usable for episode in episodes] == [True, True, False, False]
    assert rollout.fault_counts == {"error": 4}


def test_faults_are_returned_if_none_may_be_replaced():
    kind, _ = flaky(once("step", "a"))

    with ew.pool(kind, size=1) as pool:
        episodes = ew.rollout(pool, forward, tasks=list("ab"), max_faults=0).run()

    assert [episode.usable for episode in episodes] == [False, True]


def test_faults_may_be_kept():
    kind, log = flaky(lambda task, before: "step")

    with ew.pool(kind, size=2) as pool:
        rollout = ew.rollout(pool, forward, tasks=list("ab"), on_fault="keep")
        episodes = rollout.run()

    assert [episode.usable for episode in episodes] == [False, False]
    assert len(log) == 2
    assert rollout.fault_counts == {"error": 2}


def test_faults_may_be_raised():
    kind, _ = flaky(lambda task, before: "step" if task == "b" else None)

    with (
        ew.pool(kind, size=1) as pool,
        pytest.raises(
            RolloutFailedError, match=r"error, blame environment, task 'b'.*simulator broke"
        ),
    ):
        ew.rollout(pool, forward, tasks=list("abc"), on_fault="raise").run()


def test_a_rollout_without_a_working_environment_raises():
    kind, log = flaky(lambda task, before: "reset")

    with (
        ew.pool(kind, size=2) as pool,
        pytest.raises(RolloutFailedError, match=r"Not one episode.*6 faults.*the disk is full"),
    ):
        ew.rollout(pool, forward, tasks=list("ab")).run()

    assert len(log) == 6


def test_retries_end_if_every_episode_fails():
    kind, log = flaky(lambda task, before: "step")

    async def scenario() -> None:
        async with ew.pool(kind, size=4) as pool:
            async for episode in ew.rollout(pool, forward, episodes=1_000_000):
                assert not episode.usable

    with pytest.raises(RolloutFailedError, match="Not one episode"):
        asyncio.run(scenario())

    assert len(log) < 100


def test_a_failure_caused_by_the_agent_is_not_a_fault():
    kind, log = flaky(lambda task, before: "agent")

    with ew.pool(kind, size=1) as pool:
        rollout = ew.rollout(pool, forward, tasks=["a"], on_fault="raise")
        (episode,) = rollout.run()

    assert (episode.reward, episode.usable, len(log)) == (-1.0, True, 1)
    assert rollout.faults == []


def test_rewards_before_a_failure_do_not_count():
    script = [{"reward": 2.0, "info": {"reward_parts": {"part": 2.0}}}, {"raise": "broke"}]

    with ew.pool(ScriptedEnvironment, size=1, script=script) as pool:
        (episode,) = ew.rollout(pool, lambda result: {}, episodes=1, on_fault="keep").run()

    assert math.isnan(episode.reward)
    assert episode.reward_parts == {}
    assert episode.steps[0].reward == 2.0


def test_rewards_of_an_agent_that_left_before_a_failure_do_not_count():
    script = [{"rewards": {"a": 1.0, "b": 1.0}, "leave": ["a"]}, {"raise": "broke"}]

    with ew.pool(ScriptedAgents, size=1, agents=["a", "b", "c"], script=script) as pool:
        agent = lambda result: {need.agent_id: {} for need in result.needs}  # noqa: E731
        (episode,) = ew.rollout(pool, agent, episodes=1, on_fault="keep").run()

    assert set(episode.reward) == {"a", "b", "c"}
    assert all(math.isnan(reward) for reward in episode.reward.values())


def test_replacing_faults_does_not_change_the_episodes():
    steady, _ = flaky(lambda task, before: None)
    shaky, _ = flaky(lambda task, before: ("step", "reset", None)[min(before, 2)])

    def rewards(kind) -> list[tuple]:
        with ew.pool(kind, size=3) as pool:
            episodes = ew.rollout(pool, forward, tasks=list("abcdef"), seed=4).run()
        return [(e.task_id, e.seed, e.reward, e.usable) for e in episodes]

    assert rewards(shaky) == rewards(steady)


@pytest.mark.parametrize("call", ["reset", "step"])
def test_a_call_that_is_lost_is_a_fault_of_the_infrastructure(call, lossy):
    kind = counted()

    with ew.pool(kind, size=1, backend="lossy") as pool:
        lossy.lost_calls.append(call)
        rollout = ew.rollout(pool, forward, episodes=2)
        episodes = rollout.run()

    assert [episode.usable for episode in episodes] == [True, True]
    (fault,) = rollout.faults
    assert (fault.reason, fault.blame) == ("lost", "infrastructure")
    assert "the line went dead" in fault.cause
    assert kind.log["made"] == kind.log["closed"]


def test_after_a_reset_that_is_lost_there_is_a_new_connection(lossy):
    kind = counted()

    with ew.pool(kind, size=1, backend="lossy") as pool:
        lossy.lost_calls.append("reset")
        ew.rollout(pool, forward, episodes=2).run()

    assert kind.log == {"made": 2, "closed": 2}


def test_an_environment_that_cancels_itself_is_a_fault():
    class Cancels(Walk):
        tries = 0

        async def step(self, action) -> Seen:
            Cancels.tries += 1
            if Cancels.tries == 1:
                raise asyncio.CancelledError
            return Seen(1, reward=1.0, done=True)

    with ew.pool(Cancels, size=1) as pool:
        rollout = ew.rollout(pool, forward, episodes=1)
        (episode,) = rollout.run()

    assert episode.usable
    assert len(rollout.faults) == 1


def test_a_deadline_that_passes_is_a_fault_with_its_own_reason():
    class Hangs(ew.Environment):
        tries = 0

        async def reset(self, *, seed: int | None = None) -> Seen:
            Hangs.tries += 1
            if Hangs.tries == 1:
                await asyncio.Event().wait()
            return Seen(0)

        async def step(self, action: dict) -> Seen:
            return Seen(1, reward=1.0, done=True)

    with ew.pool(Hangs, size=1, timeout_s=0.05) as pool:
        rollout = ew.rollout(pool, lambda result: {}, episodes=1)
        (episode,) = rollout.run()

    assert episode.usable
    assert rollout.fault_counts == {"timeout": 1}
