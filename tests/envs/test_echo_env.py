"""The echo environment, as its seed has it: in-process, served, and through its client."""

from __future__ import annotations

import subprocess
import sys

import pytest
from servers import app_served

import envweave as ew
from envweave.envs.echo_env import EchoAction, EchoEnv, EchoEnvironment, EchoObservation


@pytest.fixture(scope="module")
def url():
    from envweave.envs.echo_env.server.app import app

    with app_served(app) as where:
        yield where


def test_it_is_known_by_its_id() -> None:
    with ew.make("echo-v0") as env:
        began = env.reset()
        result = env.step(EchoAction("Hello, World!"))

    assert began.observation == EchoObservation("Echo environment ready!", 0)
    assert result.observation == EchoObservation("Hello, World!", 13, reward=1.3)
    assert str(result.reward) == "1.3"


@pytest.mark.parametrize("length", [0, 1, 3, 7, 29])
def test_a_reward_is_a_tenth_of_the_length_to_the_last_digit(length: int) -> None:
    earned = EchoEnvironment().step(EchoAction("x" * length)).reward

    assert str(earned) == f"{length // 10}.{length % 10}"


def test_its_client_reaches_its_app(url: str) -> None:
    with EchoEnv(url) as env:
        began = env.reset(seed=3, episode_id="mine")
        result = env.step(EchoAction("Hello, World!"))
        state = env.state()

    assert began.observation == EchoObservation("Echo environment ready!")
    assert (result.observation.echoed_message, result.reward) == ("Hello, World!", 1.3)
    assert result.done is False
    assert state == ew.State(episode_id="mine", step_count=1)


@pytest.mark.slow  # starts Python anew
def test_its_models_are_importable_without_the_server() -> None:
    code = "import sys, envweave.envs.echo_env as e; e.EchoEnv; print('starlette' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
