"""Run by `test_text_trainers.py` in a virtual environment with SkyRL-gym and GEM."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import gem
import numpy as np
import pytest
import skyrl_gym
from gem.wrappers.wrapper_factory import get_wrapper_fns
from omegaconf import OmegaConf
from skyrl_gym.envs.base_text_env import BaseTextEnv
from skyrl_gym.metrics import aggregate_for_environment

import envweave as ew
from envweave.errors import EnvironmentFailure, OptionError
from envweave.trainers.episodes import joined


class Fails(ew.Environment):
    """Fails in its second step."""

    def reset(self) -> str:
        self.steps = 0
        return "begin"

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 2:
            raise RuntimeError("as requested")
        return "go on", 1.0, False, False, {}


skyrl_gym.register(
    "lineworld",
    entry_point="envweave.trainers.skyrl:SkyRLEnv",
    kwargs={"env_id": "lineworld-v0"},
)
skyrl_gym.register(
    "gsm8k_ours", entry_point="envweave.trainers.skyrl:SkyRLEnv", kwargs={"env_id": "gsm8k-v0"}
)
skyrl_gym.register(
    "fails", entry_point="envweave.trainers.skyrl:SkyRLEnv", kwargs={"env_id": Fails}
)
gem.register("ew:lineworld", "envweave.trainers.gem:GemEnv", source="lineworld-v0")
gem.register("ew:fails", "envweave.trainers.gem:GemEnv", source=Fails)


# SkyRL-gym


def made(name: str, **extras: Any) -> Any:
    """Make an environment as SkyRL's generator does."""
    return skyrl_gym.make(name, env_config=OmegaConf.create({}), extras=extras)


def test_skyrl_plays_an_episode_from_a_row_to_its_end() -> None:
    env = made("lineworld", seed=3, max_turns=20, data_source="ours")
    prompt = [{"role": "system", "content": "You walk."}, {"role": "user", "content": "Go left."}]

    messages, info = env.init(prompt)
    results = [env.step('{"move": -1}')]
    while not results[-1]["done"]:
        results.append(env.step('{"move": -1}'))
    metrics = env.get_metrics()
    env.close()
    env.close()

    assert isinstance(env, BaseTextEnv)
    assert [one["role"] for one in messages] == ["system", "user"]
    assert messages[0]["content"].startswith("You walk.\n\nReply with")
    assert messages[1]["content"].startswith("Go left.\n\n{")
    assert info["seed"] == 3
    assert [one["role"] for one in results[0]["observations"]] == ["user"]
    assert metrics["episode_reward"] == pytest.approx(sum(one["reward"] for one in results))
    assert metrics["episode_reward"] > 0
    assert results[-1]["metadata"]["terminated"] is True
    averaged = aggregate_for_environment("lineworld", [metrics, metrics])
    assert averaged["turns"] == len(results)


def test_skyrl_ends_an_episode_at_its_turn_limit() -> None:
    env = made("lineworld", seed=3, max_turns=2)
    env.init([])

    first, second = env.step("what?"), env.step('{"move": 1}')

    assert "not a valid action" in first["observations"][0]["content"]
    assert (first["done"], second["done"]) == (False, True)
    assert (second["metadata"]["terminated"], second["metadata"]["truncated"]) == (False, True)
    assert env.get_metrics()["invalid_replies"] == 1


def test_skyrl_plays_the_task_of_a_row() -> None:
    env = made("gsm8k_ours", task_id="train-0", max_turns=1)

    (message,), _ = env.init([])

    assert "Natalia" in message["content"]
    assert env.step("It is #### 72") | {"metadata": None} == {
        "observations": [],
        "reward": 1.0,
        "done": True,
        "metadata": None,
    }


def test_skyrl_gets_no_reward_of_a_failed_episode() -> None:
    env = made("fails")
    env.init([])
    env.step("x")

    with pytest.raises(EnvironmentFailure, match="has no reward"):
        env.step("x")


def test_messages_of_one_role_are_joined_and_the_system_message_is_first() -> None:
    roles = ["user", "system", "user", "assistant", "user", "user"]

    messages = joined({"role": role, "content": str(i)} for i, role in enumerate(roles))

    contents = [(one["role"], one["content"]) for one in messages]
    assert contents == [("system", "1"), ("user", "0\n\n2"), ("assistant", "3"), ("user", "4\n\n5")]


# GEM


def test_gem_plays_an_episode_and_leaves_global_random_state_alone() -> None:
    env = gem.make("ew:lineworld")
    random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()

    text, info = env.reset(seed=3)
    again, _ = env.reset(seed=3)
    steps = [env.step('{"move": -1}')]
    while not steps[-1][2]:
        steps.append(env.step('{"move": -1}'))
    env.close()

    assert text == again
    assert info["seed"] == 3
    assert steps[-1][1] > 0
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_episodes_of_both_can_be_recorded(tmp_path: Path) -> None:
    env = gem.make("ew:lineworld", record=tmp_path / "gem")
    env.reset(seed=3)
    env.step('{"move": 1}')
    env.close()
    env = skyrl_gym.make(
        "lineworld", env_config=OmegaConf.create({"record": str(tmp_path / "skyrl")}), extras={}
    )
    env.init([])
    env.step('{"move": 1}')
    env.close()

    assert [one.steps for one in ew.load(tmp_path / "gem").summaries] == [1]
    assert [one.steps for one in ew.load(tmp_path / "skyrl").summaries] == [1]


def test_gem_samples_actions_that_are_valid() -> None:
    env = gem.make("ew:lineworld")
    env.reset(seed=0)

    *_, info = env.step(env.sample_random_action())

    assert "invalid_reply" not in info


def test_gem_makes_vectors_of_it_with_seeds_of_their_own() -> None:
    vector = gem.make_vec(["ew:lineworld"] * 3, seed=5)

    texts, infos = vector.reset()
    _, rewards, terminated, truncated, _ = vector.step(['{"move": 1}'] * 3)

    assert [info["seed"] for info in infos] == [5, 6, 7]
    assert len(set(texts)) > 1
    assert (len(rewards), any(terminated), any(truncated)) == (3, False, False)


def test_gem_wraps_it_and_spawns_more() -> None:
    (wrap,) = get_wrapper_fns("concat")
    env = wrap(gem.make("ew:lineworld"))
    env.reset(seed=1)

    text, *_ = env.step('{"move": 1}')

    assert text.count("position") == 2  # GEM's wrapper adds what was seen before
    assert env.unwrapped.spawn().reset(seed=1)[1]["seed"] == 1
    with pytest.raises(OptionError, match="same_state"):
        env.unwrapped.spawn(same_state=True)


def test_gem_gets_no_reward_of_a_failed_episode_and_can_begin_another() -> None:
    env = gem.make("ew:fails")
    env.reset()
    env.step("x")

    with pytest.raises(EnvironmentFailure, match="has no reward"):
        env.step("x")

    assert env.reset()[0] == "begin"
    assert env.step("x")[1] == 1.0
