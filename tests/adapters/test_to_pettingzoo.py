import math
import warnings
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from gymnasium import spaces

import envweave as ew
from envweave.codec.scalars import ArraySpec
from envweave.errors import (
    ActionError,
    DefinitionError,
    EnvironmentFailure,
    OptionError,
    ResetNeededError,
    SpecError,
)

with warnings.catch_warnings():
    # Where pygame is installed, the checkers import an environment the way they warn of.
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.test import api_test, parallel_api_test

STRENGTHS = ["weak", "strong", "out"]


@dataclass
class Throw(ew.Action):
    strength: Literal["weak", "strong", "out"]


class Contest(ew.MultiAgentEnvironment):
    """All throw at once, three rounds. A player that throws "out" leaves, "p_2" joins later.

    With a `mishap` the second round crashes, or goes unscored.
    """

    possible_agents = ("p_0", "p_1", "p_2")
    observation_spec = ArraySpec((2,), "float32", 0, 99)

    def __init__(self, mishap: str | None = None) -> None:
        self.mishap = mishap

    def reset(self, *, seed: int | None = None) -> Any:
        self._here = ["p_0", "p_1"]
        self._round = 0
        self._luck = np.random.default_rng(seed).integers(1, 9)
        return self._see(self._here), {agent: {"round": 0} for agent in self._here}

    def step(self, action: dict[str, Throw]) -> Any:
        self._round += 1
        if self._round == 2 and self.mishap == "crash":
            raise ValueError("broken arm")
        earned = {a: 2.0 if one.strength == "strong" else 1.0 for a, one in action.items()}
        if self._round == 2 and self.mishap == "unscored":
            earned = dict.fromkeys(earned)
        out = [agent for agent, one in action.items() if one.strength == "out"]
        present = [*self._here, *(["p_2"] if self._round == 1 else [])]
        self._here = [agent for agent in present if agent not in out]
        return (
            self._see(present),
            earned,
            dict.fromkeys(out, True),
            {"__all__": self._round == 3},
            {agent: {"round": self._round} for agent in present},
        )

    def _see(self, agents):
        return {agent: np.array([self._luck, self._round], np.float32) for agent in agents}


@dataclass
class Take(ew.Action):
    coins: Annotated[int, ew.Bounds(1, 3)]


class Nim(ew.MultiAgentEnvironment):
    """Take 1 to 3 of 10 coins by turns; the last coin wins. It shows a mask."""

    possible_agents = ("player_0", "player_1")
    observation_spec = ArraySpec((2,), "float32", 0, 10)

    def to_act(self) -> list[str]:
        return [self.possible_agents[self._turn]]

    def reset(self, *, seed: int | None = None) -> Any:
        self._coins, self._turn = 10, 0
        return self._see(), self._masks()

    def step(self, action: dict[str, Take]) -> Any:
        ((agent, take),) = action.items()
        if take.coins > self._coins:
            raise ValueError("not so many coins")
        self._coins -= take.coins
        self._turn = 1 - self._turn
        other = self.possible_agents[self._turn]
        over = self._coins == 0
        rewards = {agent: 1.0, other: -1.0} if over else {}
        return self._see(), rewards, {"__all__": over}, {}, self._masks()

    def _see(self):
        pairs = enumerate(self.possible_agents)
        return {agent: np.array([self._coins, i + 1], np.float32) for i, agent in pairs}

    def _masks(self):
        legal = [self._coins >= count for count in (1, 2, 3)]
        return {self.possible_agents[self._turn]: {"action_mask": legal}}


def play(env: ew.Env, seed: int, act: Any) -> list[Any]:
    """Play at random; return in plain words what was asked, paid and ended."""
    rng = np.random.default_rng(seed)
    result = env.reset(seed=seed)
    results: list[Any] = [{a: o.tolist() for a, o in result.observation.items()}]
    while not result.done:
        results.append(
            [(n.agent_id, n.observation.tolist(), n.reward or 0.0) for n in result.needs]
        )
        result = env.step({need.agent_id: act(need, rng) for need in result.needs})
        results.append([(one.agent_id, one.reward) for one in result.events])
    return [*results, result.end.reason, dict(sorted(result.end.rewards.items()))]


