"""`benchmarks/run`, and the results that it writes into the docs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from installations import venv_python

ROOT = Path(__file__).parents[2]
RUN = ROOT / "benchmarks/run"
NAMES = [
    "vector",
    "remote",
    "sessions",
    "growth",
    "coding",
    "sandbox",
    "noisy-neighbor",
    "containers",
    "rollout",
    "forks",
    "recording",
    "ray",
    "trl",
    "soak",
]


def run(*arguments):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_list_prints_one_line_per_benchmark():
    done = run(RUN, "--list")

    assert [line.split()[0] for line in done.stdout.splitlines()] == NAMES


def test_the_entry_point_is_executable():
    assert os.access(RUN, os.X_OK)


@pytest.mark.slow  # a process per benchmark
@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_has_help(name):
    if name == "ray":
        venv_python("ray")  # else it would be installed now

    done = run(RUN, name, "--help")

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: benchmarks/run {name} ")


def test_an_unknown_benchmark_is_rejected():
    done = run(RUN, "vectr")

    assert done.returncode == 2
    assert "there is no benchmark 'vectr'" in done.stderr


@pytest.mark.slow  # imports every benchmark
@pytest.mark.parametrize(
    "name", ["vector", "remote", "sessions", "growth", "coding", "sandbox", "ray"]
)
def test_the_docs_show_the_stored_results(name):
    code = (
        "import importlib, runpy\n"
        f"module = runpy.run_path('benchmarks/run')['BENCHMARKS']['{name}'][0]\n"
        "if module == 'benchmarks.ray.benchmark': module = 'benchmarks.ray.scale'  # without Ray\n"
        "RESULTS = importlib.import_module(module).RESULTS\n"
        "for path, text in RESULTS.files().items():\n"
        "    assert path.read_text() == text, f'{path} is stale; run: benchmarks/run docs'"
    )

    done = run("-c", code)

    assert done.returncode == 0, done.stderr


def test_the_page_about_benchmarks_shows_the_stored_results():
    done = run(
        "-c",
        "from benchmarks.summary import PAGE, page_with_summary\n"
        "assert PAGE.read_text() == page_with_summary(), 'stale; run: benchmarks/run docs'",
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("family", ["vector", "remote", "sandbox"])
def test_charts_highlight_envweave_and_sort_the_bars(family, theme):
    root = ElementTree.fromstring(
        (ROOT / f"docs/assets/benchmark-{family}-{theme}.svg").read_text()
    )
    bars = [bar.attrib for bar in root.iter("{http://www.w3.org/2000/svg}rect")]

    widths = [float(bar["width"]) for bar in bars]

    assert widths == sorted(widths, reverse=family != "sandbox")
    assert {bar["fill"] for bar in bars} > {"#009485"}


@pytest.mark.slow  # steps environments
def test_rollout_prints_its_efficiency():
    done = run(RUN, "rollout", "--concurrency", "4", "--seconds", "0.1", "--mean-ms", "5")

    assert done.returncode == 0, done.stderr
    assert "efficiency" in done.stdout


@pytest.mark.slow  # steps environments
def test_soak_counts_every_episode_once():
    done = run(RUN, "soak", "--num-envs", "4", "--steps", "50")

    assert done.returncode == 0, done.stderr
    assert "each exactly once" in done.stdout
