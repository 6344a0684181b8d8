"""Gymnasium's own vectors, adapted whole: the same promises as for single environments."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import envweave as ew
from envweave.errors import ActionError, ClosedError, OptionError, ResetNeededError, SeedError
from envweave.types import EpisodeEnd

MODES = list(AutoresetMode)


class Walk(gym.Env):
    """Counts its steps; its k-th episode ends after the k-th of `lengths`, in turns of both ways.

    What it shows are the steps taken, and a number drawn at the reset.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(3, start=-1)

    def __init__(self, lengths=(3,), is_random=True):
        self.lengths, self.is_random, self.episode = lengths, is_random, -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.steps, self.sum = 0, 0
        self.drawn = self.np_random.random() if self.is_random else self.episode
        return self.show(), {"options": options} if options else {}

    def step(self, action):
        self.steps += 1
        self.sum += int(action)
        over = self.steps >= self.lengths[self.episode % len(self.lengths)]
        cut = self.episode % 2 == 1
        info = {"sum": self.sum} if self.steps % 2 else {}
        return self.show(), float(self.sum), over and not cut, over and cut, info

    def show(self):
        return np.array([self.steps, self.drawn], np.float32)


def walks(lengths, mode, is_random=True, kind=SyncVectorEnv, **more):
    makers = [lambda one=one: Walk(one, is_random) for one in lengths]
    return kind(makers, autoreset_mode=mode, **more)


def serial(lengths, is_random=True, autoreset=True):
    turn = iter(lengths)
    return ew.make_vector(
        lambda: Walk(next(turn), is_random), num_envs=len(lengths), autoreset=autoreset
    )


def plain(batch):
    """Everything that a batch says, but for the names of episodes."""
    rows = list(batch)
    for row in rows:
        row.episode_id = None
        if row.ready is not None:
            row.ready.episode_id = None
            row.ready.initial_info.pop("seed", None)
        row.info.pop("seed", None)
    columns = ("current", "successor", "reward", "terminated", "truncated", "valid")
    columns += ("bootstrap", "needs_reset", "step_index", "ids")
    return [repr(getattr(batch, name).tolist()) for name in columns], rows  # by text, for NaN


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=4),
    mode=st.sampled_from(MODES),
    data=st.data(),
)
def test_a_vector_adapted_whole_gives_the_batches_of_its_environments(lengths, mode, data):
    # A vector that resets itself draws its own seeds; only the others get each episode's seed.
    is_random = mode is not AutoresetMode.SAME_STEP
    whole = ew.make_vector(walks(lengths, mode, is_random), autoreset=True)
    apart = serial(lengths, is_random)

    assert plain(whole.reset(seed=5)) == plain(apart.reset(seed=5))
    for _ in range(12):
        actions = data.draw(
            st.lists(st.integers(-1, 1), min_size=len(lengths), max_size=len(lengths))
        )
        form = data.draw(st.sampled_from([list, np.array]))
        assert plain(whole.step(form(actions))) == plain(apart.step(form(actions)))


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_each_episode_has_the_seed_that_a_single_environment_would_get(mode):
    lengths = [(2,), (3,)]
    whole, apart = ew.make_vector(walks(lengths, mode), autoreset=True), serial(lengths)

    def seeds(venv):
        first = [info["seed"] for info in venv.reset(seed=[7, 70]).infos]
        batches = [venv.step([0, 0]) for _ in range(6)]
        later = [row.ready.initial_info["seed"] for b in batches for row in b if row.ready]
        return first + later

    assert seeds(whole) == seeds(apart)


def test_a_vector_in_worker_processes_is_adapted_like_one_in_this():
    lengths = [(2,), (3,)]
    with (
        ew.make_vector(
            walks(lengths, AutoresetMode.NEXT_STEP, kind=AsyncVectorEnv), autoreset=True
        ) as venv,
        serial(lengths) as apart,
    ):
        assert plain(venv.reset(seed=1)) == plain(apart.reset(seed=1))

        for _ in range(5):
            assert plain(venv.step([1, 0])) == plain(apart.step([1, 0]))