@pytest.mark.parametrize("env", [Contest, Nim])
def test_the_official_checker_passes_in_turns(env):
    adapted = ew.to_pettingzoo(env, api="aec")

    api_test(adapted, num_cycles=30)

    adapted.close()


def test_the_official_checker_passes_for_the_parallel_form():
    adapted = ew.to_pettingzoo(Contest)

    parallel_api_test(adapted, num_cycles=30)

    adapted.close()


def test_a_simultaneous_game_in_pettingzoos_parallel_terms():
    env = ew.to_pettingzoo(Contest)

    observations, infos = env.reset(seed=1)
    assert (env.agents, infos) == (["p_0", "p_1"], {"p_0": {"round": 0}, "p_1": {"round": 0}})
    assert all(env.observation_space(a).contains(seen) for a, seen in observations.items())

    _, rewards, terminated, truncated, infos = env.step({"p_0": 2, "p_1": 1})
    assert rewards == {"p_0": 1.0, "p_1": 2.0, "p_2": 0.0}
    assert terminated == {"p_0": True, "p_1": False, "p_2": False}
    assert truncated == {"p_0": False, "p_1": False, "p_2": False}
    assert (env.agents, infos["p_2"]) == (["p_1", "p_2"], {"round": 1})

    env.step({"p_1": 0, "p_2": 0})
    _, rewards, terminated, truncated, _ = env.step({"p_1": 0, "p_2": 1})
    assert rewards == {"p_1": 1.0, "p_2": 2.0}
    assert terminated == {"p_1": False, "p_2": False}
    assert truncated == {"p_1": True, "p_2": True}
    assert env.agents == []
    env.close()


def test_a_turn_game_in_pettingzoos_turns():
    env = ew.to_pettingzoo(Nim, api="aec")
    env.reset(seed=0)
    results = []

    for agent in env.agent_iter():
        seen, reward, terminated, truncated, info = env.last()
        results.append((agent, int(seen[0]), reward))
        over = terminated or truncated
        env.step(None if over else 1 + np.flatnonzero(info["action_mask"]).max())

    assert results == [
        ("player_0", 10, 0.0),
        ("player_1", 7, 0.0),
        ("player_0", 4, 0.0),
        ("player_1", 1, 0.0),
        ("player_0", 0, -1.0),
        ("player_1", 0, 1.0),
    ]
    env.close()


def test_agents_of_a_simultaneous_game_act_one_after_the_other_in_aec():
    env = ew.to_pettingzoo(Contest, api="aec")
    env.reset(seed=0)

    env.step(1)
    assert (env.agent_selection, env.rewards) == ("p_1", {"p_0": 0, "p_1": 0})
    env.step(0)

    assert env.rewards == {"p_0": 2.0, "p_1": 1.0, "p_2": 0.0}
    assert (env.agent_selection, env.agents) == ("p_0", ["p_0", "p_1", "p_2"])
    env.close()


def test_a_turn_based_game_is_refused_as_parallel_with_the_alternative():
    env = ew.to_pettingzoo(Nim)

    with pytest.raises(DefinitionError, match=r"only 'player_0' .* 'player_1' must wait.*'aec'"):
        env.reset(seed=0)
    env.close()


@pytest.mark.parametrize("seed", range(5))
def test_a_round_trip_of_a_turn_based_game_gives_equal_episodes(seed):
    def act(need, rng):
        return {"coins": int(1 + rng.choice(np.flatnonzero(need.action_mask)))}

    with ew.make(Nim) as straight, ew.make(ew.to_pettingzoo(Nim, api="aec")) as env:
        expected = play(straight, seed, act)

        assert play(env, seed, lambda need, rng: act(need, rng)["coins"]) == expected


@pytest.mark.parametrize("seed", range(5))
def test_a_round_trip_of_a_simultaneous_game_gives_equal_episodes(seed):
    with ew.make(Contest) as straight, ew.make(ew.to_pettingzoo(Contest)) as env:
        expected = play(straight, seed, lambda _, rng: Throw(STRENGTHS[rng.integers(3)]))

        assert play(env, seed, lambda _, rng: int(rng.integers(3))) == expected


