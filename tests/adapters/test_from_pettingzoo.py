import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces
from pettingzoo.utils.conversions import parallel_to_aec

import envweave as ew
from envweave.errors import ActionError, DefinitionError, ResetNeededError


class Auction(pettingzoo.ParallelEnv):
    """All bid at once; who bids 0 is out, and the last one wins.

    If `chatty`, it continues to report on agents that left, and on unknown agents.
    """

    render_mode = None

    def __init__(self, names=("ann", "bob", "cid"), chatty=False):
        self.metadata = {"name": "auction", "render_modes": []}
        self.possible_agents = list(names)
        self.chatty = chatty
        self.closed = 0

    def observation_space(self, agent):
        return spaces.Box(0, 9, (3,), np.int64)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents = self.possible_agents[:]
        self._purse = np.random.default_rng(seed).integers(1, 5, 3)
        self._gone = set()
        return self._say(self._purse.copy()), self._say({})

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self._gone |= {agent for agent, bid in actions.items() if bid == 0}
        over = len(set(self.agents) - self._gone) <= 1
        reported = (
            self._say(self._purse.copy()),
            {**self._say(0.0), **{agent: float(bid) for agent, bid in actions.items()}},
            {agent: over or agent in self._gone for agent in self._say(None)},
            self._say(False),
            self._say({"action_mask": np.ones(3, np.int8)}),
        )
        self.agents = [] if over else [a for a in self.agents if a not in self._gone]
        return reported

    def _say(self, value):
        to = [*self.possible_agents, "common"] if self.chatty else self.agents
        return dict.fromkeys(to, value)

    def close(self):
        self.closed += 1


class Relay(pettingzoo.AECEnv):
    """Runners pass a baton. A 0 drops out; a runner who stays is paid for each that drops.

    A runner who dropped stays listed until its turn comes, and is still paid meanwhile. A
    fourth runner joins after the third step. Six moves truncate.
    """

    def __init__(self):
        super().__init__()
        self.metadata = {"name": "relay", "render_modes": []}
        self.possible_agents = ["r_0", "r_1", "r_2", "r_3"]
        self.observed = []

    def observation_space(self, agent):
        return spaces.Dict(
            {
                "observation": spaces.Discrete(100),
                "action_mask": spaces.Box(0, 1, (3,), np.int8),
            }
        )

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents = self.possible_agents[:3]
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {"step": 0} for agent in self.agents}
        self._taken = 0
        self._skip_agent_selection = None
        self.agent_selection = "r_0"

    def observe(self, agent):
        self.observed.append(agent)
        mask = np.full(3, agent == self.agent_selection, np.int8)
        return {"observation": self._taken, "action_mask": mask}

    def step(self, action):
        agent = self.agent_selection
        following = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            if self.agents:
                self.agent_selection = following
            return
        self._clear_rewards()
        self._cumulative_rewards[agent] = 0
        self._taken += 1
        if action == 0:
            self.terminations[agent] = True
        self.rewards[agent] += action
        for other in self.agents:
            self.rewards[other] += 10 * (action == 0 and other != agent)
            self.infos[other] = {"step": self._taken}
        if self._taken == 3:
            self.agents.append("r_3")
            self.rewards["r_3"] = self._cumulative_rewards["r_3"] = 0
            self.terminations["r_3"] = self.truncations["r_3"] = False
            self.infos["r_3"] = {"step": 3}
        if self._taken == 6:
            self.truncations = dict.fromkeys(self.agents, True)
        self.agent_selection = following
        self._accumulate_rewards()

    def close(self):
        pass


def play_theirs(env, actions, seed):
    """Play as PettingZoo's documentation does; return the rewards of each agent."""
    earned = dict.fromkeys(env.possible_agents, 0.0)
    moves = iter(actions)
    env.reset(seed=seed)
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        earned[agent] += reward
        env.step(None if terminated or truncated else next(moves)(env.action_space(agent)))
    return earned


def play_ours(env, actions, seed):
    """Play; return what each agent's requests said it earned, and what the steps said."""
    asked = dict.fromkeys(env.possible_agents, 0.0)
    stepped = dict.fromkeys(env.possible_agents, 0.0)
    moves = iter(actions)
    result = env.reset(seed=seed)
    while not result.done:
        for need in result.needs:
            asked[need.agent_id] += need.reward or 0.0
        spaces_of = {need.agent_id: env.action_spec[need.agent_id] for need in result.needs}
        result = env.step(
            {agent: next(moves)(spec.to_space()) for agent, spec in spaces_of.items()}
        )
        for agent, reward in result.reward.items():
            stepped[agent] += reward
        for left in result.events:
            asked[left.agent_id] += left.reward or 0.0
    for agent, reward in result.end.rewards.items():
        asked[agent] += reward or 0.0
    return asked, stepped


def choices(numbers):
    return [lambda _, number=number: number for number in numbers]


