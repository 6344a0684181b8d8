import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

import envweave as ew
from envweave.errors import (
    ActionError,
    BadReturnError,
    DefinitionError,
    EnvironmentFailure,
    OptionError,
    ResetNeededError,
    SeedError,
    SpecError,
    ToolCallOpenError,
)


@dataclass
class Turn(ew.Action):
    dial: Annotated[int, ew.Bounds(-2, 2)]
    knob: Literal["low", "high"]


@dataclass
class Panel(ew.Observation):
    dial: Annotated[int, ew.Bounds(-20, 20)]
    lamp: bool
    level: Annotated[float, ew.Bounds(0, 1)]
    screen: Annotated[np.ndarray, ew.Bounds(0, 255, shape=(2, 2), dtype="uint8")]
    label: str


class Radio(ew.Environment):
    """Turn a dial to 5 or beyond; drawn by seed. Its numbers are all bounded."""

    def __init__(self, limit: int = 9) -> None:
        self.limit = limit

    def reset(self, *, seed: int | None = None) -> Panel:
        self._rng = np.random.default_rng(seed)
        self._dial, self._taken = 0, 0
        return self._panel()

    def step(self, action: Turn) -> Panel:
        self._dial += action.dial if action.knob == "high" else int(np.sign(action.dial))
        self._taken += 1
        panel = self._panel()
        panel.reward = float(action.dial)
        panel.done = abs(self._dial) >= 5
        panel.truncated = self._taken >= self.limit
        panel.metadata["taken"] = self._taken
        return panel

    def _panel(self) -> Panel:
        screen = self._rng.integers(0, 256, (2, 2), np.uint8)
        return Panel(self._dial, self._dial > 0, float(self._rng.random()), screen, "…")


@dataclass
class Push(ew.Action):
    button: Literal["ok", "crash", "wait", "tool", "odd"]


@dataclass
class Light(ew.Observation):
    colour: Literal["red", "green"]


class Machine(ew.Environment):
    """Does what the button says; its `reset` takes no seed and no options."""

    def reset(self) -> Light:
        return Light("red", metadata={"action_mask": [True, False, True, False, False]})

    def step(self, action: Push) -> Light:
        if action.button == "crash":
            raise ValueError("smoke")
        if action.button == "tool":
            self.emit(ew.ToolCallRequest("1", "search"))
        if action.button in ("wait", "tool"):
            return Light("green")
        return Light("blue" if action.button == "odd" else "green", reward=1.0, done=True)


def test_spaces_come_from_the_hints():
    env = ew.to_gymnasium(Radio)

    assert env.action_space == spaces.Dict(
        {"dial": spaces.Discrete(5, start=-2), "knob": spaces.Discrete(2)}
    )
    assert env.observation_space["dial"] == spaces.Discrete(41, start=-20)
    assert env.observation_space["screen"] == spaces.Box(0, 255, (2, 2), np.uint8)
    assert set(env.observation_space) == {"dial", "lamp", "level", "screen", "label"}
    env.close()


@pytest.mark.parametrize(
    ("env", "flatten"), [(Radio, False), ("lineworld-v0", False), ("lineworld-v0", True)]
)
def test_the_official_checker_passes(env, flatten):
    adapted = ew.to_gymnasium(env, flatten=flatten)

    check_env(adapted)

    adapted.close()


def test_the_official_checker_warns_only_about_an_unbounded_action():
    adapted = ew.to_gymnasium("counter-v0")

    with pytest.warns(UserWarning, match="normalized space") as warned:
        check_env(adapted)

    assert len(warned) == 1
    adapted.close()


def test_the_official_checker_gives_its_usual_warnings_for_cartpole():
    adapted = ew.to_gymnasium("gym://CartPole-v1")

    with pytest.warns(UserWarning, match="infinity") as warned:
        check_env(adapted)

    assert len(warned) == 2
    assert all("infinity" in str(warning.message) for warning in warned)
    adapted.close()


