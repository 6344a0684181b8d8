"""`envweave run`."""

from __future__ import annotations

import json
import math

import pytest

SOURCE = '''
from typing import Annotated

import numpy as np

import envweave as ew


class MaskedEnv(ew.Environment):
    """Only the third of four actions is legal."""

    def reset(self, *, seed: int | None = None):
        return 0, {"action_mask": [0, 0, 1, 0]}

    def step(self, action: Annotated[int, ew.Bounds(0, 3)]):
        return 0, float(action), action != 2, False, {"action_mask": np.array([0, 0, 1, 0])}


class HalfBroken(ew.Environment):
    """Every second episode fails."""

    def __init__(self):
        self.episode = 0

    def reset(self):
        self.episode += 1
        return 0

    def step(self, action: bool):
        if self.episode % 2 == 0:
            raise RuntimeError("it came apart")
        return 0, 10.0, True, False, {}


class Unscored(ew.Environment):
    """Has no rewards, and tasks."""

    tasks = ew.Tasks({"train": [ew.Task("only")]})

    def reset(self, *, task):
        return 0

    def step(self, action: bool):
        print("stepping")
        return 0, None, True, False, {}


class Endless(ew.Environment):
    def reset(self, *, seed: int | None = None):
        return 0

    def step(self, action: bool):
        return 0, 1.0, False, False, {}


class Untyped(ew.Environment):
    def reset(self):
        return 0

    def step(self, action):
        return 0, 1.0, True, False, {}


class Locked:
    def __init__(self, key):
        self.key = key


class NeedsLocks(ew.Environment):
    def reset(self):
        return 0

    def step(self, action: Locked):
        return 0, 1.0, True, False, {}


class CannotStart(ew.Environment):
    def reset(self):
        raise OSError("no display")

    def step(self, action: bool):
        return 0, 1.0, True, False, {}


class AsksForTools(ew.Environment):
    def reset(self):
        return 0

    def step(self, action: bool):
        self.emit(ew.ToolCallRequest("1", "search"))
        return 0, None, False, False, {}

    def answer(self, result):
        return 0, 5.0, True, False, {}


class Unsure(ew.Environment):
    def reset(self):
        return 0

    def step(self, action: bool):
        return 0, float("inf"), True, False, {}
'''


@pytest.fixture
def environments(here):
    (here / "sample_env.py").write_text(SOURCE)
    return "pkg://sample_env:"


def report_of(ran):
    """The JSON, without what the clock says."""
    report = json.loads(ran.stdout)
    for one in [*report["episodes"], report["summary"]]:
        assert one.pop("duration_s") >= 0
    assert report["summary"].pop("steps_per_s") > 0
    return report


def test_episodes_and_their_summary_are_shown(envweave):
    ran = envweave("run", "counter-v0", "--episodes", "2", "--arg", "done_at=1", "--seed", "4")

    assert ran.code == 0
    assert "counter-v0, random policy" in ran.text
    assert "episodes 2 mean return" in ran.text
    assert "ends terminated 2" in ran.text


def test_the_same_seed_gives_the_same_run(envweave):
    first = envweave("run", "lineworld-v0", "--episodes", "3", "--seed", "7", "--json")
    second = envweave("run", "lineworld-v0", "--episodes", "3", "--seed", "7", "--json")
    other = envweave("run", "lineworld-v0", "--episodes", "3", "--seed", "8", "--json")

    assert report_of(first) == report_of(second)
    assert report_of(first) != report_of(other)


def test_a_run_without_a_seed_prints_the_seed_that_repeats_it(envweave):
    drawn = report_of(envweave("run", "lineworld-v0", "--episodes", "2", "--json"))

    again = report_of(
        envweave("run", "lineworld-v0", "--episodes", "2", "--seed", str(drawn["seed"]), "--json")
    )

    assert again == drawn


def test_a_seed_that_cannot_be_honored_is_refused(envweave, environments):
    ran = envweave("run", f"{environments}HalfBroken", "--seed", "1")

    assert ran.code == 2
    assert "takes no seed" in ran.stderr


def test_an_action_mask_is_respected(envweave, environments):
    ran = envweave(
        "run",
        f"{environments}MaskedEnv",
        "--episodes",
        "1",
        "--max-steps",
        "20",
        "--seed",
        "0",
        "--json",
    )

    report = report_of(ran)
    assert report == {
        "id": f"{environments}MaskedEnv",
        "policy": "random",
        "backend": "inproc",
        "seed": 0,
        "max_steps": 20,
        "episodes": [
            {
                "episode": 1,
                "seed": 0,
                "task_id": None,
                "return": 40.0,
                "length": 20,
                "valid": True,
                "reason": "truncated",
                "blame": None,
                "cause": None,
            }
        ],
        "summary": {
            "episodes": 1,
            "valid": 1,
            "invalid": 0,
            "mean_return": 40.0,
            "mean_length": 20.0,
            "steps": 20,
            "ends": {"truncated": 1},
        },
    }


