"""`benchmarks/coding.py`: complete in form, and nobody's code is taken for run that was not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(*arguments, given=""):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=BENCHMARKS,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"},
        input=given,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.slow  # 64 sessions
def test_a_run_of_our_own_side_has_a_figure_a_turn(tmp_path):
    path = tmp_path / "figures.json"

    done = run(
        BENCHMARKS / "coding.py",
        *("--side", "envweave", "--only", "fib", "--only", "crowd"),
        *("--repeats", "2", "--seconds", "0.05", "--json", path),
    )

    assert done.returncode == 0, done.stderr
    figures = json.loads(path.read_text())
    (row,) = figures["rows"]
    assert (row["key"], row["unit"], row["problems"]) == ("fib", "s", {})
    assert len(row["found"]["envweave"]["samples"]) == 2
    crowd = figures["crowd"]
    assert crowd["problems"] == {}
    assert {name: one["circled"]["samples"] for name, one in crowd["found"].items()} == {
        "nobody in circles": [0.0, 0.0],
        "one in circles": [1.0, 1.0],
    }
    for one in crowd["found"].values():
        assert min(one["steps"]["samples"]) >= 63
        assert one["p50"]["median"] <= one["p99"]["median"]
    assert "A step among 64 sessions, while one of them runs in circles" in done.stdout


@pytest.mark.parametrize(("printed", "code"), [("2583", 0), ("2584", 1), ("", 0)])
def test_code_that_did_not_print_what_it_must_is_not_counted(printed, code):
    done = run("-c", f"import coding_code; coding_code.check('fib', {printed!r}, {code})")

    assert "ValueError: fib printed" in done.stderr


def test_a_client_that_fails_tells_why_and_takes_the_next_order():
    orders = '{"do": "open", "how": "by pigeon", "url": ""}\n{"do": "close"}\n'

    done = run(BENCHMARKS / "coding_client.py", "envweave", given=orders)

    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"problem": "KeyError: ('envweave', 'by pigeon')"},
        {},
    ]
