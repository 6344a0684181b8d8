"""What an episode holds, for one agent, for several, and with tool calls."""

from __future__ import annotations

import asyncio
import pickle

import numpy as np
import pytest
from environments.tasks import Move, Walk, forward

import envweave as ew
from envweave.testing import (
    AsyncScriptedEnvironment,
    ScriptedAgents,
    ScriptedEnvironment,
)


def play(env, agent, *, pool_options=None, **options):
    """Play one episode, and return it."""
    with ew.pool(env, size=1, **(pool_options or {})) as pool:
        (episode,) = ew.rollout(pool, agent, episodes=1, **options).run()
    return episode


def test_a_step_has_the_observation_the_action_and_its_result():
    episode = play("counter-v0", lambda result: {"delta": result.observation.value + 1})

    assert [step.observation.value for step in episode.steps] == [0, 1]
    assert [step.action for step in episode.steps] == [{"delta": 1}, {"delta": 2}]
    assert [step.reward for step in episode.steps] == [1.0, 2.0]
    assert [step.terminated for step in episode.steps] == [False, True]
    assert [step.truncated for step in episode.steps] == [False, False]
    assert [step.step_index for step in episode.steps] == [1, 2]
    assert [seen.value for seen in episode.observations] == [0, 1, 3]


def test_an_episode_records_its_start_and_its_end():
    episode = play(Walk, forward, tasks=["c"], seed=5)

    assert episode.task == ew.Task("c")
    assert episode.task_id == "c"
    assert episode.info == {"seed": episode.seed}
    assert episode.end == ew.EpisodeEnd("terminated")
    assert episode.usable
    assert episode.length == len(episode.steps)
    assert episode.reward == pytest.approx(sum(step.reward for step in episode.steps))
    assert (episode.group, episode.member, episode.attempts) == (0, 0, 1)
    assert episode.duration_s > 0


def test_every_episode_has_an_id_of_its_own_and_the_agent_sees_it():
    seen = set()

    def agent(result: ew.StepResult) -> dict:
        seen.add(result.episode_id)
        return {"by": 1}

    with ew.pool(Walk, size=2) as pool:
        episodes = ew.rollout(pool, agent, episodes=6, group_size=3).run()
        episodes += ew.rollout(pool, agent, episodes=6, group_size=3).run()

    assert len(seen) == 12
    assert {episode.episode_id for episode in episodes} == seen


def test_it_is_the_same_episode_as_with_make():
    episode = play(Walk, forward, tasks=["b"], seed=3)

    with ew.make(Walk) as env:
        result = env.reset(seed=episode.seed, task="b")
        seen = [result.observation]
        while not result.done:
            result = env.step(forward(result))
            seen.append(result.observation)

    assert episode.observations == seen


def test_parts_of_the_reward_are_summed_and_the_last_metrics_kept():
    def entry(a: float, b: float, metric: int) -> dict:
        info = {"reward_parts": {"a": a, "b": b}, "metrics": {"metric": metric}}
        return {"reward": a + b, "info": info}

    script = [entry(1.0, 2.0, 1), {"reward": 0.5}, entry(3.0, 4.0, 2)]

    episode = play(ScriptedEnvironment, lambda result: {}, pool_options={"script": script})

    assert episode.reward == 10.5
    assert episode.reward_parts == {"a": 4.0, "b": 6.0}
    assert episode.metrics == {"metric": 2}


def test_an_unscored_episode_has_no_reward():
    script = [{}, {}]

    episode = play(ScriptedEnvironment, lambda result: {}, pool_options={"script": script})

    assert episode.reward is None
    assert episode.usable


def test_extra_data_of_the_agent_is_kept_beside_its_action():
    received = []

    class Spy(Walk):
        def step(self, action: Move) -> ew.Observation:
            received.append(action)
            return super().step(action)

    episode = play(Spy, lambda result: ew.Decision(Move(2), {"logprob": -0.5}))

    assert {type(step.action) for step in episode.steps} == {Move}
    assert [step.extra for step in episode.steps] == [{"logprob": -0.5}] * episode.length
    assert received == [Move(2)] * episode.length


def test_the_mask_that_an_action_was_chosen_under_is_kept():
    script = [{"info": {"action_mask": [0, 1]}}, {"info": {"action_mask": [1, 1]}}, {}]

    episode = play(ScriptedEnvironment, lambda result: {}, pool_options={"script": script})

    assert [step.action_mask for step in episode.steps] == [None, [0, 1], [1, 1]]


def test_log_events_are_kept():
    script = [{"log": "hello"}, {}]

    episode = play(ScriptedEnvironment, lambda result: {}, pool_options={"script": script})

    assert [step.events for step in episode.steps] == [(ew.LogEvent("hello"),), ()]


def test_an_episode_is_truncated_after_max_steps_and_is_usable():
    episode = play("counter-v0", lambda result: {"delta": 0}, max_steps=4)

    assert (episode.length, episode.end) == (4, ew.EpisodeEnd("truncated"))
    assert [step.truncated for step in episode.steps] == [False, False, False, True]
    assert episode.usable