def test_an_episode_equals_that_of_make_with_the_same_seed():
    actions = [(1, "low"), (-1, "high"), (2, "high"), (2, "high"), (2, "high")]
    inside, outside = ew.make(Radio), ew.to_gymnasium(Radio)
    inside.reset(seed=4)
    outside.reset(seed=4)

    for dial, knob in actions:
        expected = inside.step(Turn(dial, knob))
        seen, *rest = outside.step({"dial": dial, "knob": ["low", "high"].index(knob)})

        assert rest == [expected.reward, expected.terminated, expected.truncated, expected.info]
        assert seen["level"] == expected.observation.level
        assert np.array_equal(seen["screen"], expected.observation.screen)
    assert expected.terminated
    inside.close()
    outside.close()


def play(env: ew.Env, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    results = [env.reset(seed=seed)]
    while not results[-1].done:
        results.append(env.step(env.action_spec.sample(rng)))
    return [
        (np.asarray(one.observation).tolist(), one.reward, one.terminated, one.truncated)
        for one in results
    ]


@pytest.mark.parametrize("gym_id", ["CartPole-v1", "Taxi-v4", "Pendulum-v1"])
def test_a_round_trip_gives_equal_episodes(gym_id):
    with ew.make(f"gym://{gym_id}") as straight:
        round_trip = ew.to_gymnasium(f"gym://{gym_id}")
        with ew.make(round_trip) as env:
            assert env.action_spec.to_space() == straight.action_spec.to_space()
            assert play(env, 2) == play(straight, 2)


def test_our_own_environment_comes_back_with_equal_rewards():
    with ew.make("lineworld-v0") as straight, ew.make(ew.to_gymnasium("lineworld-v0")) as env:
        result, expected = env.reset(seed=1), straight.reset(seed=1)
        while not expected.done:
            result, expected = env.step(1), straight.step({"move": 1})
            assert result.reward == expected.reward
            assert result.observation["position"] == expected.observation.position

    assert result.done


def test_an_action_of_one_field_is_given_without_its_name():
    env = ew.to_gymnasium("lineworld-v0")
    env.reset(seed=0)

    assert env.action_space == spaces.Discrete(2)
    assert env.step(np.int64(1))[2] is False
    env.close()


def test_keywords_go_to_make():
    env = ew.to_gymnasium(Radio, limit=1)
    env.reset(seed=0)

    *_, truncated, info = env.step({"dial": 0, "knob": 0})

    assert truncated is True
    assert info == {"taken": 1}
    env.close()


def test_an_id_of_another_registry_is_found():
    registry = ew.Registry()
    registry.register("radio-v0", Radio)

    env = ew.to_gymnasium("radio-v0", registry=registry)
    again = env.spec.make()

    assert env.spec.id == "envweave/radio-v0"
    assert again.reset(seed=0)[0].keys() == env.reset(seed=0)[0].keys()
    env.close()
    again.close()


def test_an_existing_env_is_used_unchanged():
    made = ew.make(Radio(), max_episode_steps=1)
    env = ew.to_gymnasium(made)
    env.reset(seed=0)

    assert env.step({"dial": 0, "knob": 0})[3] is True
    assert env.spec is None
    env.close()


def test_an_unscored_step_is_nan_and_no_zero():
    env = ew.to_gymnasium(Machine)
    env.reset()

    _, reward, terminated, truncated, _ = env.step(2)

    assert math.isnan(reward)
    assert (terminated, truncated) == (False, False)
    env.close()


def test_a_failure_is_raised_with_its_cause_and_needs_a_reset():
    env = ew.to_gymnasium(Machine)
    env.reset()

    with pytest.raises(EnvironmentFailure, match=r"Machine .* environment\): ValueError: smoke"):
        env.step(1)
    with pytest.raises(ResetNeededError):
        env.step(0)

    env.reset()
    assert env.step(0)[1] == 1.0
    env.close()


def test_a_tool_call_is_refused_since_it_cannot_be_answered():
    env = ew.to_gymnasium(Machine)
    env.reset()

    with pytest.raises(ToolCallOpenError, match=r"search\(\).*Use envweave\.make\(\)"):
        env.step(3)
    env.close()


def test_an_observation_outside_its_space_is_the_environments_fault():
    env = ew.to_gymnasium(Machine)
    env.reset()

    with pytest.raises(BadReturnError, match=r"observation\.colour: 'blue' is not one of 'red'"):
        env.step(4)
    env.close()


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ({"dial": 3, "knob": 0}, r"action\['dial'\]: 3 is not between -2 and 2"),
        ({"dial": 0, "knob": 2}, r"action\['knob'\]: 2 is not between 0 and 1"),
        ({"dial": 0}, r"action\['knob'\]: this key is missing"),
        (0, "action: 0 is not a dict"),
    ],
)
def test_an_action_outside_its_space_is_refused_and_the_episode_unharmed(action, message):
    env = ew.to_gymnasium(Radio)
    env.reset(seed=0)

    with pytest.raises(ActionError, match=message):
        env.step(action)

    assert env.step({"dial": 0, "knob": 0})[4] == {"taken": 1}
    env.close()


