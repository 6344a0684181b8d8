"""Unsupported options of a Gymnasium vector are refused, and its errors end its episodes."""

import math

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

import envweave as ew
from envweave.errors import (
    ActionError,
    DefinitionError,
    OptionError,
    ResetFailedError,
    ResetNeededError,
    SeedError,
)

SAME_STEP, NEXT_STEP, DISABLED = (
    AutoresetMode.SAME_STEP,
    AutoresetMode.NEXT_STEP,
    AutoresetMode.DISABLED,
)


class Tides(VectorEnv):
    """Counts steps by array. Environment i ends after `i + 2` steps; one seed is for all.

    `quirk` is given what `step` would return and may change it, or raise.
    """

    def __init__(self, num_envs=2, mode=SAME_STEP, quirk=lambda returned, steps: returned):
        self.num_envs, self.quirk = num_envs, quirk
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = spaces.Box(0, 1e9, (1,), np.float64)
        self.single_action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.steps = np.zeros(num_envs, np.int64)
        self.limits = np.arange(num_envs) + 2
        self.resets, self.taken, self.closings = [], 0, 0
        self.is_dry = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.is_dry:
            raise RuntimeError("no water")
        self.resets.append(seed)
        self.steps[(options or {}).get("reset_mask", slice(None))] = 0
        return self.show(), {"level": np.full(self.num_envs, float(self.np_random.random()))}

    def step(self, actions):
        self.steps += 1
        self.taken += 1
        over, infos = self.steps >= self.limits, {}
        if self.metadata["autoreset_mode"] is SAME_STEP and over.any():
            infos = {"final_obs": self.show(), "_final_obs": over.copy()}
            self.steps[over] = 0
        rewards = actions.sum(axis=1)
        returned = self.show(), rewards, over, np.zeros_like(over), infos
        return self.quirk(returned, self.taken)

    def show(self):
        return self.steps[:, None].astype(np.float64)

    def close(self, **kwargs):
        self.closings += 1


STILL = np.zeros((2, 2), np.float32)


def test_a_batch_of_final_observations_is_understood():
    venv = ew.make_vector(Tides(), autoreset=True)
    venv.reset()
    venv.step(STILL)

    batch = venv.step(STILL)

    assert batch.terminated.tolist() == [True, False]
    assert batch.successor.tolist() == [[2.0], [2.0]]
    assert batch.current.tolist() == [[0.0], [2.0]]


def test_a_batch_of_final_tuples_is_understood():
    class Pairs(Tides):
        def __init__(self):
            super().__init__()
            one = self.single_observation_space
            self.single_observation_space = spaces.Tuple([one, spaces.Discrete(9)])

        def show(self):
            return super().show(), self.steps.copy()

    venv = ew.make_vector(Pairs(), autoreset=True)
    venv.reset()
    venv.step(STILL)

    batch = venv.step(STILL)

    assert [(depth.tolist(), count) for depth, count in batch.successor] == [([2.0], 2)] * 2
    assert [(depth.tolist(), count) for depth, count in batch.current] == [([0.0], 0), ([2.0], 2)]


def test_a_step_that_raises_ends_every_episode_and_all_are_reset(caplog):
    def breaks(returned, taken):
        if taken == 2:
            raise RuntimeError("the dam broke")
        return returned

    venv = ew.make_vector(Tides(quirk=breaks), autoreset=True)
    venv.reset(seed=0)
    venv.step(STILL)

    batch = venv.step(STILL)

    for row in batch:
        assert (row.end.reason, row.end.blame) == ("error", "environment")
        assert "RuntimeError: the dam broke" in row.end.cause
        assert math.isnan(row.reward)
    assert batch.valid.tolist() == [False, False]
    assert batch.successor.tolist() == [[1.0], [1.0]]
    assert batch.current.tolist() == [[0.0], [0.0]]
    assert venv.step(STILL).step_index.tolist() == [1, 1]
    assert "its step failed" in caplog.text


@pytest.mark.parametrize(
    ("quirk", "words"),
    [
        (lambda outcome: outcome[:4], "a tuple of 4"),
        (
            lambda outcome: (outcome[0][:1], *outcome[1:]),
            r"float64\(1, 1\), but the columns were fixed as",
        ),
        (lambda outcome: (outcome[0].astype(np.float32), *outcome[1:]), "float32"),
        (lambda outcome: (outcome[0], outcome[1][:1], *outcome[2:]), "rewards of"),
        (lambda outcome: (*outcome[:2], outcome[2] * 1.0, *outcome[3:]), "terminations of float64"),
        (lambda outcome: (*outcome[:4], None), "info is a NoneType"),
    ],
)
def test_an_invalid_return_value_ends_every_episode(quirk, words):
    venv = ew.make_vector(Tides(mode=DISABLED, quirk=lambda outcome, taken: quirk(outcome)))
    venv.reset()

    batch = venv.step(STILL)

    assert words.replace("\\", "") in batch[0].end.cause
    assert batch.needs_reset.tolist() == [True, True]
    assert batch.valid.tolist() == [False, False]


