"""`envweave check` and `envweave run` on OpenEnv's own server, with environments of many kinds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from envweave.cli import main

pytestmark = pytest.mark.slow  # a second each

PATHS = [
    "echo",
    "talk",
    "grid",
    "shop",
    "planner",
    "garden",
    "slow",
    "quiz",
    "exam",
    "untyped",
    "kitchen",
]


@pytest.mark.parametrize("path", PATHS)
def test_every_promise_is_kept_that_can_be_checked(
    server: Any, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["check", f"{server.host}/{path}", "--max-steps=5", "--episodes=3", "--json"])

    report = json.loads(capsys.readouterr().out)
    assert [one for one in report["checks"] if one["status"] == "failed"] == []
    assert code == 0


@pytest.mark.parametrize("path", PATHS)
def test_a_random_policy_plays_whole_episodes(
    server: Any, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["run", f"{server.host}/{path}", "--max-steps=5", "--episodes=5", "--json"])

    report = json.loads(capsys.readouterr().out)
    assert [one["cause"] for one in report["episodes"] if not one["valid"]] == []
    assert code == 0
