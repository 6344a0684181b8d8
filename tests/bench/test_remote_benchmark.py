"""`benchmarks/remote.py`: complete in form, and honest about which side is ahead."""

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
OPENENV = ROOT / "scripts/openenv-venv"


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


def remote(*arguments):
    return run(BENCHMARKS / "remote.py", *arguments)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One short run of our own side, and the figures it wrote."""
    path = tmp_path_factory.mktemp("bench") / "figures.json"
    chosen = ["--side", "envweave", "--only", "sessions-64", "--only", "vector", "--only", "import"]
    done = remote(*chosen, "--repeats", "2", "--seconds", "0.05", "--json", str(path))
    assert done.returncode == 0, done.stderr
    return done, json.loads(path.read_text())


def test_every_comparison_asked_for_has_a_figure_a_turn(alone):
    _, figures = alone

    assert [(row["key"], row["unit"]) for row in figures["rows"]] == [
        ("sessions-64", "steps/s"),
        ("vector-64", "steps/s"),
        ("import", "s"),
    ]
    for row in figures["rows"]:
        assert row["problems"] == {}
        assert len(row["found"]["envweave"]["samples"]) == 2
        assert row["comparisons"] == []


@pytest.mark.slow  # measures for a while
def test_the_figures_say_what_they_were_measured_on(alone):
    done, figures = alone

    assert {"processor", "cores", "python", "versions", "company"} <= set(figures["machine"])
    assert figures["settings"] == {"repeats": 2, "seconds": 0.05}
    assert "What was measured" in done.stdout


@pytest.mark.parametrize(
    ("unit", "ours", "theirs"), [("steps/s", 8.0, 2.0), ("s", 2.0, 8.0), ("bytes", 2.0, 8.0)]
)
def test_the_target_is_for_the_best_of_the_others(unit, ours, theirs):
    worse = theirs / 2 if unit == "steps/s" else theirs * 2
    code = (
        "import json, remote_runs as runs; from remote_rows import TimeRow; "
        "rate = lambda value: runs.Rate((value, value)); "
        f"found = {{runs.OURS: rate({ours}), runs.AS_TEMPLATE: rate({worse}), "
        f"runs.AT_BEST: rate({theirs})}}; "
        f"row = runs.figures_of(TimeRow('key', 'title', 5.0), found, {{}}, unit={unit!r}); "
        "print(json.dumps(row['comparisons']))"
    )

    done = run("-c", code)

    told = [
        (one["against"], one["ratio"]["median"], one["target"], one["reached"])
        for one in json.loads(done.stdout)
    ]
    assert told == [
        ("OpenEnv, as its template", 8.0, None, None),
        ("OpenEnv, at its best", 4.0, 5.0, False),
    ]


@pytest.mark.slow  # measures for a while
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "nothing"], "no comparison has 'nothing' in its name"),
        (["--side", "gymnasium"], "invalid choice: 'gymnasium'"),
        (["--repeats", "0"], "0 is less than 1"),
        (["--seconds", "-1"], "-1 is not more than 0"),
        (["--docs", "--quick"], "--docs takes the whole run"),
        (["--json", "/no/such/place/figures.json"], "there is no such directory"),
    ],
)
def test_what_cannot_be_used_is_refused(arguments, says):
    done = remote(*arguments)

    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_client_that_fails_tells_why_and_takes_the_next_order():
    orders = '{"do": "open", "how": "by pigeon", "url": "", "sessions": 1}\n{"do": "close"}\n'

    done = run(BENCHMARKS / "remote_client.py", "envweave", given=orders)

    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"problem": "KeyError: 'by pigeon'"},
        {},
    ]


def test_steps_that_the_environment_did_not_take_are_no_figure():
    code = (
        "from types import SimpleNamespace as Shown; import remote_envweave_side as side; "
        "side.check(Shown(count=3, text='x' * side.SIZE), 3); "
        "side.check(Shown(count=3, text='x' * side.SIZE), 4)"
    )

    done = run("-c", code)

    assert "ValueError: after 4 steps the environment shows 3" in done.stderr


@pytest.mark.slow  # measures for a while
def test_a_server_that_does_not_start_is_told_of_with_its_last_words():
    code = (
        "import remote_sides as sides\n"
        "try: sides.Server(sides.OURS, serves='no-such-env-v0')\n"
        "except sides.NotAvailableError as error: print(error)"
    )

    done = run("-c", code)

    assert done.stdout.startswith("its server ended: ")
    assert "no-such-env-v0" in done.stdout


def test_the_page_shows_the_figures_that_are_written_down():
    code = (
        "import page; from remote_page import BLOCK; text = (page.ROOT / page.PAGE).read_text(); "
        "assert BLOCK.filled(text, BLOCK.read_figures()) == text, "
        "'run: python benchmarks/remote_page.py'"
    )

    done = run("-c", code)

    assert done.returncode == 0, done.stderr


def test_setting_up_openenv_refuses_what_it_does_not_know_before_it_begins(tmp_path):
    done = run(OPENENV, "--agian", XDG_CACHE_HOME=str(tmp_path))

    assert done.returncode == 2
    assert "'--agian'" in done.stderr
    assert list(tmp_path.iterdir()) == []