def test_our_examples_pass_through_both_forms():
    harvest, tictactoe = ew.to_pettingzoo("harvest-v0"), ew.to_pettingzoo("tictactoe-v0", api="aec")
    harvest.reset(seed=0)
    tictactoe.reset(seed=0)

    harvest.step({agent: harvest.action_space(agent).sample() for agent in harvest.agents})
    tictactoe.step(4)

    assert tictactoe.agent_selection == "o"
    assert tictactoe.infos["o"]["action_mask"].tolist() == [1, 1, 1, 1, 0, 1, 1, 1, 1]
    harvest.close()
    tictactoe.close()


def test_spaces_are_the_same_objects_every_time():
    env = ew.to_pettingzoo(Contest)

    assert env.action_space("p_0") == spaces.Discrete(3)
    assert env.action_space("p_0") is env.action_space("p_0")
    assert env.observation_space("p_0") is env.observation_space("p_0")
    env.close()


def test_a_mask_has_the_form_that_gymnasium_samples_with():
    env = ew.to_pettingzoo(Nim, api="aec")
    env.reset(seed=0)

    mask = env.infos["player_0"]["action_mask"]

    assert mask.dtype == np.int8
    assert env.action_space("player_0").sample(mask) in (1, 2, 3)
    env.close()


def test_a_failure_is_raised_with_its_cause_and_gives_no_reward():
    env = ew.to_pettingzoo(Contest, mishap="crash")
    env.reset(seed=0)
    env.step({"p_0": 0, "p_1": 0})

    with pytest.raises(EnvironmentFailure, match="ValueError: broken arm"):
        env.step({"p_0": 0, "p_1": 0, "p_2": 0})
    env.close()


def test_an_unscored_step_is_nan_and_no_zero():
    env = ew.to_pettingzoo(Contest, mishap="unscored")
    env.reset(seed=0)
    env.step({"p_0": 0, "p_1": 0})

    _, rewards, *_ = env.step({"p_0": 0, "p_1": 0, "p_2": 0})

    assert all(math.isnan(reward) for reward in rewards.values())
    env.close()


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ({"p_0": 0}, r"action\['p_1'\]: this agent's action is missing"),
        ({"p_0": 0, "p_1": 7}, r"action\['p_1'\]\.strength: 7 is not between 0 and 2"),
        ({"p_0": 0, "p_1": 0, "p_9": 0}, r"action\['p_9'\]: there is no such agent"),
    ],
)
def test_wrong_actions_are_refused_by_agent_and_the_episode_unharmed(actions, message):
    env = ew.to_pettingzoo(Contest)
    env.reset(seed=0)

    with pytest.raises(ActionError, match=message):
        env.step(actions)

    assert env.step({"p_0": 0, "p_1": 0})[4]["p_0"] == {"round": 1}
    env.close()


def test_in_turns_a_wrong_action_leaves_the_turn_where_it_was():
    env = ew.to_pettingzoo(Nim, api="aec")
    env.reset(seed=0)

    with pytest.raises(ActionError, match=r"action\['player_0'\]\.coins: 9 is not between 1"):
        env.step(9)

    assert env.agent_selection == "player_0"
    env.close()


def test_a_step_before_a_reset_is_refused():
    env = ew.to_pettingzoo(Nim, api="aec")

    with pytest.raises(ResetNeededError):
        env.step(1)
    env.close()


def test_one_agent_is_refused_with_the_alternative():
    with pytest.raises(DefinitionError, match=r"Use to_gymnasium\(\)"):
        ew.to_pettingzoo("counter-v0")


def test_a_form_that_does_not_exist_is_refused():
    with pytest.raises(OptionError, match="must be 'parallel' or 'aec'"):
        ew.to_pettingzoo(Contest, api="turns")


def test_an_environment_without_hints_is_refused_by_agent():
    class Untyped(Contest):
        observation_spec = None

    with pytest.raises(SpecError, match=r"^observation\['p_0'\]: AnySpec\(\) has no Gymnasium"):
        ew.to_pettingzoo(Untyped)


def test_rendering_shows_what_each_agent_saw_last():
    for api in ("parallel", "aec"):
        env = ew.to_pettingzoo(Contest, api=api)
        env.reset(seed=0)

        shown = env.render()

        assert [line.partition(":")[0] for line in shown.splitlines()] == ["p_0", "p_1"]
        env.close()
