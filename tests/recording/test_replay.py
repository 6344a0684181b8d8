"""Replay, rescore and their commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import envweave as ew
from envweave.cli import main as command
from envweave.codeact import Attempt, Grade, Grader
from envweave.errors import OptionError

SCRIPTED = "pkg://envweave.testing.scripted:ScriptedEnvironment"
BACKENDS = [
    "inproc",
    pytest.param("process", marks=pytest.mark.slow),
    pytest.param("http", marks=pytest.mark.slow),
]


class NoisyEnv(ew.Environment):
    """Shows numbers that depend on the seed and on its version."""

    def __init__(self, version: int = 1) -> None:
        self.version = version

    def reset(self, *, seed: int | None = None) -> Any:
        self.rng = np.random.default_rng(seed)
        self.at = 0
        return {"noise": self.rng.normal(size=2), "at": 0}, {}

    def step(self, action: int) -> Any:
        self.at += 1
        noise = self.rng.normal(size=2)
        if self.version == 2 and self.at == 3:
            noise[1] += 1.0
        return {"noise": noise, "at": self.at}, float(action), self.at == 5, False, {}


class NewNoisyEnv(NoisyEnv):
    """The next version."""

    def __init__(self) -> None:
        super().__init__(version=2)


class RandomEnv(NoisyEnv):
    """Is not deterministic."""

    deterministic = False


def record(folder: Path, env: Any = NoisyEnv, episodes: int = 2, **options: Any) -> None:
    with ew.make(env, record=folder, **options) as made:
        for seed in range(episodes):
            result = made.reset(seed=seed)
            while not result.done:
                result = made.step(1)


def statuses(report: Any) -> list[str]:
    return [one.status for one in report.episodes]


@pytest.mark.parametrize("against", BACKENDS)
def test_a_deterministic_environment_replays_equally_on_every_backend(
    tmp_path: Path, against: str
) -> None:
    with ew.make("lineworld-v0", record=tmp_path, autoreset=True) as env:
        rng = np.random.default_rng(0)
        env.reset(seed=0)
        for _ in range(60):
            env.step(env.action_spec.sample(rng))
    with ew.make("tictactoe-v0", record=tmp_path) as env:
        result = env.reset(seed=1)
        while not result.done:
            cells = {
                need.agent_id: int(np.flatnonzero(need.action_mask)[0]) for need in result.needs
            }
            result = env.step({agent: {"cell": cell} for agent, cell in cells.items()})

    report = ew.replay(tmp_path, against=against)

    assert report.is_equal
    assert set(statuses(report)) == {"equal"}
    assert sum(one.steps for one in report.episodes) == 67


@pytest.mark.parametrize("against", BACKENDS)
def test_a_difference_is_reported_by_step_field_and_both_values(
    tmp_path: Path, against: str
) -> None:
    with ew.make(SCRIPTED, script=[{"reward": 1.0}, {"reward": 2.0}], record=tmp_path) as env:
        env.reset(seed=0)
        env.step({"number": 1})
        env.step({"number": 2})

    report = ew.replay(
        tmp_path, against=against, kwargs={"script": [{"reward": 1.0}, {"reward": 2.5}]}
    )

    (different,) = report.different
    difference = different.difference
    assert difference is not None
    assert (difference.step, difference.recorded, difference.replayed) == (2, 2.0, 2.5)
    assert difference.field in ("reward", "observation.reward")


def test_another_version_of_an_environment_is_compared(tmp_path: Path) -> None:
    record(tmp_path)

    report = ew.replay(tmp_path, env=NewNoisyEnv)

    assert statuses(report) == ["different", "different"]
    difference = report.episodes[0].difference
    assert difference is not None
    assert (difference.step, difference.field) == (3, "observation.noise")
    assert np.array_equal(difference.recorded + np.array([0.0, 1.0]), difference.replayed)


def test_tool_calls_are_replayed_with_their_answers(tmp_path: Path) -> None:
    with ew.make(SCRIPTED, script=[{"tool": "search"}, {}], record=tmp_path) as env:
        env.reset(seed=0)
        asked = env.step({"text": "go"})
        env.step(ew.ToolResult(asked.tool_calls[0].call_id, {"found": 3}))
        env.step({"text": "on"})

    assert statuses(ew.replay(tmp_path)) == ["equal"]


def test_what_cannot_be_replayed_says_why(tmp_path: Path) -> None:
    class Local(NoisyEnv):
        pass

    record(tmp_path, Local, episodes=1)
    record(tmp_path, RandomEnv, episodes=1)
    record(tmp_path, NoisyEnv(), episodes=1)
    with ew.make(SCRIPTED, script=[{"end": ["lost", "infrastructure"]}], record=tmp_path) as env:
        env.reset(seed=0)
        env.step({})

    report = ew.replay(tmp_path)

    assert report.is_equal
    reasons = [one.reason or "" for one in report.not_replayed]
    assert len(reasons) == 4
    assert "cannot be imported" in reasons[0]
    assert "not deterministic" in reasons[1]
    assert "existing NoisyEnv object" in reasons[2]
    assert "it was lost" in reasons[3]


def test_a_failure_of_the_environment_is_replayed_too(tmp_path: Path) -> None:
    with ew.make(SCRIPTED, script=[{}, {"raise": "boom"}], record=tmp_path) as env:
        env.reset(seed=0)
        env.step({})
        env.step({})

    assert statuses(ew.replay(tmp_path)) == ["equal"]


def test_code_is_replayed_and_measured_times_are_not_compared(tmp_path: Path) -> None:
    with ew.make("coding-v0", record=tmp_path) as env:
        env.reset(seed=0)
        for code in ("x = 20", "print(x + 1)", "1 / 0"):
            env.step({"code": code})

    report = ew.replay(tmp_path)

    assert statuses(report) == ["equal"]


def test_reading_the_state_changes_nothing_that_a_replay_compares(tmp_path: Path) -> None:
    with ew.make("coding-v0", record=tmp_path) as env:
        env.reset(seed=0)
        for code in ("x = 1", "1 / 0", "2 / 0"):
            stderr = env.step({"code": code}).observation.stderr
            env.state()  # runs code in the session, to see its variables

    assert 'File "<cell 3>"' in stderr
    assert statuses(ew.replay(tmp_path)) == ["equal"]


def test_the_command_replays_and_its_exit_code_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ew.make("counter-v0", record=tmp_path) as env:
        env.reset(seed=0)
        for _ in range(3):
            env.step({"delta": 1})

    equal = command(["replay", str(tmp_path), "--json"])
    shown = json.loads(capsys.readouterr().out)
    differing = command(["replay", str(tmp_path), "--arg", "done_at=2"])
    printed = capsys.readouterr().out

    assert (equal, shown["summary"]) == (0, {"equal": 1, "different": 0, "not replayed": 0})
    assert differing == 1
    assert "step 2" in printed
    assert command(["replay", str(tmp_path / "none")]) == 2


def count_steps(episode: ew.Episode) -> float:
    """Grade an episode by its length."""
    return float(episode.length)


async def pass_long_ones(episode: ew.Episode) -> Grade:
    """Grade an episode, as a coroutine."""
    return Grade(1.0 if episode.length > 2 else 0.0, passed=episode.length > 2)


@pytest.mark.parametrize(("grader", "reward"), [(count_steps, 5.0), (pass_long_ones, 1.0)])
def test_episodes_are_graded_again(tmp_path: Path, grader: Any, reward: float) -> None:
    record(tmp_path, episodes=1)
    before = next(tmp_path.glob("events-*")).read_bytes()

    (one,) = ew.rescore(tmp_path, grader)

    assert (one.recorded, one.reward) == (5.0, reward)
    assert next(tmp_path.glob("events-*")).read_bytes() == before


class SaysFortyTwo(Grader):
    """Passes the answer 42."""

    async def grade(self, attempt: Attempt) -> Grade:
        """Compare the answer."""
        return Grade(float(attempt.answer == 42), passed=attempt.answer == 42)


def test_a_grader_of_code_grades_recorded_code(tmp_path: Path) -> None:
    env = ew.create_codeact_env(executor="inproc")
    with ew.make(env, record=tmp_path) as made:
        made.reset(seed=0)
        made.step({"code": "x = 40"})
        made.step({"code": "x + 2"})

    (one,) = ew.rescore(tmp_path, SaysFortyTwo)

    assert (one.recorded, one.reward) == (None, 1.0)


def test_unusable_episodes_get_no_new_reward(tmp_path: Path) -> None:
    with ew.make(SCRIPTED, script=[{"end": ["lost", "infrastructure"]}], record=tmp_path) as env:
        env.reset(seed=0)
        env.step({})

    (one,) = ew.rescore(tmp_path, count_steps)

    assert one.reward is None
    assert one.reason == "it is not usable: lost"
    with pytest.raises(OptionError, match="neither a Grader nor a function"):
        ew.rescore(tmp_path, 3)


def test_the_commands_record_rescore_and_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    grader = "envweave.testing.scripted:PRIVATE_ANSWER"

    codes = [
        command(["run", "counter-v0", "--episodes", "3", "--seed", "0", "--record", run, "--json"]),
        command(["export", run, "--format", "json", "--out", str(tmp_path / "out.jsonl")]),
        command(["rescore", run, "--grader", grader]),
        command(["rescore", run, "--grader", "builtins:id", "--out", str(tmp_path / "new.jsonl")]),
    ]

    assert codes == [0, 0, 2, 0]
    assert "neither a Grader nor a function" in capsys.readouterr().err.replace("\n", " ")
    exported = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [one["episode_id"] for one in exported] == [one.episode_id for one in ew.load(run)]
    assert len((tmp_path / "new.jsonl").read_text().splitlines()) == 3