def test_invalid_episodes_are_counted_separately(envweave, environments):
    ran = envweave("run", f"{environments}HalfBroken", "--episodes", "4", "--json")

    report = report_of(ran)
    assert ran.code == 1
    assert report["summary"] == {
        "episodes": 4,
        "valid": 2,
        "invalid": 2,
        "mean_return": 10.0,
        "mean_length": 1.0,
        "steps": 4,
        "ends": {"error": 2, "terminated": 2},
    }
    assert [one["return"] for one in report["episodes"]] == [10.0, None, 10.0, None]
    assert report["episodes"][1]["blame"] == "environment"
    assert "it came apart" in report["episodes"][1]["cause"]
    assert ran.stderr == ""


def test_a_failed_episode_shows_its_cause_and_no_traceback(envweave, environments):
    ran = envweave("run", f"{environments}HalfBroken", "--episodes", "2")

    assert ran.code == 1
    assert "error (by environment) RuntimeError: it came apart (sample_env.py:" in ran.text
    assert "2, of which 1 not valid (excluded from the means)" in ran.text
    assert "Traceback" not in ran.stdout + ran.stderr


def test_debug_logs_the_traceback_of_a_failed_episode(envweave, environments):
    ran = envweave("--debug", "run", f"{environments}HalfBroken", "--episodes", "2")

    assert ran.code == 1
    assert "RuntimeError: it came apart" in ran.stderr
    assert "Traceback" in ran.stderr


def test_a_reset_that_fails_is_the_environments_fault(envweave, environments):
    ran = envweave("run", f"{environments}CannotStart")

    assert ran.code == 1
    assert ran.stderr.startswith("Error: ")
    assert "reset() failed: OSError: no display (sample_env.py:79)" in ran.stderr


def test_an_episode_without_rewards_has_no_return(envweave, environments):
    ran = envweave("run", f"{environments}Unscored", "--episodes", "2", "--json")

    report = report_of(ran)
    assert [(one["return"], one["task_id"]) for one in report["episodes"]] == [(None, "only")] * 2
    assert report["summary"]["mean_return"] is None
    assert ran.stderr == "stepping\nstepping\n"


def test_an_episode_without_rewards_shows_a_dash_and_its_task(envweave, environments):
    ran = envweave("run", f"{environments}Unscored", "--episodes", "1")

    assert "1 – 1 terminated only" in ran.text


def test_a_return_that_is_not_a_number_is_null_in_the_json(envweave, environments):
    ran = envweave("run", f"{environments}Unsure", "--episodes", "1", "--json")

    report = report_of(ran)
    assert "NaN" not in ran.stdout
    assert "Infinity" not in ran.stdout
    assert (report["episodes"][0]["return"], report["summary"]["mean_return"]) == (None, None)


def test_an_endless_environment_is_truncated(envweave, environments):
    ran = envweave("run", f"{environments}Endless", "--episodes", "1", "--json")

    assert report_of(ran)["episodes"][0]["length"] == 1000


def test_several_agents_have_a_return_each(envweave):
    ran = envweave("run", "tictactoe-v0", "--episodes", "3", "--seed", "1", "--json")

    report = report_of(ran)
    returns = [one["return"] for one in report["episodes"]]
    assert all(one["x"] + one["o"] == 0 for one in returns)
    for agent in ("x", "o"):
        mean = math.fsum(one[agent] for one in returns) / 3
        assert report["summary"]["mean_return"][agent] == pytest.approx(mean)


def test_returns_of_several_agents_are_shown_by_name(envweave):
    ran = envweave("run", "harvest-v0", "--episodes", "1", "--seed", "1")

    assert ran.code == 0
    assert "mean return farmer_0 " in ran.text


def test_tool_calls_are_answered(envweave, environments):
    ran = envweave("run", f"{environments}AsksForTools", "--episodes", "1", "--json")

    assert report_of(ran)["episodes"][0]["return"] == 5.0


@pytest.mark.parametrize("name", ["Untyped", "NeedsLocks"])
def test_an_action_that_cannot_be_drawn_is_reported(envweave, environments, name):
    ran = envweave("run", environments + name)

    assert ran.code == 2
    assert f"The random policy cannot act in '{environments}{name}': " in ran.stderr


def test_an_unknown_policy_is_refused(envweave):
    ran = envweave("run", "counter-v0", "--policy", "clever")

    assert ran.code == 2
    assert "random" in ran.stderr