def test_an_episode_that_ends_with_its_last_allowed_step_is_not_cut():
    episode = play("counter-v0", lambda result: {"delta": 1}, max_steps=3)

    assert episode.end == ew.EpisodeEnd("terminated")
    assert not episode.steps[-1].truncated


def test_a_failure_of_the_agent_is_an_outcome_to_learn_from():
    script = [{"reward": -1.0, "end": ("error", "agent")}]

    episode = play(ScriptedEnvironment, lambda result: {}, pool_options={"script": script})

    assert (episode.end.reason, episode.end.blame) == ("error", "agent")
    assert episode.reward == -1.0
    assert episode.usable


@pytest.mark.parametrize("kind", [ScriptedEnvironment, AsyncScriptedEnvironment])
def test_a_tool_call_is_answered_by_the_agent_and_does_not_count_as_a_step(kind):
    def agent(result: ew.StepResult) -> object:
        if result.tool_calls:
            (call,) = result.tool_calls
            return ew.ToolResult(call.call_id, call.name.upper())
        return {"text": "go"}

    script = [{"reward": 1.0}, {"tool": "search", "reward": 2.0}, {"reward": 4.0}]

    episode = play(kind, agent, pool_options={"script": script}, max_steps=5)

    assert [step.is_answer for step in episode.steps] == [False, False, True, False]
    assert [step.step_index for step in episode.steps] == [1, 2, 2, 3]
    assert episode.steps[2].action == ew.ToolResult("call-2", "SEARCH")
    assert episode.length == 3
    assert episode.reward == 7.5


def test_two_players_by_turns():
    def agent(result: ew.StepResult) -> dict:
        (need,) = result.needs
        return {need.agent_id: {"cell": int(need.action_mask.argmax())}}

    episode = play("tictactoe-v0", agent)

    assert [list(step.action) for step in episode.steps] == [["x"], ["o"]] * 3 + [["x"]]
    assert [list(step.action_mask) for step in episode.steps][:2] == [["x"], ["o"]]
    assert episode.reward == {"x": 1.0, "o": -1.0}
    assert episode.metrics["x"] == {"won": 1.0, "illegal": 0.0}


def test_several_agents_at_once_some_of_whom_leave_early():
    def agent(result: ew.StepResult) -> dict:
        return {n.agent_id: {"take": int(n.agent_id != "farmer_0")} for n in result.needs}

    with ew.pool("harvest-v0", size=2) as pool:
        episodes = ew.rollout(pool, agent, episodes=4, seed=1).run()
        agents = pool.possible_agents

    for episode in episodes:
        assert set(episode.reward) == set(agents) == set(episode.metrics)
        for agent in agents:
            earned = [step.reward[agent] for step in episode.steps if agent in step.reward]
            assert episode.reward[agent] == pytest.approx(sum(earned))
            parts = episode.reward_parts[agent]
            assert sum(parts.values()) == pytest.approx(episode.reward[agent])
        assert episode.metrics["farmer_0"]["starved"]
        assert episode.length > episode.metrics["farmer_0"]["rounds"]


def test_truncating_an_episode_truncates_all_living_agents():
    script = [{"leave": ["a"]}, {}, {}]

    episode = play(
        ScriptedAgents,
        lambda result: {need.agent_id: {} for need in result.needs},
        pool_options={"agents": ["a", "b", "c"], "script": script},
        max_steps=1,
    )

    assert episode.steps[-1].truncated == {"a": False, "b": True, "c": True}


def test_an_action_for_the_wrong_agent_is_refused_by_name():
    with pytest.raises(ew.errors.ActionError, match="not this agent's turn") as caught:
        play("tictactoe-v0", lambda result: {"o": {"cell": 1}})

    assert "Refused in step 1 of episode" in caught.value.__notes__[0]


def test_an_episode_survives_pickling():
    episode = play("lineworld-v0", lambda result: {"move": 1})

    again = pickle.loads(pickle.dumps(episode))

    assert again == episode


def test_an_agent_may_be_async_or_an_object():
    class Agent:
        async def __call__(self, result: ew.StepResult) -> dict:
            await asyncio.sleep(0)
            return {"delta": 3}

    assert play("counter-v0", Agent()).length == 1
    assert play("counter-v0", lambda result: Agent()(result)).length == 1


def test_an_action_is_kept_as_it_was_given_also_from_a_buffer_that_is_filled_again():
    class Echo(ew.Environment):
        def reset(self, *, seed: int | None = None):
            return 0.0, {}

        def step(self, action: np.ndarray):
            return 0.0, float(action[0]), False, False, {}

    buffer = np.zeros(1)

    def agent(result):
        buffer[0] = result.step_index
        return buffer

    with ew.pool(Echo, size=2) as pool:
        episodes = ew.rollout(pool, agent, episodes=2, max_steps=3).run()

    for episode in episodes:
        assert [step.action[0] for step in episode.steps] == [0.0, 1.0, 2.0]
        assert [step.reward for step in episode.steps] == [0.0, 1.0, 2.0]
