"""`benchmarks/run coding`: its results, and that wrong output is not counted as a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments, given=""):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"},
        input=given,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.slow  # 64 sessions
def test_a_run_of_envweave_alone_has_one_sample_per_repeat(tmp_path):
    path = tmp_path / "results.json"

    done = run(
        ROOT / "benchmarks/run",
        *("coding", "--library", "envweave", "--only", "fib", "--only", "noisy-neighbor"),
        *("--repeats", "2", "--seconds", "0.05", "--json", path),
    )

    assert done.returncode == 0, done.stderr
    results = json.loads(path.read_text())
    (row,) = results["rows"]
    assert (row["key"], row["unit"], row["problems"]) == ("fib", "s", {})
    assert len(row["measured"]["envweave"]["samples"]) == 2
    sessions = results["noisy_neighbor"]
    assert sessions["problems"] == {}
    assert {name: one["timeouts"]["samples"] for name, one in sessions["measured"].items()} == {
        "no noisy neighbor": [0.0, 0.0],
        "a noisy neighbor": [1.0, 1.0],
    }
    for one in sessions["measured"].values():
        assert min(one["steps"]["samples"]) >= 63
        assert one["p50"]["median"] <= one["p99"]["median"]
    assert "Noisy neighbor: one of 64 sessions runs an infinite loop" in done.stdout


@pytest.mark.parametrize(("printed", "code"), [("2583", 0), ("2584", 1), ("", 0)])
def test_wrong_output_fails_the_check(printed, code):
    done = run(
        "-c", f"from benchmarks.coding.client import check; check('fib', {printed!r}, {code})"
    )

    assert "ValueError: fib printed" in done.stderr


def test_a_client_reports_an_error_and_serves_the_next_request():
    requests = '{"command": "open", "client": "pigeon", "url": ""}\n{"command": "close"}\n'

    done = run("-m", "benchmarks.coding.client", "envweave", given=requests)

    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"problem": "KeyError: ('envweave', 'pigeon')"},
        {},
    ]
