"""`benchmarks/run sandbox`: its options, its results, and that wrong values are not counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # measures for a while

ROOT = Path(__file__).parents[2]
TIMED = ["create", "life", "hot", "other", "cell", "loop", "tool"]


def run(*arguments, given=None, **variables):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200", **variables},
        input=given or "",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def sandbox(*arguments):
    return run(ROOT / "benchmarks/run", "sandbox", *arguments)


def send(*requests, function="open_exec"):
    lines = "".join(f"{json.dumps(request)}\n" for request in requests)
    done = run("-m", "benchmarks.sandbox.worker", function, given=lines)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """One short run of libraries that need no installation, and its results."""
    path = tmp_path_factory.mktemp("bench") / "results.json"
    who = ["--library", "envweave", "--library", "exec", "--library", "subprocess"]
    what = ["--only", "create", "--only", "hot", "--only", "branch", "--only", "memory"]
    short = ["--repeats", "2", "--seconds", "0.01", "--sessions", "3"]
    done = sandbox(*who, *what, *short, "--json", str(path))
    assert done.returncode == 0, done.stderr
    return done, json.loads(path.read_text())


@pytest.mark.slow  # measures for a while
def test_every_selected_comparison_has_one_sample_per_repeat_or_a_reason(quick):
    _, results = quick

    assert [(row["key"], row["unit"], row["sessions"]) for row in results["rows"]] == [
        ("create", "s", None),
        ("hot", "s", None),
        ("branch", "s", None),
        ("live-create", "s", 3),
        ("memory", "bytes", 3),
    ]
    for row in results["rows"]:
        assert {"exec in the same process", "envweave"} <= set(row["measured"]) | set(
            row["problems"]
        )
        assert all(len(measured["samples"]) == 2 for measured in row["measured"].values())
        assert not set(row["measured"]) & set(row["problems"])


def test_what_a_library_cannot_do_is_reported(quick):
    done, results = quick
    [branch] = [row for row in results["rows"] if row["key"] == "branch"]

    assert branch["problems"]["subprocess python"] == "cannot copy a live session"
    assert "subprocess python: cannot copy a live session" in done.stdout


def test_variants_of_envweave_are_measured_but_not_compared_with_each_other(quick):
    _, results = quick

    compared = {one["against"] for row in results["rows"] for one in row["comparisons"]}

    assert compared == {"exec in the same process", "subprocess python"}


@pytest.mark.parametrize("function", ["open_exec", "open_subprocess"])
def test_everything_that_is_timed_runs_and_is_checked(function):
    replies = send(
        *({"command": "time", "what": what, "seconds": 0.0} for what in TIMED), function=function
    )

    assert all(reply["seconds"] > 0 for reply in replies)


def test_a_wrong_value_fails_the_check():
    code = (
        "from benchmarks.sandbox.executors import Executor\n"
        "from benchmarks.sandbox.worker import Worker\n"
        "class Wrong:\n"
        "    def run(self, code): return 43\n"
        "    def close(self): pass\n"
        "Worker(lambda: Executor(Wrong)).average('hot', 0.0)"
    )

    done = run("-c", code)

    assert "ValueError: the code returned 43 instead of 42" in done.stderr


def test_a_library_that_is_not_installed_is_reported_and_the_next_request_is_served():
    replies = send({"command": "open"}, {"command": "close"}, function="open_monty")

    assert replies == [
        {"problem": "ModuleNotFoundError: No module named 'pydantic_monty'"},
        {},
    ]


@pytest.mark.slow  # measures for a while
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "nothing"], "no comparison has 'nothing' in its name"),
        (["--library", "nothing"], "no library has 'nothing' in its name"),
        (["--sessions", "0"], "must be at least 1, got 0"),
        (["--docs", "--quick"], "--docs needs a complete run"),
        (["--json", "/no/such/place/figures.json"], "no such directory"),
    ],
)
def test_invalid_options_are_rejected(arguments, says):
    done = sandbox(*arguments)

    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
