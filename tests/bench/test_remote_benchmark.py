"""`benchmarks/run remote`: its options, its results, and which library they favor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # measures for a while

ROOT = Path(__file__).parents[2]
OPENENV = ROOT / "scripts/openenv-venv"


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


def remote(*arguments):
    return run(ROOT / "benchmarks/run", "remote", *arguments)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """One short run of envweave alone, and its results."""
    path = tmp_path_factory.mktemp("bench") / "results.json"
    chosen = [
        "--library",
        "envweave",
        "--only",
        "sessions-64",
        "--only",
        "vector",
        "--only",
        "import",
    ]
    done = remote(*chosen, "--repeats", "2", "--seconds", "0.05", "--json", str(path))
    assert done.returncode == 0, done.stderr
    return done, json.loads(path.read_text())


def test_every_selected_comparison_has_one_sample_per_repeat(quick):
    _, results = quick

    assert [(row["key"], row["unit"]) for row in results["rows"]] == [
        ("sessions-64", "steps/s"),
        ("vector-64", "steps/s"),
        ("import", "s"),
    ]
    for row in results["rows"]:
        assert row["problems"] == {}
        assert len(row["measured"]["envweave"]["samples"]) == 2
        assert row["comparisons"] == []


@pytest.mark.slow  # measures for a while
def test_results_include_machine_and_settings(quick):
    done, results = quick

    assert {"processor", "cores", "python", "versions", "other_load"} <= set(results["machine"])
    assert results["settings"] == {"repeats": 2, "seconds": 0.05}
    assert "Measured values" in done.stdout


@pytest.mark.parametrize(
    ("unit", "ours", "theirs"), [("steps/s", 8.0, 2.0), ("s", 2.0, 8.0), ("bytes", 2.0, 8.0)]
)
def test_a_ratio_above_one_means_that_envweave_is_better(unit, ours, theirs):
    code = (
        "import json; from benchmarks.measurement.comparison import Rate, comparison_results; "
        f"measured = {{'ours': Rate(({ours},)), 'theirs': Rate(({theirs},))}}; "
        "row = comparison_results('key', 'title', measured, {}, ours='ours', others=['theirs'], "
        f"unit={unit!r}); print(json.dumps(row['comparisons']))"
    )

    done = run("-c", code)

    [compared] = json.loads(done.stdout)
    assert (compared["against"], compared["ratio"]["median"]) == ("theirs", 4.0)


@pytest.mark.slow  # measures for a while
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "nothing"], "no comparison has 'nothing' in its name"),
        (["--library", "gymnasium"], "invalid choice: 'gymnasium'"),
        (["--repeats", "0"], "must be at least 1, got 0"),
        (["--seconds", "-1"], "must be more than 0, got -1"),
        (["--docs", "--quick"], "--docs needs a complete run"),
        (["--json", "/no/such/place/figures.json"], "no such directory"),
    ],
)
def test_invalid_options_are_rejected(arguments, says):
    done = remote(*arguments)

    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_client_reports_an_error_and_serves_the_next_request():
    requests = (
        '{"command": "open", "client": "pigeon", "url": "", "sessions": 1}\n{"command": "close"}\n'
    )

    done = run("-m", "benchmarks.remote.client", "envweave", given=requests)

    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"problem": "KeyError: 'pigeon'"},
        {},
    ]


def test_steps_that_the_environment_did_not_take_fail_the_check():
    code = (
        "from types import SimpleNamespace as Observation; "
        "from benchmarks.remote.libraries import TEXT_SIZE, Envweave; "
        "Envweave.check(Observation(count=3, text='x' * TEXT_SIZE), 3); "
        "Envweave.check(Observation(count=3, text='x' * TEXT_SIZE), 4)"
    )

    done = run("-c", code)

    assert "ValueError: after 4 steps the environment shows 3" in done.stderr


@pytest.mark.slow  # measures for a while
def test_a_server_that_does_not_start_is_reported_with_its_last_lines():
    code = (
        "from benchmarks.remote import processes\n"
        "try: processes.start_server('envweave', env_id='no-such-env-v0')\n"
        "except processes.NotAvailableError as error: print(error)"
    )

    done = run("-c", code)

    assert done.stdout.startswith("the server exited: ")
    assert "no-such-env-v0" in done.stdout


def test_openenv_venv_rejects_unknown_arguments_before_it_installs(tmp_path):
    done = run(OPENENV, "--agian", XDG_CACHE_HOME=str(tmp_path))

    assert done.returncode == 2
    assert "'--agian'" in done.stderr
    assert list(tmp_path.iterdir()) == []