@pytest.mark.parametrize("mode", MODES)
def test_the_final_observation_is_never_the_next_episodes_first(mode):
    venv = ew.make_vector(walks([(2,), (3,)], mode, is_random=False), autoreset=True)
    venv.reset()
    venv.step([0, 0])

    batch = venv.step([1, 1])

    assert batch.successor[:, 0].tolist() == [2, 2]
    assert batch.current.tolist() == [[0, 1], [2, 0]]
    assert batch[0].requests[0] == EpisodeEnd("terminated")
    assert batch[0].ready.initial_obs.tolist() == [0, 1]
    assert batch.bootstrap.tolist() == [False, True]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_without_autoreset_an_ended_row_waits_for_its_reset(mode):
    venv = ew.make_vector(walks([(1,), (9,)], mode))
    venv.reset(seed=0)
    batch = venv.step([0, 0])
    assert batch.needs_reset.tolist() == [True, False]
    with pytest.raises(ResetNeededError, match=r"environments \[0\].*its episode is over"):
        venv.step([0, 0])

    began = venv.reset(ids=[0], seed=9)

    assert began.began.tolist() == [True, False]
    assert began.step_index.tolist() == [0, 1]
    assert venv.step([0, 0]).step_index.tolist() == [1, 2]


def test_batches_belong_to_the_caller():
    venv = ew.make_vector(
        walks([(9,)], AutoresetMode.SAME_STEP, is_random=False, copy=False), autoreset=True
    )
    first = venv.reset()
    before = first.current.copy()

    batch = venv.step([1])
    later = venv.step([1])
    batch.successor[:] = -1

    assert first.current.tolist() == before.tolist()
    assert later[0].observation.tolist() == [2, 0]
    assert batch[0].observation.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ([0, 7], r"actions\[1\]: 7 is not between -1 and 1"),
        (np.array([0, 7]), r"actions\[1\]: 7 is not between -1 and 1"),
        (np.array([0.5, 0]), r"actions\[0\]: 0.5 is not an int"),
        ([0], "got 1 for 2 environments"),
        (np.array([0, 0, 0]), "got 3 for 2 environments"),
        ({"a": [0, 0]}, r"actions\[0\]"),
    ],
)
def test_a_bad_action_is_refused_by_index_and_the_batch_is_unchanged(actions, words):
    venv = ew.make_vector(walks([(9,), (9,)], AutoresetMode.SAME_STEP), autoreset=True)
    venv.reset()

    with pytest.raises(ActionError, match=words):
        venv.step(actions)

    assert venv.step([0, 0]).step_index.tolist() == [1, 1]


def test_dict_spaces_become_columns_both_ways():
    class Scale(gym.Env):
        observation_space = spaces.Dict(
            {"weight": spaces.Box(0, 9, (1,), np.float64), "full": spaces.Discrete(2)}
        )
        action_space = spaces.Dict({"put": spaces.Discrete(5), "note": spaces.Text(4)})

        def reset(self, *, seed=None, options=None):
            return {"weight": np.zeros(1), "full": 0}, {}

        def step(self, action):
            shown = {"weight": np.array([float(action["put"])]), "full": 1}
            return shown, 1.0, action["note"] == "end", False, {}

    venv = ew.make_vector(
        SyncVectorEnv([Scale] * 2, autoreset_mode=AutoresetMode.SAME_STEP), autoreset=True
    )
    assert venv.reset().current["full"].tolist() == [0, 0]

    batch = venv.step({"put": [1, 2], "note": ["go", "end"]})

    assert batch.successor["weight"].tolist() == [[1.0], [2.0]]
    assert batch.current["weight"].tolist() == [[1.0], [0.0]]
    assert batch.current["full"].dtype == np.int64
    assert batch[0].observation == {"weight": np.array([1.0]), "full": 1}
    assert batch[1].observation == {"weight": np.array([2.0]), "full": 1}
    assert batch[1].ready.initial_obs["full"] == 0


def test_send_and_recv_step_all_at_once():
    venv = ew.make_vector(walks([(9,), (9,)], AutoresetMode.SAME_STEP), autoreset=True)
    venv.reset()
    with pytest.raises(OptionError, match=r"ids=\[1\] cannot be honored.*Send an action for each"):
        venv.send([0], ids=[1])

    venv.send([1, -1], ids=[1, 0])
    batch = venv.recv()

    assert venv.in_flight == 0
    assert batch.ids.tolist() == [0, 1]
    assert batch.reward.tolist() == [-1.0, 1.0]