def with_nan(returned, taken):
    if taken == 1:
        returned[1][1] = math.nan
    return returned


def test_a_reward_of_nan_ends_that_episode_alone():
    venv = ew.make_vector(Tides(mode=DISABLED, quirk=with_nan), autoreset=True)
    venv.reset()

    batch = venv.step(STILL)

    assert batch.valid.tolist() == [True, False]
    assert (batch[1].end.reason, batch[1].end.cause) == ("error", "BadReturnError: reward is NaN.")
    assert batch.successor.tolist() == [[1.0], [0.0]]
    assert batch.current.tolist() == [[1.0], [0.0]]
    assert venv.step(STILL).step_index.tolist() == [2, 1]


def test_a_failure_requires_a_full_reset_if_rows_cannot_be_reset_alone():
    venv = ew.make_vector(Tides(quirk=with_nan), autoreset=True)
    venv.reset()

    batch = venv.step(STILL)

    assert batch.needs_reset.tolist() == [False, True]
    with pytest.raises(ResetNeededError, match="resets all its environments at once"):
        venv.step(STILL)
    with pytest.raises(OptionError, match=r"ids=\[1\] cannot be honored.*Leave out `ids`"):
        venv.reset(ids=[1])
    assert venv.reset().step_index.tolist() == [0, 0]


def test_an_end_without_its_final_observation_is_not_valid():
    def forgets(returned, taken):
        returned[4].clear()
        return returned

    venv = ew.make_vector(Tides(quirk=forgets), autoreset=True)
    venv.reset()
    venv.step(STILL)

    batch = venv.step(STILL)

    assert batch.valid.tolist() == [False, True]
    assert "gave no final_obs" in batch[0].end.cause
    assert np.isnan(batch.reward).tolist() == [True, False]
    assert batch.successor.tolist() == [[1.0], [2.0]]
    assert batch.current.tolist() == [[0.0], [2.0]]
    assert not batch.needs_reset.any()


def test_reward_parts_that_do_not_sum_are_refused():
    def parts(returned, taken):
        return *returned[:4], {"reward_parts": {"tide": np.array([0.0, 4.0])}}

    venv = ew.make_vector(Tides(mode=DISABLED, quirk=parts), autoreset=True)
    venv.reset()

    batch = venv.step(STILL)

    assert batch[0].reward_parts == {"tide": 0.0}
    assert "sum to 4.0, but the reward is 0.0" in batch[1].end.cause


def test_a_reset_that_raises_is_reported_and_the_next_one_may_succeed():
    inner = Tides(mode=DISABLED)
    venv = ew.make_vector(inner, autoreset=True)
    venv.reset()
    inner.is_dry = True

    venv.step(STILL)
    batch = venv.step(STILL)

    assert "RuntimeError: no water" in batch[0].info["reset_error"]
    assert batch.needs_reset.tolist() == [True, False]
    with pytest.raises(ResetFailedError, match=r"Environment 0: Tides.reset\(\) failed.*no water"):
        venv.reset()
    inner.is_dry = False
    assert venv.reset().step_index.tolist() == [0, 0]


def test_one_seed_for_the_whole_batch_is_passed_on_and_shown():
    inner = Tides(mode=DISABLED)
    venv = ew.make_vector(inner, autoreset=True)

    first = venv.reset(seed=3)
    venv.step(STILL)
    batch = venv.step(STILL)

    assert inner.resets == [3, None]
    assert first.infos[1]["batch_seed"] == 3
    assert "seed" not in first.infos[1]
    assert batch[0].ready.initial_info.keys() == {"level"}
    assert venv.reset(seed=3).infos == first.infos


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"seed": [5, 9]}, "One seed per environment cannot be honored.*seed=0"),
        ({"seed": 5, "ids": [1]}, "A seed for some environments cannot be honored"),
    ],
)
def test_seeds_that_the_batch_cannot_honor_are_refused(arguments, words):
    venv = ew.make_vector(Tides(mode=DISABLED))
    venv.reset()

    with pytest.raises(SeedError, match=words):
        venv.reset(**arguments)


def test_without_a_seed_the_batch_gets_one_that_can_be_read_and_used_again():
    drawn = ew.make_vector(Tides(mode=DISABLED)).reset().infos[0]

    again = ew.make_vector(Tides(mode=DISABLED)).reset(seed=drawn["batch_seed"]).infos[0]

    assert again == drawn


