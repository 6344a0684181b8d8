"""`envweave check`."""

from __future__ import annotations

import json
import sys

import pytest

from envweave.testing import ENVIRONMENT_CHECKS

FORGETFUL = '''
import random

import envweave as ew


class ForgetfulEnv(ew.Environment):
    """Takes a seed and does not use it."""

    def reset(self, *, seed: int | None = None) -> float:
        return random.random()

    def step(self, action: bool) -> tuple[float, float, bool, bool, dict]:
        return random.random(), 1.0, True, False, {}


class FailsNowAndThen(ew.Environment):
    """Fails with the seed 1 alone."""

    def reset(self, *, seed: int | None = None) -> int:
        self._seed = seed
        return 0

    def step(self, action: bool) -> tuple[int, float, bool, bool, dict]:
        if self._seed == 1:
            raise RuntimeError("one is bad luck")
        return 0, 1.0, True, False, {}
'''


HIDDEN_IMPORT = '''
import envweave as ew
from envweave.sandbox import Sandbox

SANDBOX = Sandbox()


class ImportingEnv(ew.Environment):
    """Runs code that needs a package which its sandbox does not name."""

    def reset(self, *, seed: int | None = None) -> int:
        return 0

    def step(self, action: bool) -> tuple[int, float, bool, bool, dict]:
        with SANDBOX.session() as session:
            session.run("import cloudpickle")
        return 0, 1.0, True, False, {}
'''


def test_a_sound_environment_keeps_every_promise(envweave):
    ran = envweave("check", "counter-v0")

    assert ran.code == 0
    assert "✓ A step before the first reset is refused" in ran.text
    assert "✗" not in ran.text
    assert "OK: " in ran.text
    assert " 0 broken" in ran.text


def test_the_json_has_one_entry_a_check(envweave):
    ran = envweave("check", "tictactoe-v0", "--json", "--seed", "3")

    report = json.loads(ran.stdout)
    checks = report.pop("checks")
    counts = report.pop("counts")
    assert report == {
        "id": "tictactoe-v0",
        "backend": "inproc",
        "seed": 3,
        "episodes": 1,
        "max_steps": 1000,
        "ok": True,
        "notes": [],
    }
    assert [one["name"] for one in checks] == [check.name for check in ENVIRONMENT_CHECKS]
    assert set(checks[0]) == {"name", "promise", "status", "detail"}
    assert sum(counts.values()) == len(checks)


def test_a_broken_promise_is_reported_with_what_was_observed(envweave, here):
    (here / "forgetful_env.py").write_text(FORGETFUL)

    ran = envweave("check", "pkg://forgetful_env:ForgetfulEnv")

    assert ran.code == 1
    assert "✗ The same seed and actions give the same results" in ran.text
    assert "FAILED: " in ran.text


def test_a_broken_promise_is_in_the_json(envweave, here):
    (here / "forgetful_env.py").write_text(FORGETFUL)

    ran = envweave("check", "pkg://forgetful_env:ForgetfulEnv", "--json")

    report = json.loads(ran.stdout)
    failed = [one["name"] for one in report["checks"] if one["status"] == "failed"]
    assert ran.code == 1
    assert report["ok"] is False
    assert "the_same_seed_gives_the_same_episode" in failed


def test_more_episodes_find_errors_that_one_seed_hides(envweave, here):
    (here / "forgetful_env.py").write_text(FORGETFUL)
    name = "pkg://forgetful_env:FailsNowAndThen"

    once = envweave("check", name, "--seed", "0", "--json")
    twice = envweave("check", name, "--seed", "0", "--episodes", "2", "--json")

    played = {check["name"]: check for check in json.loads(twice.stdout)["checks"]}[
        "an_episode_can_be_played"
    ]
    assert json.loads(once.stdout)["checks"][0]["status"] == "passed"
    assert played["status"] == "failed"
    assert played["detail"].startswith("with seed 1: ")
    assert "one is bad luck" in played["detail"]


def test_keywords_reach_the_constructor(envweave):
    ran = envweave("check", "counter-v0", "--arg", "done_at=5000", "--max-steps", "20", "--json")

    statuses = {one["name"]: one["status"] for one in json.loads(ran.stdout)["checks"]}
    assert statuses["step_after_the_end_is_refused"] == "skipped"


@pytest.mark.parametrize("env_class", ["Dataclasses", "Structs", "TypedDicts", "Inside"])
def test_check_takes_an_action_of_each_member_of_a_union(envweave, env_class):
    ran = envweave("check", f"pkg://environments.typed:{env_class}", "--json")

    assert ran.code == 0, ran.text
    kinds = [one for one in json.loads(ran.text)["checks"] if one["name"].startswith("each_kind")]
    assert [one["status"] for one in kinds] == ["passed"]


def test_check_names_the_member_of_a_union_that_fails(envweave):
    ran = envweave("check", "pkg://environments.nonconforming:FailsOnOneKind")

    assert ran.code != 0
    assert "After a Jump the episode ended" in " ".join(ran.text.split())
    assert "jumping is not implemented" in ran.text


@pytest.mark.slow  # starts the command line anew
def test_an_import_that_fails_since_its_package_is_hidden_is_noted(envweave, here):
    here.joinpath("hidden_import_env.py").write_text(HIDDEN_IMPORT)

    ran = envweave("check", "pkg://hidden_import_env:ImportingEnv")
    again = envweave("check", "pkg://hidden_import_env:ImportingEnv")
    sys.modules["hidden_import_env"].SANDBOX.close()

    assert (
        "Note: import of 'cloudpickle' failed in a session because only the standard library and "
        "numpy are visible; pass packages=['cloudpickle']." in ran.text
    )
    assert "Note:" not in again.text  # each package once
