import sys

import numpy as np
import pettingzoo
import pytest

import envweave as ew
from envweave.errors import EnvIdError, EnvNotFoundError, MissingExtraError, OptionError

TICTACTOE = "pettingzoo://classic/tictactoe_v3"
RPS = "pettingzoo://classic/rps_v2"


@pytest.fixture
def pygame():
    """Every environment that PettingZoo ships draws with it."""
    return pytest.importorskip("pygame", reason="PettingZoo's own environments import pygame")


def legal(mask, rng):
    return int(rng.choice(np.flatnonzero(mask)))


def their_tictactoe(seed):
    rng = np.random.default_rng(seed)
    env = pettingzoo.make("aec", "classic/tictactoe_v3")
    earned = dict.fromkeys(env.possible_agents, 0.0)
    env.reset(seed=seed)
    for agent in env.agent_iter():
        seen, reward, terminated, truncated, _ = env.last()
        earned[agent] += reward
        over = terminated or truncated
        env.step(None if over else legal(seen["action_mask"], rng))
    return earned


@pytest.mark.usefixtures("pygame")
@pytest.mark.parametrize("seed", range(5))
def test_tictactoe_gives_the_rewards_of_pettingzoo(seed):
    rng = np.random.default_rng(seed)
    with ew.make(TICTACTOE) as env:
        result = env.reset(seed=seed)
        while not result.done:
            (need,) = result.needs
            result = env.step({need.agent_id: legal(need.action_mask, rng)})

    assert result.end.rewards == their_tictactoe(seed)


@pytest.mark.usefixtures("pygame")
def test_an_illegal_move_ends_tictactoe_as_in_pettingzoo():
    with ew.make(TICTACTOE) as env:
        env.reset(seed=0)
        env.step({"player_1": 0})
        result = env.step({"player_2": 0})

    assert result.end.rewards == {"player_1": 0.0, "player_2": -1.0}


@pytest.mark.usefixtures("pygame")
def test_rock_paper_scissors_plays_the_same_at_once_and_in_turns():
    totals = []
    for env_id in (RPS, f"{RPS}?api=aec"):
        rng = np.random.default_rng(1)
        with ew.make(env_id, num_actions=5, max_cycles=20) as env:
            result = env.reset(seed=0)
            earned = dict.fromkeys(env.possible_agents, 0.0)
            while not result.done:
                asked = [need.agent_id for need in result.needs]
                result = env.step({agent: int(rng.integers(5)) for agent in asked})
                for agent, reward in result.reward.items():
                    earned[agent] += reward
        totals.append((earned, result.end.reason, result.step_index))

    assert totals[0][0] == totals[1][0]
    assert [one[1:] for one in totals] == [("truncated", 20), ("truncated", 40)]


@pytest.mark.usefixtures("pygame")
def test_a_keyword_chooses_the_form():
    with ew.make(RPS, api="aec") as in_turns, ew.make(RPS) as at_once:
        assert len(in_turns.reset(seed=0).needs) == 1
        assert len(at_once.reset(seed=0).needs) == 2


def test_an_unknown_form_is_refused_with_the_known_ones():
    with pytest.raises(OptionError, match=r"does not have api='parallel'\. It has: aec"):
        ew.make(TICTACTOE, api="parallel")


@pytest.mark.parametrize(
    ("env_id", "near"),
    [
        ("pettingzoo://classic/tictacto_v3", "pettingzoo://classic/tictactoe_v3"),
        ("pettingzoo://classic/tictactoe_v1", "pettingzoo://classic/tictactoe_v3"),
        ("pettingzoo://clasic/rps-v2", "pettingzoo://classic/rps_v2"),
    ],
)
def test_an_unknown_id_is_refused_with_the_nearest_one(env_id, near):
    for ask in (ew.make, ew.spec):
        with pytest.raises(EnvNotFoundError, match=f"Did you mean '{near}'"):
            ask(env_id)


@pytest.mark.parametrize("query", ["api=fast", "cycles=3", "api", "api=aec&x=1"])
def test_an_invalid_query_is_refused(query):
    with pytest.raises(EnvIdError, match="'\\?api=parallel' or '\\?api=aec'"):
        ew.spec(f"{RPS}?{query}")


def test_a_package_that_an_environment_needs_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    for name in [name for name in sys.modules if name.startswith("pettingzoo.classic.go")]:
        monkeypatch.delitem(sys.modules, name)
    pettingzoo.env_registry.spec._load_env_creator.cache_clear()

    with pytest.raises(MissingExtraError, match=r"pygame.* pip install 'pettingzoo\[classic\]'"):
        ew.make("pettingzoo://classic/go_v5")


def test_a_spec_can_be_sent_to_another_process_and_has_a_repr():
    spec = ew.spec(TICTACTOE)

    assert spec.id == TICTACTOE
    assert isinstance(spec.factory, str)
    assert spec.describe() == "PettingZoo's classic/tictactoe_v3"


@pytest.mark.parametrize(
    "ask",
    [
        lambda: ew.make(TICTACTOE),
        lambda: ew.spec(TICTACTOE),
        lambda: ew.from_pettingzoo(None),
        lambda: ew.to_pettingzoo("tictactoe-v0"),
    ],
    ids=["make", "spec", "from_pettingzoo", "to_pettingzoo"],
)
def test_without_pettingzoo_the_install_command_is_named(ask, monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'envweave\[pettingzoo\]'"):
        ask()


def test_without_pettingzoo_envweave_environments_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)

    with ew.make("tictactoe-v0") as env:
        assert len(env.reset().needs) == 1


def test_a_pettingzoo_without_a_registry_is_an_error(monkeypatch):
    monkeypatch.delattr(pettingzoo, "aec_registry")

    with pytest.raises(MissingExtraError, match=r"needs PettingZoo 1\.27 or newer"):
        ew.spec(TICTACTOE)