def test_the_state_has_the_step_count_of_each_episode():
    venv = ew.make_vector(walks([(2,), (9,)], AutoresetMode.SAME_STEP), autoreset=True)
    venv.reset()

    batch = [venv.step([0, 0]) for _ in range(3)][-1]

    assert [one.step_count for one in venv.state()] == [1, 3]
    assert [one.episode_id for one in venv.state()] == batch.episode_id


def test_it_is_closed_once_and_refuses_later_calls():
    closed = []

    class Closing(Walk):
        def close(self):
            closed.append(self)

    inner = SyncVectorEnv([Closing], autoreset_mode=AutoresetMode.SAME_STEP)
    venv = ew.make_vector(inner, autoreset=True)
    with pytest.raises(ResetNeededError, match="before the first reset"):
        venv.step([0])

    venv.close()
    venv.close()

    assert len(closed) == 1
    with pytest.raises(ClosedError):
        venv.reset()


def test_a_wrappers_statistics_belong_to_the_episode_that_ended():
    inner = gym.wrappers.vector.RecordEpisodeStatistics(
        walks([(2,), (9,)], AutoresetMode.SAME_STEP)
    )
    venv = ew.make_vector(inner, autoreset=True)
    venv.reset()
    venv.step([1, 1])

    row = venv.step([1, 1])[0]

    assert (row.info["episode"]["r"], row.info["episode"]["l"]) == (3.0, 2)
    assert "episode" not in row.ready.initial_info


def test_options_reach_every_environment_and_the_mask_is_not_the_callers():
    venv = ew.make_vector(walks([(9,), (9,)], AutoresetMode.DISABLED))
    venv.reset()

    began = venv.reset(ids=[1], options={"wind": 2})

    assert began.infos[1]["options"] == {"wind": 2}
    with pytest.raises(OptionError, match=r"Use ids=\[…\]"):
        venv.reset(options={"reset_mask": np.array([True, False])})


def test_invalid_seeds_and_tasks_are_refused_before_anything_is_reset():
    venv = ew.make_vector(walks([(9,), (9,)], AutoresetMode.DISABLED))
    venv.reset(seed=0)

    with pytest.raises(SeedError, match="must be an integer >= 0"):
        venv.reset(seed=[1, -1])
    with pytest.raises(ew.errors.TaskError, match="takes no task"):
        venv.reset(task="maze")

    assert venv.step([0, 0]).step_index.tolist() == [1, 1]


class Pool(gym.vector.VectorEnv):
    """Resets as EnvPool does: in the next step, or on demand, and then returns those rows alone."""

    __module__ = "envpool.of.a.test"
    is_async = False
    num_envs = 3
    single_action_space, single_observation_space = spaces.Discrete(2), spaces.Discrete(99)

    def __init__(self):
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.steps = np.zeros(3, np.int64)
        self.pending = np.zeros(3, bool)

    def reset(self, *, seed=None, options=None):
        assert seed is None
        ids = np.flatnonzero((options or {"reset_mask": [True] * 3})["reset_mask"])
        self.steps[ids], self.pending[ids] = 0, False
        return self.steps[ids], {"env_id": ids, "version": np.array(5)}

    def step(self, actions):
        self.steps = np.where(self.pending, 0, self.steps + 1)
        self.pending = self.steps > np.arange(3)
        return self.steps, np.ones(3), self.pending.copy(), np.zeros(3, bool), {}


def test_a_pool_that_returns_only_what_was_reset_is_understood():
    venv = ew.make_vector(Pool(), autoreset=True)
    venv.reset()
    with pytest.raises(SeedError, match="takes its seed when it is made"):
        venv.reset(seed=0)

    batches = [venv.step([0, 0, 0]) for _ in range(2)]

    assert [b.successor.tolist() for b in batches] == [[1, 1, 1], [1, 2, 2]]
    assert [b.current.tolist() for b in batches] == [[0, 1, 1], [0, 0, 2]]
    assert batches[1][1].ready.initial_info == {"env_id": 1, "version": np.array(5)}