@pytest.mark.parametrize(
    "numbers",
    [
        [1, 1, 1, 1, 1, 1],
        [0, 1, 2, 1, 2, 1],
        [0, 0, 2, 1, 2, 1],
        [1, 0, 0, 1, 1, 1],
        [2, 0, 1, 0, 0, 0],
    ],
)
def test_in_turns_each_agent_earns_its_pettingzoo_reward(numbers):
    expected = play_theirs(Relay(), choices(numbers), seed=0)

    with ew.make(Relay()) as env:
        asked, stepped = play_ours(env, choices(numbers), seed=0)

    assert asked == expected
    assert stepped == expected
    assert sum(expected.values()) > 0


def test_only_the_selected_agent_must_act():
    with ew.make(Relay()) as env:
        result = env.reset(seed=0)
        assert [need.agent_id for need in result.needs] == ["r_0"]

        with pytest.raises(ActionError, match="not this agent's turn"):
            env.step({"r_1": 1})
        result = env.step({"r_0": 1})

        assert [need.agent_id for need in result.needs] == ["r_1"]


def test_a_mask_in_the_observation_is_shown_and_the_observation_stays():
    with ew.make(Relay()) as env:
        need = env.reset(seed=0).needs[0]

    assert need.action_mask.tolist() == [1, 1, 1]
    assert need.observation["action_mask"].tolist() == [1, 1, 1]
    assert need.observation["observation"] == 0


def test_an_agent_leaves_when_pettingzoo_removes_it_and_newcomers_join():
    with ew.make(Relay()) as env:
        env.reset(seed=0)
        env.step({"r_0": 0})
        result = env.step({"r_1": 1})
        assert (result.events, env.agents) == ([], ["r_0", "r_1", "r_2"])

        result = env.step({"r_2": 0})

        (left,) = result.events
        assert (left.agent_id, left.reward, left.terminated) == ("r_0", 10.0, True)
        assert env.agents == ["r_1", "r_2", "r_3"]
        assert result.needs[0].agent_id == "r_1"


def test_only_those_concerned_are_observed():
    inner = Relay()
    with ew.make(inner) as env:
        env.reset(seed=0)
        assert inner.observed == ["r_0", "r_1", "r_2"]

        env.step({"r_0": 1})

    assert inner.observed[3:] == ["r_1"]


@pytest.mark.parametrize("chatty", [False, True])
def test_all_living_agents_act_at_once(chatty):
    with ew.make(Auction(chatty=chatty)) as env:
        result = env.reset(seed=3)
        assert [need.agent_id for need in result.needs] == ["ann", "bob", "cid"]

        result = env.step({"ann": 0, "bob": 1, "cid": 2})
        assert [left.agent_id for left in result.events] == ["ann"]
        assert env.agents == ["bob", "cid"]
        assert result.needs[0].action_mask.tolist() == [1, 1, 1]
        with pytest.raises(ActionError, match="this agent has left"):
            env.step({"ann": 1, "bob": 1, "cid": 1})

        result = env.step({"bob": 0, "cid": 1})
        assert result.end.rewards == {"bob": 0.0, "cid": 1.0}


def test_a_seed_gives_pettingzoos_own_observations():
    theirs, _ = Auction().reset(seed=8)

    with ew.make(Auction()) as env:
        ours = env.reset(seed=8).observation

    assert {agent: seen.tolist() for agent, seen in ours.items()} == {
        agent: seen.tolist() for agent, seen in theirs.items()
    }


def test_both_forms_of_one_environment_give_equal_rewards():
    numbers = [1, 2, 0, 2, 1, 0, 2]
    with ew.make(Auction()) as parallel, ew.make(parallel_to_aec(Auction())) as turns:
        at_once = play_ours(parallel, choices(numbers), seed=0)[0]
        in_turns = play_ours(turns, choices(numbers), seed=0)[0]

    assert at_once == in_turns == {"ann": 3.0, "bob": 5.0, "cid": 0.0}


def test_it_is_closed():
    inner = Auction()

    ew.make(inner).close()

    assert inner.closed == 1


def test_an_environment_without_possible_agents_is_refused():
    with pytest.raises(DefinitionError, match="auction has no possible_agents"):
        ew.make(Auction(names=[]))


def test_agents_without_a_proper_name_are_refused():
    with pytest.raises(DefinitionError, match=r"names are not strings: \[0, 1\]"):
        ew.make(Auction(names=[0, 1]))


def test_a_non_pettingzoo_environment_is_refused():
    with pytest.raises(DefinitionError, match="neither a ParallelEnv nor an AECEnv"):
        ew.from_pettingzoo(3)


def test_messages_call_it_by_its_own_name():
    with ew.make(Relay()) as env, pytest.raises(ResetNeededError, match=r"step\(\) on relay"):
        env.step({"r_0": 1})


def test_an_environment_that_never_removes_an_agent_fails_and_does_not_hang():
    class Stuck(Relay):
        def step(self, action):
            if action is not None:
                self.terminations = dict.fromkeys(self.agents, True)

    with ew.make(Stuck()) as env:
        env.reset(seed=0)

        result = env.step({"r_0": 1})

    assert not result.valid
    assert "keeps selecting 'r_0'" in result.end.cause