def test_a_mask_has_the_form_that_gymnasium_samples_with():
    env = ew.to_gymnasium(Machine)

    _, info = env.reset()

    assert info["action_mask"].dtype == np.int8
    assert env.action_space.sample(info["action_mask"]) in (0, 2)
    env.close()


def test_a_seed_that_cannot_be_honored_is_refused():
    env = ew.to_gymnasium(Machine)

    with pytest.raises(SeedError):
        env.reset(seed=1)
    env.close()


def test_options_that_are_not_taken_are_refused_unless_empty():
    env = ew.to_gymnasium(Radio)

    env.reset(options={})
    with pytest.raises(OptionError):
        env.reset(options={"volume": 3})
    env.close()


def test_an_environment_that_resets_itself_is_refused():
    env = ew.to_gymnasium(ew.make(Radio, autoreset=True, limit=1))
    env.reset(seed=0)

    with pytest.raises(OptionError, match="autoreset"):
        ew.to_gymnasium(Radio, autoreset=True)
    with pytest.raises(OptionError, match="Make it without"):
        env.step({"dial": 0, "knob": 0})
    env.close()


def test_keywords_for_an_existing_environment_are_refused():
    with ew.make(Radio) as made, pytest.raises(OptionError, match="'limit' comes too late"):
        ew.to_gymnasium(made, limit=3)


def test_several_agents_are_refused_with_the_alternative():
    with pytest.raises(DefinitionError, match=r"to_pettingzoo\(\)"):
        ew.to_gymnasium("tictactoe-v0")


def test_an_environment_without_hints_is_refused_and_closed_again():
    closed = []

    class Untyped(ew.Environment):
        def reset(self):
            return 0

        def step(self, action):
            return 0, 0.0, True, False, {}

        def close(self):
            closed.append(True)

    with pytest.raises(SpecError, match=r"^action: AnySpec\(\) has no Gymnasium space"):
        ew.to_gymnasium(Untyped)

    assert closed == [True]


def test_rendering_shows_the_last_observation_as_text():
    env = ew.to_gymnasium(Machine, render_mode="ansi")
    env.reset()

    assert "colour='red'" in env.render()
    assert ew.to_gymnasium(Machine).render() is None
    with pytest.raises(OptionError, match="must be 'ansi' or None"):
        ew.to_gymnasium(Machine, render_mode="human")
    env.close()


def test_gymnasiums_vectors_and_wrappers_take_it():
    vector = gym.vector.SyncVectorEnv([lambda: ew.to_gymnasium(Radio)] * 2)

    observations, _ = vector.reset(seed=0)

    assert observations["screen"].shape == (2, 2, 2)
    vector.close()


def test_closing_twice_closes_once():
    class Counted(Radio):
        closed = 0

        def close(self):
            Counted.closed += 1

    env = ew.to_gymnasium(Counted)

    env.close()
    env.close()

    assert Counted.closed == 1
