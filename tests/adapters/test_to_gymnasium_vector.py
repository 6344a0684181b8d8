"""envweave vectors as Gymnasium vectors."""

from dataclasses import dataclass
from typing import Annotated, Literal

import gymnasium as gym
import numpy as np
import pytest
from environments.edge_cases import RefusingInGymnasiumsWay
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import envweave as ew
from envweave.errors import (
    ActionError,
    BadReturnError,
    DefinitionError,
    EnvironmentFailure,
    OptionError,
    SpecError,
)


@dataclass
class Push(ew.Action):
    side: Literal["left", "right"]


@dataclass(kw_only=True)
class Seen(ew.Observation):
    place: Annotated[int, ew.Bounds(-9, 9)]
    mood: Literal["calm", "wild"]
    lit: bool
    sight: Annotated[np.ndarray, ew.Bounds(0, 1, shape=(2,), dtype=np.float32)]


class Cart(ew.Environment):
    """Moves by one; it ends beyond 2, and is cut after 4 steps. It may fail at a place."""

    breaks_at: int | None = None

    def reset(self, *, seed: int | None = None) -> Seen:
        self.place, self.steps = 0, 0
        return self.show({"lot": seed} if seed is not None else {})

    def step(self, action: Push) -> Seen:
        self.place += 1 if action.side == "right" else -1
        self.steps += 1
        if self.place == self.breaks_at:
            raise RuntimeError("a wheel came off")
        shown = self.show({"steps": self.steps} if self.steps > 1 else {})
        shown.reward, shown.done, shown.truncated = 1.0, self.place > 2, self.steps >= 4
        return shown

    def show(self, metadata) -> Seen:
        sight = np.array([0, self.steps / 4], np.float32)
        mood = "wild" if self.steps else "calm"
        return Seen(place=self.place, mood=mood, lit=self.place > 0, sight=sight, metadata=metadata)


