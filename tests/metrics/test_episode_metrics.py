"""The figures of a batch of episodes."""

from __future__ import annotations

import pytest

import envweave as ew
from envweave.metrics import episode_metrics


class Shaky(ew.Environment):
    """Every other episode fails; the others earn 2 in two parts."""

    played = 0

    def reset(self):
        Shaky.played += 1
        return 0, {}

    def step(self, action: int):
        if Shaky.played % 2 == 0:
            raise OSError("disk full")
        info = {"reward_parts": {"goal": 3.0, "cost": -1.0}, "metrics": {"success": 1.0}}
        return 0, 2.0, True, False, info


def act(result):
    return 0


def test_a_failure_is_counted_by_its_owner_and_never_as_a_reward():
    Shaky.played = 0
    with ew.pool(Shaky, size=1) as pool:
        episodes = ew.rollout(pool, act, episodes=4, on_fault="keep").run()

    figures = episode_metrics(episodes)

    assert figures.pop("duration_s/mean") >= 0
    assert figures == {
        "episodes": 4,
        "usable": 0.5,
        "lost/environment": 2,
        "lost/infrastructure": 0,
        "retried": 0.0,
        "reward/mean": 2.0,
        "reward/std": 0.0,
        "reward/min": 2.0,
        "reward/max": 2.0,
        "parts/goal": 3.0,
        "parts/cost": -1.0,
        "metrics/success": 1.0,
        "length/mean": 1.0,
        "length/max": 1,
        "truncated": 0.0,
    }


def test_several_agents_have_a_mean_each():
    def players(result):
        return {need.agent_id: {"cell": int(need.action_mask.argmax())} for need in result.needs}

    with ew.pool("tictactoe-v0", size=2) as pool:
        episodes = ew.rollout(pool, players, episodes=2).run()

    figures = episode_metrics(episodes)

    assert (figures["reward/x"], figures["reward/o"], figures["reward/mean"]) == (1.0, -1.0, 0.0)
    assert (figures["metrics/x/won"], figures["metrics/o/won"]) == (1.0, 0.0)


def test_of_no_episodes_only_their_number_is_known():
    assert episode_metrics([]) == {"episodes": 0}


@pytest.mark.parametrize("limit", [2, 3])
def test_the_share_that_a_limit_ended_is_known(limit):
    with ew.pool("counter-v0", size=1, done_at=3) as pool:
        rollout = ew.rollout(pool, lambda result: {"delta": 1}, episodes=2, max_steps=limit)
        figures = episode_metrics(rollout.run())

    assert figures["truncated"] == float(limit == 2)
