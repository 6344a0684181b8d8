import sys

import gymnasium as gym
import pytest

import envweave as ew
from envweave.errors import (
    EnvIdError,
    EnvNotFoundError,
    MissingExtraError,
    OptionError,
    PluginError,
)

PACKAGE = """
import gymnasium
from gymnasium import spaces

class Lamp(gymnasium.Env):
    action_space = observation_space = spaces.Discrete(2)

    def __init__(self, glow=1.0):
        self.glow = glow

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return action, self.glow, True, False, {}

def needy():
    raise gymnasium.error.DependencyNotInstalled("wick is missing, run `pip install wick`")

gymnasium.register("LampOfATest-v0", Lamp, max_episode_steps=5)
gymnasium.register("NeedyLampOfATest-v0", needy)
"""


@pytest.fixture
def lamps(tmp_path, monkeypatch):
    (tmp_path / "lamps_of_a_test.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "lamps_of_a_test"
    sys.modules.pop("lamps_of_a_test", None)
    for name in ("LampOfATest-v0", "NeedyLampOfATest-v0"):
        gym.registry.pop(name, None)


@pytest.mark.parametrize(
    ("env_id", "near"),
    [
        ("gym://CartPol-v1", "gym://CartPole-v1"),
        ("gym://CartPole-v9", "gym://CartPole-v1"),
        ("gym://FrozenLak", "gym://FrozenLake-v1"),
    ],
)
def test_an_unknown_id_is_refused_with_the_nearest_one(env_id, near):
    for ask in (ew.make, ew.spec):
        with pytest.raises(EnvNotFoundError, match=f"Did you mean '{near}'"):
            ask(env_id)


def test_an_unknown_namespace_is_named():
    with pytest.raises(EnvNotFoundError, match="Namespace Atary not found"):
        ew.make("gym://Atary/Pong-v5")


def test_a_malformed_id_is_refused_with_the_right_form():
    with pytest.raises(EnvIdError, match=r"Use 'gym://\[module:\]\[namespace/\]Name-v0'"):
        ew.make("gym://Cart Pole")


def test_a_module_is_imported_first(lamps):
    with ew.make(f"gym://{lamps}:LampOfATest-v0", glow=3.0) as env:
        env.reset(seed=0)

        assert env.step(1).reward == 3.0


def test_a_module_that_cannot_be_imported_is_named():
    with pytest.raises(PluginError, match="names the module 'no_such_module'"):
        ew.make("gym://no_such_module:Lamp-v0")


def test_keywords_go_to_gymnasium():
    with ew.make("gym://FrozenLake-v1", map_name="8x8", is_slippery=False) as env:
        assert env.observation_spec.high == 63


def test_an_unknown_keyword_is_refused_by_name():
    with pytest.raises(OptionError, match=r"'map_nam' .* Did you mean 'map_name'\?"):
        ew.make("gym://FrozenLake-v1", map_nam="8x8")


def test_a_missing_package_of_an_environment_is_reported_with_the_install_command(lamps):
    with pytest.raises(MissingExtraError, match=r"needs a package .* `pip install wick`"):
        ew.make(f"gym://{lamps}:NeedyLampOfATest-v0")


def test_a_spec_can_be_sent_to_another_process_and_has_a_repr():
    spec = ew.spec("gym://CartPole-v1")

    assert spec.id == "gym://CartPole-v1"
    assert isinstance(spec.factory, str)
    assert spec.describe() == "Gymnasium's CartPole-v1"


def test_the_checker_is_off_unless_asked_for():
    made = ew.spec("gym://CartPole-v1").load()
    plain, checked = made("CartPole-v1"), made("CartPole-v1", disable_env_checker=False)

    assert "PassiveEnvChecker" not in str(plain)
    assert "PassiveEnvChecker" in str(checked)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: ew.make("gym://CartPole-v1"),
        lambda: ew.spec("gym://CartPole-v1"),
        lambda: ew.from_gymnasium(None),
        lambda: ew.to_gymnasium("counter-v0"),
    ],
    ids=["make", "spec", "from_gymnasium", "to_gymnasium"],
)
def test_without_gymnasium_the_install_command_is_named(ask, monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'envweave\[gym\]'"):
        ask()


def test_without_gymnasium_envweave_environments_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)

    with ew.make("counter-v0") as env:
        assert env.reset().observation.value == 0
