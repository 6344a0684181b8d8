"""`benchmarks/sandbox.py`: complete in form, and honest about who is ahead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # measures for a while

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
TIMED = ["create", "life", "hot", "other", "cell", "loop", "tool"]


def run(*arguments, given=None, **variables):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=BENCHMARKS,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200", **variables},
        input=given or "",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def sandbox(*arguments):
    return run(BENCHMARKS / "sandbox.py", *arguments)


def orders(*given, target="sandbox_exec:open_exec"):
    lines = "".join(f"{json.dumps(order)}\n" for order in given)
    done = run(BENCHMARKS / "sandbox_worker.py", target, given=lines)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """One short run of those that need nothing installed, and the figures it wrote."""
    path = tmp_path_factory.mktemp("bench") / "figures.json"
    who = ["--who", "envweave", "--who", "exec", "--who", "subprocess"]
    what = ["--only", "create", "--only", "hot", "--only", "branch", "--only", "memory"]
    short = ["--repeats", "2", "--seconds", "0.01", "--sessions", "3"]
    done = sandbox(*who, *what, *short, "--json", str(path))
    assert done.returncode == 0, done.stderr
    return done, json.loads(path.read_text())


@pytest.mark.slow  # measures for a while
def test_every_comparison_asked_for_has_a_figure_a_turn_or_a_reason(quick):
    _, figures = quick

    assert [(row["key"], row["unit"], row["sessions"]) for row in figures["rows"]] == [
        ("create", "s", None),
        ("hot", "s", None),
        ("branch", "s", None),
        ("live-create", "s", 3),
        ("memory", "bytes", 3),
    ]
    for row in figures["rows"]:
        assert {"exec in the same process", "envweave"} <= set(row["found"]) | set(row["problems"])
        assert all(len(found["samples"]) == 2 for found in row["found"].values())
        assert not set(row["found"]) & set(row["problems"])


def test_who_cannot_do_something_is_named_with_the_reason(quick):
    done, figures = quick
    [branch] = [row for row in figures["rows"] if row["key"] == "branch"]

    assert branch["problems"]["subprocess python"] == "it cannot copy a live session"
    assert "subprocess python: it cannot copy a live session" in done.stdout


def test_our_own_ways_are_measured_but_not_compared_with_each_other(quick):
    _, figures = quick

    compared = {one["against"] for row in figures["rows"] for one in row["comparisons"]}

    assert compared == {"exec in the same process", "subprocess python"}


def test_targets_are_those_of_the_design():
    code = (
        "import json; from sandbox_rows import TIMES; "
        "print(json.dumps([(row.key, row.targets) for row in TIMES]))"
    )

    done = run("-c", code)

    told = {key: targets for key, targets in json.loads(done.stdout) if targets}
    assert told == {
        "create": {"bubblewrap + python": 6.0, "docker run python": 150.0},
        "hot": {"smolagents": 4.0},
        "loop": {"smolagents": 40.0},
    }


@pytest.mark.parametrize("target", ["sandbox_exec:open_exec", "sandbox_pipes:open_subprocess"])
def test_everything_that_is_timed_runs_and_is_checked(target):
    answers = orders(
        *({"do": "time", "what": what, "seconds": 0.0} for what in TIMED), target=target
    )

    assert all(answer["seconds"] > 0 for answer in answers)


def test_a_wrong_result_is_no_figure():
    code = (
        "import sandbox_worker as work; from sandbox_box import Box\n"
        "class Wrong:\n"
        "    def run(self, code): return 43\n"
        "    def close(self): pass\n"
        "work.Worker(lambda: Box(Wrong)).timed('hot', 0.0)"
    )

    done = run("-c", code)

    assert "ValueError: it returned 43 instead of 42" in done.stderr


def test_a_library_that_is_not_there_is_told_of_and_the_next_order_is_taken():
    answers = orders({"do": "open"}, {"do": "close"}, target="sandbox_nobody:open_nobody")

    assert answers == [
        {"problem": "ModuleNotFoundError: No module named 'sandbox_nobody'"},
        {},
    ]


@pytest.mark.slow  # measures for a while
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "nothing"], "no comparison has 'nothing' in its name"),
        (["--who", "nobody"], "no contender has 'nobody' in its name"),
        (["--sessions", "0"], "0 is less than 1"),
        (["--docs", "--quick"], "--docs takes the whole run"),
        (["--json", "/no/such/place/figures.json"], "there is no such directory"),
    ],
)
def test_what_cannot_be_used_is_refused(arguments, says):
    done = sandbox(*arguments)

    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_the_page_shows_the_figures_that_are_written_down():
    code = (
        "import page; from sandbox_page import BLOCK; text = (page.ROOT / page.PAGE).read_text(); "
        "assert BLOCK.filled(text, BLOCK.read_figures()) == text, "
        "'run: python benchmarks/sandbox_page.py'"
    )

    done = run("-c", code)

    assert done.returncode == 0, done.stderr