def test_box_actions_are_checked_as_one_array():
    venv = ew.make_vector(Tides(), autoreset=True)
    venv.reset()

    assert venv.step(np.ones((2, 2), np.float32)).reward.tolist() == [2.0, 2.0]
    assert venv.step([[1, 0], [0, 0.5]]).reward.tolist() == [1.0, 0.5]
    with pytest.raises(ActionError, match=r"actions\[0\]: shape \(3,\) is not \(2,\)"):
        venv.step(np.ones((2, 3), np.float32))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CartPoleVectorEnv(2), "NEXT_STEP.*SAME_STEP or DISABLED"),
        (lambda: Tides(mode=NEXT_STEP), "NEXT_STEP.*SAME_STEP or DISABLED"),
        (
            lambda: gym.wrappers.vector.RecordEpisodeStatistics(
                SyncVectorEnv([lambda: gym.make("CartPole-v1")])
            ),
            "NEXT_STEP.*SAME_STEP or DISABLED",
        ),
        (
            lambda: AsyncVectorEnv([lambda: gym.make("CartPole-v1")], shared_memory=False),
            "NEXT_STEP.*SAME_STEP or DISABLED",
        ),
        (lambda: Tides(mode="SameStep"), r"metadata\['autoreset_mode'\] is 'SameStep'"),
    ],
)
def test_a_vector_that_would_drop_an_action_is_refused(make, words):
    inner = make()

    with pytest.raises(ew.EnvWeaveError, match=words):
        ew.make_vector(inner, autoreset=True)

    inner.close()


def test_a_vector_that_resets_by_itself_is_refused_without_autoreset():
    with pytest.raises(OptionError, match="Pass autoreset=True, or construct it with DISABLED"):
        ew.make_vector(Tides(mode=SAME_STEP))


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"num_envs": 3}, "num_envs=3, but the Tides has 2"),
        ({"max_episode_steps": 9}, "comes too late"),
        ({"mode": "serial"}, "mode='serial' cannot be honored"),
        ({"timeout_s": 1.0}, "timeout_s=1.0 cannot be honored"),
        ({"transform": lambda shown: shown}, "transform=.*cannot be honored"),
        ({"limit": 9}, "'limit' is not an option of make"),
    ],
)
def test_options_that_a_vector_cannot_honor_are_refused(option, words):
    with pytest.raises(OptionError, match=words):
        ew.make_vector(Tides(), autoreset=True, **option)


def test_a_class_of_vectors_is_made_with_num_envs_and_keywords():
    venv = ew.make_vector(Tides, num_envs=3, autoreset=True, mode=None)

    assert (venv.num_envs, len(venv.reset())) == (3, 3)


def test_one_environment_cannot_be_made_of_a_vector():
    with pytest.raises(DefinitionError, match=r"a vector of environments; pass it to make_vector"):
        ew.make(Tides())


@pytest.fixture
def tides_id():
    gym.register("TidesOfATest-v0", vector_entry_point=Tides)
    yield "gym://TidesOfATest-v0"
    gym.registry.pop("TidesOfATest-v0")


def test_an_id_with_only_a_vector_entry_point_is_made_as_a_vector(tides_id):
    venv = ew.make_vector(tides_id, num_envs=4, autoreset=True)

    assert venv.reset().current.shape == (4, 1)
    with pytest.raises(OptionError, match=r"'flood' is neither an option.*It takes: num_envs"):
        ew.make_vector(tides_id, num_envs=4, flood=True)


@pytest.mark.parametrize("mode", ["sync", gym.VectorizeMode.SYNC])
def test_the_vectorization_mode_of_an_id_is_chosen_as_in_gymnasium(mode):
    options = {"num_envs": 2, "autoreset": True, "max_episode_steps": 3}
    whole = ew.make_vector("gym://CartPole-v1", vectorization_mode=mode, **options)
    apart = ew.make_vector("gym://CartPole-v1", **options)

    for venv in (whole, apart):
        venv.reset(seed=1)
    steps = [(whole.step([0, 1]), apart.step([0, 1])) for _ in range(7)]

    for one, other in steps:
        assert one.current.tolist() == other.current.tolist()
        assert one.truncated.tolist() == other.truncated.tolist()
    assert steps[2][0].truncated.all()


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("sinc", "Did you mean 'sync'"),
        ("vector_entry_point", "doesn't have a vector entry point"),
    ],
)
def test_an_invalid_vectorization_mode_is_refused(mode, words):
    with pytest.raises(OptionError, match=words):
        ew.make_vector("gym://Acrobot-v1", num_envs=2, vectorization_mode=mode)


def test_one_environment_has_no_vectorization_mode():
    with pytest.raises(OptionError, match=r"Pass it to make_vector\(\)"):
        ew.make("gym://CartPole-v1", vectorization_mode="sync")
