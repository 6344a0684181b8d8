"""AReaL's form of an agent workflow: a URL in, a reward out. The package itself needs CUDA."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
from environments.served import FailsOrWaits
from fake_services import chat_server

import envweave as ew
from envweave.errors import EnvironmentFailure, TaskError
from envweave.trainers.areal import ArealAgent


def run(agent: ArealAgent, data: dict[str, Any], model: Any) -> tuple[float, int]:
    """Run it as `OpenAIProxyWorkflow._run_agent` of areal 1.0.4 does."""
    with chat_server(model) as server:
        extra: dict[str, Any] = {
            "base_url": server.base_url,
            "http_client": None,
            "api_key": "sk-test",
        }
        reward = asyncio.run(agent.run(data, **extra))
        return reward, len(server.requests)


def test_an_episode_is_played_against_the_url_and_its_rewards_are_added() -> None:
    agent = ArealAgent("counter-v0", done_at=5, sampling={"temperature": 1.0})

    reward, turns = run(agent, {"seed": 3, "messages": [], "answer": "?"}, lambda _: "2")

    assert type(reward) is float  # AReaL takes nothing else
    assert (reward, turns) == (6.0, 3)


def test_its_episodes_can_be_recorded(tmp_path: Path) -> None:
    run(ArealAgent("counter-v0", record=tmp_path), {"seed": 3}, lambda _: "3")

    assert [(one.seed, one.reward) for one in ew.load(tmp_path).summaries] == [(3, 3.0)]


def test_a_task_of_the_row_is_played() -> None:
    asked: list[Any] = []

    def model(messages: Any) -> str:
        asked.append(messages)
        return "It is #### 72"

    reward, _ = run(ArealAgent("gsm8k-v0", system="Be brief."), {"task_id": "train-0"}, model)

    assert reward == 1.0
    assert asked[0][0] == {"role": "system", "content": "Be brief."}
    assert "Natalia" in asked[0][1]["content"]
    with pytest.raises(TaskError):
        run(ArealAgent("gsm8k-v0"), {"task_id": "nope"}, model)


def test_too_many_turns_and_invalid_replies_truncate_with_what_was_earned() -> None:
    earned, turns = run(ArealAgent("counter-v0", done_at=99, max_turns=4), {}, lambda _: "2")
    nothing, refused = run(ArealAgent("counter-v0", max_invalid=3), {}, lambda _: "no")

    assert (earned, turns) == (8.0, 4)
    assert (nothing, refused) == (0.0, 3)


def test_a_failed_episode_raises_so_that_areal_rejects_it() -> None:
    with pytest.raises(EnvironmentFailure, match="has no reward"):
        run(ArealAgent(FailsOrWaits), {}, lambda _: "fail")


def test_it_has_the_form_that_areal_checks_and_can_be_sent_to_its_processes() -> None:
    agent = pickle.loads(pickle.dumps(ArealAgent("counter-v0", done_at=2)))

    assert inspect.iscoroutinefunction(agent.run)
    assert run(agent, {}, lambda _: "1") == (2.0, 2)
