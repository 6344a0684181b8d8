"""OpenEnv's unmodified client against our coding environment."""

from __future__ import annotations

from typing import Any

import pytest
from servers import served

import envweave as ew
from envweave.envs.coding_env import CodingEnvironment

pytestmark = pytest.mark.slow  # starts servers and clients of OpenEnv


@pytest.mark.parametrize("play", ["play_async", "play_sync"])
def test_output_errors_and_status_are_fields_of_the_observation(peer: Any, play: str) -> None:
    calls = [
        ["reset", {"seed": 7, "episode_id": "e1"}],
        ["step", {"code": "x = 20\nprint('set')"}],
        ["step", {"code": "x + 1"}],
        ["step", {"code": "x / 0"}],
        ["state", None],
    ]

    with served(CodingEnvironment) as url:
        began, first, second, failed, state = peer(play, url, calls=calls)

    shown = [one["observation"] for one in (began, first, second, failed)]
    assert [one["stdout"] for one in shown] == ["", "set\n", "", ""]
    assert [one["exit_code"] for one in shown] == [0, 0, 0, 1]
    assert shown[1].keys() == {"stdout", "stderr", "exit_code"}
    metadata = [one["metadata"] for one in (began, first, second, failed)]
    assert [one["result"] for one in metadata] == [None, None, "21", None]
    assert metadata[0]["seed"] == 7
    assert shown[3]["stderr"].endswith("ZeroDivisionError: division by zero\n")
    assert (state["episode_id"], state["step_count"], state["last_exit_code"]) == ("e1", 3, 1)


@pytest.mark.parametrize("options", [{}, {"workers": 1}], ids=["here", "worker"])
def test_their_typed_client_parses_what_is_shown(peer: Any, options: Any) -> None:
    """Its class of observations has three fields, and refuses any other."""
    with served("coding-v0", **options) as url:
        began, printed, failed, state = peer("play_typed", url, codes=["print(6 * 7)", "1 / 0"])

    assert (began["stdout"], began["exit_code"]) == ("", 0)
    assert (printed["stdout"], printed["exit_code"]) == ("42\n", 0)
    assert failed["exit_code"] == 1
    assert "ZeroDivisionError" in failed["stderr"]
    assert (state["step_count"], state["last_exit_code"]) == (2, 1)


def test_a_reward_is_applied_once(peer: Any) -> None:
    transform = ew.create_math_env_transform(expected_answer=42)
    with ew.make(CodingEnvironment, transform=transform) as env:
        env.reset()
        here = env.step({"code": "6 * 7"})

    with served(CodingEnvironment, transform=transform) as url:
        _, there = peer("play_sync", url, calls=[["reset", {}], ["step", {"code": "6 * 7"}]])

    assert there["reward"] == here.reward


def test_a_terminal(peer: Any) -> None:
    calls = [["reset", {}], ["step", {"code": "cd tmp"}], ["step", {"code": "pwd; (exit 3)"}]]

    with served(CodingEnvironment, profile="shell", isolation="auto") as url:
        *_, last = peer("play_sync", url, calls=calls)

    assert last["observation"]["stdout"].endswith("/tmp\n")
    assert last["observation"]["exit_code"] == 3
