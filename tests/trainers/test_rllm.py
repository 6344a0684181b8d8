"""rLLM's form of an environment, driven as its execution engine does. It is not on PyPI."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from environments.served import FailsOrWaits

import envweave as ew
from envweave.errors import DefinitionError, EnvironmentFailure, OptionError
from envweave.trainers.rllm import RllmEnv


def play(info: dict[str, Any], reply: Any) -> tuple[list[Any], list[float]]:
    """Play as rLLM's `AgentExecutionEngine.run_agent_trajectory_async` does."""
    env = RllmEnv.from_dict(info)
    env.idx = 3
    observation, _ = env.reset()
    seen, rewards, done = [observation], [], False
    while not done:
        observation, reward, done, _ = env.step(reply)
        seen.append(observation)
        rewards.append(reward)
    env.close()
    return seen, rewards


def test_an_episode_of_a_task() -> None:
    info = {"env_id": "counter-v0", "env_options": {"done_at": 4}, "seed": 1, "data_source": "x"}

    seen, rewards = play(info, "2")

    assert "JSON that fits this schema" in seen[0]
    assert seen[1:] == ['{"value":2}', '{"value":4}']
    assert rewards == [2.0, 2.0]


def test_its_episodes_can_be_recorded(tmp_path: Path) -> None:
    play({"env_id": "counter-v0", "env_options": {"record": tmp_path}, "seed": 1}, "3")

    assert [(one.seed, one.reward) for one in ew.load(tmp_path).summaries] == [(1, 3.0)]


def test_an_action_of_rllm_is_unwrapped() -> None:
    _, rewards = play(
        {"env_id": "gsm8k-v0", "task_id": "train-0"}, SimpleNamespace(action="It is #### 72")
    )

    assert rewards == [1.0]


def test_episodes_run_in_threads() -> None:
    assert RllmEnv.is_multithread_safe()
    with ThreadPoolExecutor(8) as pool:
        played = list(pool.map(lambda _: play({"env_id": "counter-v0"}, "3"), range(8)))

    assert [rewards for _, rewards in played] == [[3.0]] * 8


def test_a_failed_episode_raises_and_has_no_reward() -> None:
    with pytest.raises(EnvironmentFailure, match="has no reward"):
        play({"env_id": FailsOrWaits}, "fail")


def test_a_task_without_an_environment_is_refused() -> None:
    with pytest.raises(OptionError, match="env_args"):
        RllmEnv.from_dict({"question": "?"})


def test_several_agents_are_refused() -> None:
    with pytest.raises(DefinitionError, match="has several agents"):
        RllmEnv("tictactoe-v0")
