import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import envweave as ew
from envweave.codec.scalars import ArraySpec, IntSpec
from envweave.errors import (
    ActionError,
    DefinitionError,
    OptionError,
    ResetFailedError,
    ResetNeededError,
    SeedError,
)

IDS = ["CartPole-v1", "FrozenLake-v1", "Pendulum-v1", "Taxi-v4", "Blackjack-v1"]


class Masked(gym.Env):
    """Says which numbers it allows; writes to one buffer."""

    def __init__(self):
        self.action_space = spaces.Discrete(3, start=1)
        self.observation_space = spaces.Box(0, 9, (2,), np.int64)
        self._buffer = np.zeros(2, np.int64)
        self.closed = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._buffer[:] = (options or {}).get("at", 0)
        return self._buffer, {"action_mask": np.array([1, 0, 1])}

    def step(self, action):
        self._buffer += action
        done = bool(self._buffer[0] >= 4)
        return self._buffer, np.float32(action), done, False, {"action_mask": np.array([0, 1, 0])}

    def close(self):
        self.closed += 1


class Seedless(gym.Env):
    """Written as many are: its `reset` takes nothing."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Discrete(2)

    def reset(self):
        return 0, {}

    def step(self, action):
        return action, 0.0, True, False, {}


class Speaker(Seedless):
    """Takes actions that no spec of ours describes."""

    action_space = spaces.Dict(
        {"say": spaces.Text(3, charset="ab"), "to": spaces.Sequence(spaces.Discrete(4))}
    )

    def step(self, action):
        return 1, float(len(action["say"]) + len(action["to"])), True, False, {}


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return np.array_equal(one, other)


@pytest.mark.parametrize("gym_id", IDS)
def test_an_episode_is_gymnasiums_own_with_the_same_seed(gym_id):
    theirs = gym.make(gym_id)
    rng = np.random.default_rng(5)
    with ew.make(f"gym://{gym_id}") as ours:
        seen, info = theirs.reset(seed=11)
        result = ours.reset(seed=11)
        assert same(result.observation, seen)
        assert same(result.info, {**info, "seed": 11})

        while not result.done:
            action = ours.action_spec.sample(rng)
            expected = theirs.step(action)
            result = ours.step(action)
            seen, *outcome, info = result
            assert same(seen, expected[0])
            assert outcome == [*expected[1:4]]
            assert same(info, expected[4])

    assert result.end.reason == ("terminated" if expected[2] else "truncated")
    theirs.close()


def test_spaces_become_specs():
    with ew.make("gym://CartPole-v1") as env:
        assert (env.action_spec.low, env.action_spec.high) == (0, 1)
        assert isinstance(env.action_spec, IntSpec)
        assert isinstance(env.observation_spec, ArraySpec)
        assert env.observation_spec.shape == (4,)


@pytest.mark.parametrize("action", [2, -1, 0.5, "left", None, [0], True])
def test_an_action_outside_a_discrete_space_is_refused_and_the_episode_unharmed(action):
    with ew.make("gym://CartPole-v1") as env:
        env.reset(seed=0)

        with pytest.raises(ActionError, match=r"^action: "):
            env.step(action)

        assert env.step(1).step_index == 1


@pytest.mark.parametrize("action", [np.array([0.5, 0.5]), 0.5, ["hard"], np.array([1j])])
def test_an_action_of_the_wrong_shape_or_dtype_is_refused(action):
    with ew.make("gym://Pendulum-v1") as env:
        env.reset(seed=0)

        with pytest.raises(ActionError, match=r"^action: "):
            env.step(action)


def test_a_float_action_beyond_the_box_is_passed_on():
    with ew.make("gym://Pendulum-v1") as env:
        env.reset(seed=0)

        result = env.step(np.array([100.0]))

        assert result.valid


def test_autoreset_keeps_the_final_observation():
    theirs = gym.make("CartPole-v1")
    theirs.reset(seed=3)
    with ew.make("gym://CartPole-v1", autoreset=True) as env:
        result = env.reset(seed=3)

        while not result.done:
            final, *_ = theirs.step(1)
            result = env.step(1)

        assert np.array_equal(result.observation, final)
        assert not np.array_equal(result.current, final)
        assert result.ready.initial_info["seed"] != 3
        assert env.step(1).step_index == 1
    theirs.close()


def test_a_mask_in_the_info_is_shown_to_its_agent():
    with ew.make(Masked) as env:
        first = env.reset()
        second = env.step(1)

    assert first.needs[0].action_mask.tolist() == [1, 0, 1]
    assert second.needs[0].action_mask.tolist() == [0, 1, 0]


def test_overwriting_a_buffer_does_not_change_earlier_observations():
    with ew.make(Masked) as env:
        first = env.reset().observation
        second = env.step(1).observation
        third = env.step(2).observation

    assert [first.tolist(), second.tolist(), third.tolist()] == [[0, 0], [1, 1], [3, 3]]


def test_rewards_are_plain_floats():
    with ew.make(Masked) as env:
        env.reset()

        assert type(env.step(2).reward) is float


def test_options_reach_the_environment():
    with ew.make(Masked) as env:
        assert env.reset(options={"at": 3}).observation.tolist() == [3, 3]


def test_an_environment_whose_reset_takes_no_seed_refuses_one():
    with ew.make(Seedless) as env:
        with pytest.raises(SeedError):
            env.reset(seed=1)
        with pytest.raises(OptionError):
            env.reset(options={})

        assert env.reset().observation == 0


def test_an_environment_is_closed_once():
    inner = Masked()
    env = ew.make(inner)

    env.close()
    env.close()

    assert inner.closed == 1


def test_actions_without_an_exact_spec_are_checked_by_their_space():
    with ew.make(Speaker) as env:
        env.reset()
        with pytest.raises(ActionError, match=r"^action\['say'\]: 'abc' is not in Text"):
            env.step({"say": "abc", "to": (1,)})
        with pytest.raises(ActionError, match=r"^action\['to'\]: .* is not in Sequence"):
            env.step({"say": "ab", "to": [1]})

        assert env.step({"say": "ab", "to": (1,)}).reward == 3.0
        assert env.action_spec.contains(env.action_spec.sample(np.random.default_rng(0)))


def test_a_wrapped_environment_is_adapted_as_it_is():
    wrapped = gym.wrappers.ClipAction(gym.make("Pendulum-v1", max_episode_steps=3))
    with ew.make(wrapped) as env:
        result = env.reset(seed=0)
        while not result.done:
            result = env.step(np.array([9.0], np.float32))

    assert (result.step_index, result.end.reason) == (3, "truncated")


def test_a_vector_of_adapted_environments_equals_gymnasiums_own():
    theirs = gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")
    expected, _ = theirs.reset(seed=7)
    ours = ew.make_vector("gym://CartPole-v1", num_envs=3)

    batch = ours.reset(seed=7)
    moved = ours.step([0, 1, 0])

    assert np.array_equal(batch.current, expected)
    assert np.array_equal(moved.successor, theirs.step(np.array([0, 1, 0]))[0])
    ours.close()
    theirs.close()


def test_a_vector_environment_is_refused_with_the_remedy():
    vector = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")

    with pytest.raises(DefinitionError, match=r"make_vector\(\)"):
        ew.make(vector)

    vector.close()


def test_a_non_gymnasium_environment_is_refused():
    with pytest.raises(DefinitionError, match=r"int cannot be adapted: it is not a gymnasium\.Env"):
        ew.from_gymnasium(3)


def test_an_environment_without_spaces_is_refused_by_name():
    with pytest.raises(DefinitionError, match="Env has no action_space"):
        ew.from_gymnasium(gym.Env())


def test_a_failure_in_reset_is_shown_with_its_cause():
    class Broken(Seedless):
        def reset(self):
            raise ValueError("no disk")

    with ew.make(Broken) as env, pytest.raises(ResetFailedError, match="ValueError: no disk"):
        env.reset()


def test_messages_call_it_by_its_own_name():
    env = ew.make("gym://CartPole-v1")

    with pytest.raises(ResetNeededError, match=r"step\(\) on CartPoleEnv"):
        env.step(0)
    env.close()


def test_a_nondeterministic_environment_declares_it():
    class Noisy(Seedless):
        spec = gym.envs.registration.EnvSpec("Noisy-v0", nondeterministic=True)

    with ew.make(Noisy) as noisy, ew.make(Seedless) as quiet:
        assert (noisy.deterministic, quiet.deterministic) == (False, True)
