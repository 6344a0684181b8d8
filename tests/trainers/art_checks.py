"""Run by `test_text_trainers.py` in a virtual environment with ART."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import art
from fake_services import chat_server
from openai.types.chat.chat_completion import Choice

import envweave as ew
from envweave.trainers.art import art_rollout


class FailsAtSeedOne(ew.Environment):
    """Fails in the episode of seed 1."""

    def reset(self, *, seed: int | None = None) -> str:
        self.seed = seed
        return f"seed {seed}"

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.seed == 1:
            raise RuntimeError("as requested")
        return "done", 1.0, True, False, {}


def gathered(env_id: Any, scenarios: list[Any], reply: Any, **options: Any) -> Any:
    """Play a group as ART does, with a model behind a URL."""
    rollout = art_rollout(env_id, **options)

    async def gather(base_url: str) -> Any:
        model = art.Model(
            name="tiny", project="test", inference_base_url=base_url, inference_api_key="sk-test"
        )
        groups = [art.TrajectoryGroup(rollout(model, one) for one in scenarios)]
        return await art.gather_trajectory_groups(groups, max_exceptions=len(scenarios))

    with chat_server(reply) as server:
        (group,) = asyncio.run(gather(server.base_url))
    return group


def test_a_group_of_rollouts_becomes_trajectories_with_the_models_own_choices() -> None:
    def reply(messages: list[dict[str, str]]) -> str:
        return "what?" if len(messages) == 2 else "2"

    group = gathered("counter-v0", [{"seed": 7}] * 4, reply, done_at=4)

    assert [one.reward for one in group.trajectories] == [4.0] * 4
    trajectory = group.trajectories[0]
    choices = [one for one in trajectory.messages_and_choices if isinstance(one, Choice)]
    assert [one.message.content for one in choices] == ["what?", "2", "2"]
    assert [one["role"] for one in trajectory.messages()] == [
        *("system", "user", "assistant", "user", "assistant", "user", "assistant")
    ]
    assert trajectory.metrics["turns"] == 3
    assert trajectory.metrics["invalid_replies"] == 1


def test_a_failed_episode_is_an_exception_of_the_group_and_no_trajectory() -> None:
    group = gathered(FailsAtSeedOne, [0, 1, 2], lambda _: "x")

    assert [one.reward for one in group.trajectories] == [1.0, 1.0]
    (exception,) = group.exceptions
    assert "EnvironmentFailure" in exception.type


def test_its_episodes_can_be_recorded(tmp_path: Path) -> None:
    gathered("counter-v0", [{"seed": 7}], lambda _: "3", record=tmp_path)

    assert [(one.seed, one.reward) for one in ew.load(tmp_path).summaries] == [(7, 3.0)]


def test_a_limit_of_turns_truncates() -> None:
    group = gathered("counter-v0", [None], lambda _: "1", done_at=9, max_turns=2)

    (trajectory,) = group.trajectories
    assert (trajectory.reward, trajectory.metrics["truncated"]) == (2.0, True)
