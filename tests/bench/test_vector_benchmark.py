"""`benchmarks/run vector`, also where other libraries are not installed, and `scripts/peers`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # measures for a while

ROOT = Path(__file__).parents[2]
RUN = ROOT / "benchmarks/run"
PEERS = ROOT / "scripts/peers"


def run(*arguments, **variables):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def vector(*arguments):
    return run(RUN, "vector", "--no-peers", *arguments)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """One short run of a few comparisons, and its results."""
    path = tmp_path_factory.mktemp("bench") / "results.json"
    chosen = ["--only", "one", "--only", "serial-own-64", "--only", "serial-fresh-64"]
    done = vector(*chosen, "--repeats", "2", "--seconds", "0.01", "--json", str(path))
    assert done.returncode == 0, done.stderr
    return done, json.loads(path.read_text())


def test_every_comparison_is_measured_with_and_without_reading_requests_and_infos(quick):
    _, results = quick

    assert [(row["key"], row["reads"]) for row in results["rows"]] == [
        ("serial-own-64", False),
        ("serial-fresh-64", False),
        ("serial-own-64", True),
        ("serial-fresh-64", True),
    ]
    assert [(row["key"], row["reads"]) for row in results["one"]] == [
        (key, reads)
        for reads in (False, True)
        for key in ("one-tuple", "one-dataclass", "one-dict")
    ]


def test_every_library_has_one_sample_per_repeat_or_a_reason(quick):
    _, results = quick

    for row in [*results["rows"], *results["one"]]:
        for name, rate in row["steps_per_s"].items():
            if rate is None:
                assert row["problems"][name].startswith("not available: ")
            else:
                assert len(rate["samples"]) == 2
                assert 0 < rate["low"] <= rate["median"] <= rate["high"]


def test_ratios_are_computed_from_the_samples_of_the_same_row(quick):
    _, results = quick
    [row] = [row for row in results["rows"] if row["key"] == "serial-own-64" and not row["reads"]]

    [compared] = row["comparisons"]

    ours, theirs = row["steps_per_s"]["envweave serial"], row["steps_per_s"][compared["best"]]
    pairs = zip(ours["samples"], theirs["samples"], strict=True)
    assert compared["ratio"]["samples"] == [a / b for a, b in pairs]


@pytest.mark.slow  # measures for a while
def test_results_include_machine_and_settings(quick):
    _, results = quick

    assert {"processor", "cores", "python", "versions", "other_load"} <= set(results["machine"])
    assert results["settings"] == {"repeats": 2, "seconds": 0.01}
    assert results["peers"]["gymnasium SyncVectorEnv"]["version"]


def test_a_library_that_is_not_installed_is_reported(quick):
    done, results = quick

    puffer = results["peers"]["PufferLib Serial"]

    assert puffer == {
        "version": None,
        "problem": "not installed in this environment",
    }
    assert "PufferLib Serial: not available: not installed in this environment" in done.stdout


def test_tables_are_printed(quick):
    done, _ = quick

    titles = ["One environment", "envweave and other libraries", "Steps per second"]
    assert all(title in done.stdout for title in titles)
    assert "ratio (higher = envweave faster)" in done.stdout


@pytest.mark.slow  # measures for a while
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "nothing"], "no comparison has 'nothing' in its name"),
        (["--fast"], "unrecognized arguments: --fast"),
        (["--repeats", "0"], "must be at least 1, got 0"),
        (["--seconds", "-1"], "must be more than 0, got -1"),
        (["--docs", "--quick"], "--docs needs a complete run"),
        (["--json", "/no/such/place/figures.json"], "no such directory"),
    ],
)
def test_invalid_options_are_rejected(arguments, says):
    done = vector(*arguments)

    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow  # measures for a while
def test_leftover_processes_of_a_library_are_ended():
    code = (
        "import subprocess; from benchmarks.vector.libraries import end_leftover_processes as end; "
        "subprocess.Popen(['sleep', '600']); "
        "print(end(), end())"
    )

    done = run("-c", code)

    assert done.stdout.split() == ["1", "0"], done.stderr


@pytest.mark.parametrize("arguments", [["--agian"], ["benchmarks/rnu"]])
def test_peers_rejects_unknown_arguments_before_it_installs(arguments, tmp_path):
    done = run(PEERS, *arguments, XDG_CACHE_HOME=str(tmp_path))

    assert done.returncode == 2
    assert repr(arguments[0]) in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_peers_runs_a_program_in_its_environment(tmp_path):
    """With a prepared environment; installing one needs a network."""
    place = run(PEERS, "--where", XDG_CACHE_HOME=str(tmp_path)).stdout.strip()
    python = Path(place) / "bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (Path(place) / "peers.json").write_text(json.dumps({"base": None, "envpool": "no wheel"}))
    program = tmp_path / "program.py"
    program.write_text("import envweave, sys; print(envweave.__file__, sys.argv[1:])")

    done = run(PEERS, str(program), "--quick", XDG_CACHE_HOME=str(tmp_path))

    assert done.stdout.strip() == f"{ROOT / 'src/envweave/__init__.py'} ['--quick']"
    assert "envpool is not available: no wheel" in done.stderr
