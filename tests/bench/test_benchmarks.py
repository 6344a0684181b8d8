"""The programs in `benchmarks/`: complete in form, also where no peer is installed."""

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
PEERS = ROOT / "scripts/peers"


def run(program, *arguments, **variables):
    return subprocess.run(
        [sys.executable, str(program), *arguments],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def vector(*arguments):
    return run(BENCHMARKS / "vector.py", *arguments)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """One run of a few comparisons, and the figures it wrote."""
    path = tmp_path_factory.mktemp("bench") / "figures.json"
    chosen = ["--only", "one", "--only", "serial-own-64", "--only", "serial-fresh-64"]
    done = vector(*chosen, "--repeats", "2", "--seconds", "0.01", "--json", str(path))
    assert done.returncode == 0, done.stderr
    return done, json.loads(path.read_text())


def test_every_comparison_is_there_with_and_without_reading_all(quick):
    _, figures = quick

    assert [(row["key"], row["reads"]) for row in figures["rows"]] == [
        ("serial-own-64", False),
        ("serial-fresh-64", False),
        ("serial-own-64", True),
        ("serial-fresh-64", True),
    ]
    assert [(row["key"], row["reads"]) for row in figures["one"]] == [
        (key, reads)
        for reads in (False, True)
        for key in ("one-tuple", "one-dataclass", "one-dict")
    ]


def test_every_rate_has_a_figure_a_turn_or_a_reason(quick):
    _, figures = quick

    for row in [*figures["rows"], *figures["one"]]:
        for name, rate in row["steps_per_s"].items():
            if rate is None:
                assert row["problems"][name].startswith("not available: ")
            else:
                assert len(rate["samples"]) == 2
                assert 0 < rate["low"] <= rate["median"] <= rate["high"]


def test_ratios_are_of_the_rates_beside_them(quick):
    _, figures = quick
    [row] = [row for row in figures["rows"] if row["key"] == "serial-own-64" and not row["reads"]]

    [compared] = row["comparisons"]

    ours, theirs = row["steps_per_s"]["envweave serial"], row["steps_per_s"][compared["best"]]
    pairs = zip(ours["samples"], theirs["samples"], strict=True)
    assert compared["ratio"]["samples"] == [a / b for a, b in pairs]
    assert compared["target"] == 2.5
    assert compared["reached"] is (compared["ratio"]["median"] >= 2.5)


@pytest.mark.slow  # measures for a while
def test_the_figures_say_what_they_were_measured_on(quick):
    _, figures = quick

    assert {"processor", "cores", "python", "versions", "company"} <= set(figures["machine"])
    assert figures["settings"] == {"repeats": 2, "seconds": 0.01}
    assert figures["peers"]["gymnasium SyncVectorEnv"]["version"]


def test_a_peer_that_is_not_there_is_named_with_the_reason(quick):
    done, figures = quick

    puffer = figures["peers"]["PufferLib Serial"]

    assert puffer == {
        "version": None,
        "problem": "it is not installed here; run this through scripts/peers",
    }
    assert "PufferLib Serial: not available: it is not installed here" in done.stdout


def test_the_tables_show_targets_and_whether_they_are_reached(quick):
    done, _ = quick

    titles = ["One environment", "envweave against its peers", "Steps a second"]
    assert all(title in done.stdout for title in titles)
    assert "2.5×" in done.stdout
    assert "reached" in done.stdout


@pytest.mark.slow  # measures for a while
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "nothing"], "no comparison has 'nothing' in its name"),
        (["--fast"], "unrecognized arguments: --fast"),
        (["--repeats", "0"], "0 is less than 1"),
        (["--seconds", "-1"], "-1 is not more than 0"),
        (["--docs", "--quick"], "--docs takes the whole run"),
        (["--json", "/no/such/place/figures.json"], "there is no such directory"),
    ],
)
def test_what_cannot_be_used_is_refused(arguments, says):
    done = vector(*arguments)

    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_the_page_shows_the_figures_that_are_written_down():
    code = (
        "import json, page; figures = json.loads((page.ROOT / page.JSON).read_text()); "
        "text = (page.ROOT / page.PAGE).read_text(); "
        "assert page.filled(text, figures) == text, 'run: python benchmarks/page.py'"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.slow  # measures for a while
def test_what_a_peer_leaves_running_is_ended():
    code = (
        "import subprocess; from contenders import end_leftovers; "
        "subprocess.Popen(['sleep', '600']); "
        "print(end_leftovers(), end_leftovers())"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=False
    )

    assert done.stdout.split() == ["1", "0"], done.stderr


@pytest.mark.parametrize("arguments", [["--agian"], ["benchmarks/vectr.py"]])
def test_peers_refuses_what_it_does_not_know_before_it_sets_up(arguments, tmp_path):
    done = run(PEERS, *arguments, XDG_CACHE_HOME=str(tmp_path))

    assert done.returncode == 2
    assert repr(arguments[0]) in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_program_runs_among_the_peers_that_are_set_up(tmp_path):
    """With an environment that is there already; setting one up needs a network."""
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