def same(one, other):
    """Compare nested values of Gymnasium's, by content and dtype."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray) and one.dtype != object:
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, np.ndarray | list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def test_it_returns_what_gymnasiums_own_vector_of_the_same_environments_does():
    ours = ew.to_gymnasium_vector(Cart, num_envs=2)
    # Seeds of later episodes are ours alone: a Gymnasium vector passes none.
    theirs = SyncVectorEnv(
        [lambda: ew.to_gymnasium(Cart)] * 2, autoreset_mode=AutoresetMode.SAME_STEP
    )
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert same(ours.reset(seed=3), theirs.reset(seed=3))

    for k in range(9):
        actions = np.array([1, k % 2])
        got, expected = ours.step(actions), theirs.step(actions)
        for infos in (got[4], expected[4]):
            for key in ("seed", "lot", "_seed", "_lot"):
                infos.pop(key, None)
        assert same(got, expected), k

    assert got[0]["place"].dtype == np.int64


def test_the_final_observation_and_info_stand_where_trainers_look():
    envs = ew.to_gymnasium_vector(Cart, num_envs=2)
    envs.reset(seed=0)
    for _ in range(2):
        envs.step(np.array([1, 0]))

    shown, rewards, terminated, truncated, infos = envs.step(np.array([1, 0]))

    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert (terminated.tolist(), truncated.tolist()) == ([True, False], [False, False])
    assert shown["place"].tolist() == [0, -3]
    assert infos["_final_obs"].tolist() == [True, False]
    assert (infos["final_obs"][0]["place"], infos["final_obs"][1]) == (3, None)
    assert infos["final_info"]["steps"].tolist() == [3, 0]
    assert infos["_lot"].tolist() == [True, False]
    assert rewards.tolist() == [1.0, 1.0]


def test_an_array_environment_goes_through_gymnasiums_wrappers():
    envs = gym.wrappers.vector.RecordEpisodeStatistics(
        ew.to_gymnasium_vector("gym://CartPole-v1", num_envs=3)
    )
    shown, _ = envs.reset(seed=0)
    assert (shown.shape, shown.dtype) == ((3, 4), np.float32)
    assert envs.single_action_space == spaces.Discrete(2)

    lengths = []
    for _ in range(40):
        shown, _, _, _, infos = envs.step(np.zeros(3, np.int64))
        if "episode" in infos:
            lengths += infos["episode"]["l"][infos["_episode"]].tolist()

    assert lengths
    assert all(8 <= length <= 11 for length in lengths)


def test_an_existing_vector_is_used_unchanged():
    venv = ew.make_vector(Cart, num_envs=2, autoreset=True)

    envs = ew.to_gymnasium_vector(venv)
    envs.reset()
    envs.close()
    envs.close()

    with pytest.raises(ew.errors.ClosedError):
        venv.reset()
    with pytest.raises(OptionError, match="'num_envs' comes too late"):
        ew.to_gymnasium_vector(venv, num_envs=2)


def test_some_are_reset_by_their_mask():
    envs = ew.to_gymnasium_vector(Cart, num_envs=2)
    envs.reset()
    envs.step(np.array([1, 1]))

    shown, infos = envs.reset(seed=[8, 9], options={"reset_mask": np.array([False, True])})

    assert shown["place"].tolist() == [1, 0]
    assert (infos["seed"].tolist(), infos["_seed"].tolist()) == ([0, 9], [False, True])


def test_a_failed_episode_has_no_reward():
    envs = ew.to_gymnasium_vector(type("Frail", (Cart,), {"breaks_at": -1}), num_envs=2)
    envs.reset()

    with pytest.raises(EnvironmentFailure, match=r"environment 1 ended by error.*a wheel came off"):
        envs.step(np.array([1, 0]))


def test_a_bad_action_is_refused_by_index():
    envs = ew.to_gymnasium_vector(Cart, num_envs=2)
    envs.reset()

    with pytest.raises(ActionError, match=r"^actions\[1\].side: 2 is not between 0 and 1"):
        envs.step(np.array([0, 2]))


def test_an_observation_beyond_its_space_is_refused():
    class Far(Cart):
        def reset(self, *, seed: int | None = None) -> Seen:
            shown = super().reset(seed=seed)
            shown.place = 10
            return shown

    envs = ew.to_gymnasium_vector(Far, num_envs=2)

    with pytest.raises(BadReturnError, match="10 is not between -9 and 9"):
        envs.reset()


def test_several_agents_and_specs_without_a_space_are_refused():
    class Untyped(ew.Environment):
        def reset(self):
            return {}

        def step(self, action):
            return {}, 0.0, False, False, {}

    with pytest.raises(DefinitionError, match="has one agent"):
        ew.to_gymnasium_vector("harvest-v0", num_envs=2)
    with pytest.raises(SpecError, match="has no Gymnasium space"):
        ew.to_gymnasium_vector(Untyped, num_envs=2)


def test_there_and_back_again_is_the_same_vector():
    there = ew.to_gymnasium_vector("gym://CartPole-v1", num_envs=2)
    back = ew.make_vector(there, autoreset=True)
    straight = ew.make_vector("gym://CartPole-v1", num_envs=2, autoreset=True)
    assert back.reset(seed=4).current.tolist() == straight.reset(seed=4).current.tolist()

    for _ in range(30):
        one, other = back.step([0, 1]), straight.step([0, 1])
        assert one.current.tolist() == other.current.tolist()
        assert one.successor.tolist() == other.successor.tolist()
        assert one.terminated.tolist() == other.terminated.tolist()


def test_a_vector_that_does_not_reset_itself_is_refused_at_once():
    venv = ew.make_vector("counter-v0", num_envs=2)

    with venv, pytest.raises(OptionError, match="Make it with autoreset=True"):
        ew.to_gymnasium_vector(venv)


def test_a_single_environment_is_not_a_vector():
    with (
        ew.make("counter-v0") as env,
        pytest.raises(OptionError, match="One Env object is not a vector"),
    ):
        ew.to_gymnasium_vector(env)


def test_an_action_that_an_environment_refuses_is_raised_since_gymnasium_has_no_word_for_it():
    venv = ew.to_gymnasium_vector(RefusingInGymnasiumsWay, num_envs=2)
    venv.reset(seed=0)

    with pytest.raises(ActionError, match="environment 1 refused its action: square 13 is taken"):
        venv.step((1, 13))
    venv.close()
