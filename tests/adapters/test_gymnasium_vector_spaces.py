"""Gymnasium's own vectors, adapted whole, whatever space their observations are of."""

import gymnasium as gym
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import envweave as ew

SHOWN = {
    "tuple": spaces.Tuple([spaces.Discrete(9), spaces.Box(0, 9, (2,)), spaces.Discrete(2)]),
    "tuple in tuple": spaces.Tuple([spaces.Tuple([spaces.Discrete(9)]), spaces.Discrete(9)]),
    "dict in tuple": spaces.Tuple([spaces.Dict(deep=spaces.Box(0, 9, (2,))), spaces.Discrete(9)]),
    "tuple in dict": spaces.Dict(a=spaces.Tuple([spaces.Discrete(9), spaces.MultiBinary(3)])),
    "dict": spaces.Dict(a=spaces.Discrete(9), b=spaces.Dict(c=spaces.Box(0, 9, (2,)))),
    "text": spaces.Text(8),
    "text in tuple": spaces.Tuple([spaces.Text(8), spaces.Discrete(9)]),
    "text in dict": spaces.Dict(said=spaces.Text(8), count=spaces.Discrete(9)),
    "sequence": spaces.Sequence(spaces.Discrete(9)),
    "graph": spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
    "one of": spaces.OneOf([spaces.Discrete(9), spaces.Box(0, 9, (2,))]),
}


class Shows(gym.Env):
    """Ends after so many steps; shows samples of a space, the same ones for the same seed."""

    action_space = spaces.Discrete(2)

    def __init__(self, space, length):
        self.observation_space, self.length = space, length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.drawn = 0, int(self.np_random.integers(10**6))
        return self.show(), {}

    def step(self, action):
        self.steps += 1
        return self.show(), 0.0, self.steps >= self.length, False, {}

    def show(self):
        self.observation_space.seed(self.drawn + self.steps)
        return self.observation_space.sample()


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("shown", SHOWN)
def test_observations_of_any_space_are_reset_as_in_single_environments(shown, mode):
    lengths, takes_seeds = [2, 3, 1, 4], mode is not AutoresetMode.SAME_STEP
    makers = [lambda one=one: Shows(SHOWN[shown], one) for one in lengths]
    turn = iter(makers)
    whole = ew.make_vector(SyncVectorEnv(makers, autoreset_mode=mode), autoreset=True)
    apart = ew.make_vector(lambda: next(turn)(), num_envs=len(lengths), autoreset=True)

    whole.reset(seed=5), apart.reset(seed=5)
    steps = [(whole.step([0] * 4), apart.step([0] * 4)) for _ in range(7)]

    for one, other in steps:
        assert one.valid.all()
        assert not one.needs_reset.any()
        assert one.terminated.tolist() == other.terminated.tolist()
        if takes_seeds:
            assert repr(one.current) == repr(other.current)
            assert repr(list(map(observed, one))) == repr(list(map(observed, other)))
    if not takes_seeds:  # the vector draws on by itself after the first episode of each
        assert repr(observed(steps[0][0][2])) == repr(observed(steps[0][1][2]))


def observed(row):
    return row.observation


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_vector_of_blackjack_tables_deals_again_where_a_game_ended(kind):
    inner = gym.make_vec("Blackjack-v1", num_envs=4, vectorization_mode=kind)

    with ew.make_vector(inner, autoreset=True) as venv:
        venv.reset(seed=0)
        batches = [venv.step([0, 1, 0, 1]) for _ in range(6)]

    assert all(batch.valid.all() and not batch.needs_reset.any() for batch in batches)
    assert all(batch.terminated[0] and batch[0].ready is not None for batch in batches)
    assert [len(hand) for hand in batches[-1].current] == [3, 3, 3, 3]
