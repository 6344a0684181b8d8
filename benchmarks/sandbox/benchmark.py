"""The sandbox: envweave's and other ways to run Python code.

    benchmarks/run sandbox                     everything; about twenty minutes
    benchmarks/run sandbox --quick             less precise; some minutes
    benchmarks/run sandbox --only hot          the comparisons with "hot" in their name
    benchmarks/run sandbox --library envweave  the libraries with "envweave" in their name
    benchmarks/run sandbox --docs              store the results and write them into the docs

Each library runs in its own worker process, and those of other projects in a virtual environment
of their own. bubblewrap and Docker are measured where they are available.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.measurement.comparison import (
    Rate,
    Settings,
    comparison_results,
    measure_interleaved,
    skip_unavailable,
)
from benchmarks.measurement.machine import (
    children_of,
    describe_machine,
    private_bytes,
    tree_bytes,
)
from benchmarks.measurement.pages import Results
from benchmarks.measurement.plots import BarChart
from benchmarks.measurement.processes import ROOT, JsonProcess, NotAvailableError, script_python
from benchmarks.measurement.program import ComparisonProgram, positive
from benchmarks.measurement.tables import Table, comparison_tables, format_duration

ENVWEAVE = "envweave"
NO_EXTENSION, LANDLOCK = "envweave, no C extension", "envweave, landlock"
WARM, ANY_CORE = "envweave, warm sessions", "envweave, any core"
SMOLAGENTS, SMOLAGENTS_UNTIMED = "smolagents", "smolagents, no timeout"
EXEC, MONTY, JUPYTER = "exec in the same process", "pydantic-monty", "Jupyter kernel"
SUBPROCESS, BUBBLEWRAP, DOCKER = "subprocess python", "bubblewrap + python", "docker run python"
LIVE_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Library:
    """A way to run code.

    Attributes:
        function: The function of `executors.py` that opens it.
        package: The package it needs from the peers' environment, if any.
        max_sessions: The most sessions to open at once on this machine, if limited.
    """

    function: str
    package: str | None = None
    max_sessions: int | None = None


LIBRARIES: Mapping[str, Library] = {
    ENVWEAVE: Library("open_namespace"),
    NO_EXTENSION: Library("open_without_extension"),
    LANDLOCK: Library("open_landlock"),
    WARM: Library("open_warm"),
    ANY_CORE: Library("open_any_core"),
    EXEC: Library("open_exec"),
    SMOLAGENTS: Library("open_smolagents", "smolagents"),
    SMOLAGENTS_UNTIMED: Library("open_smolagents_without_timeout", "smolagents"),
    MONTY: Library("open_monty", "pydantic-monty"),
    JUPYTER: Library("open_jupyter", "ipykernel", max_sessions=20),
    SUBPROCESS: Library("open_subprocess", max_sessions=100),
    BUBBLEWRAP: Library("open_bubblewrap", max_sessions=100),
    DOCKER: Library("open_docker", max_sessions=20),
}
ALL = tuple(LIBRARIES)
OWN = (ENVWEAVE, NO_EXTENSION, LANDLOCK, WARM, ANY_CORE)
AFTER_CREATION = tuple(name for name in ALL if name != WARM)
"""Warm sessions differ only in how a session is created."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A time to compare. `key` is also the name of the worker's method."""

    key: str
    title: str
    libraries: tuple[str, ...] = AFTER_CREATION


@dataclass(frozen=True, slots=True)
class LiveComparison:
    """A value per session, while many sessions are open."""

    key: str
    title: str
    unit: str


COMPARISONS: tuple[Comparison, ...] = (
    Comparison("create", "create a session, until its first result", ALL),
    Comparison("life", "create, use and close a session", ALL),
    Comparison(
        "start",
        "cold start, until the first result",
        (ENVWEAVE, NO_EXTENSION, LANDLOCK, MONTY, JUPYTER),
    ),
    Comparison("hot", "step `x + 1`"),
    Comparison("other", "step that was not run before, `x + 2`"),
    Comparison("cell", "cell of 8 lines that was not run before"),
    Comparison("loop", "loop of 100,000 iterations"),
    Comparison("tool", "tool call (100 in a step)"),
    Comparison("branch", "copy a live session, until its first result"),
)
CREATE, STEP, MEMORY, PRIVATE = "live-create", "live-step", "memory", "private"
LIVE_COMPARISONS: tuple[LiveComparison, ...] = (
    LiveComparison(CREATE, "create one of many live sessions, until its first result", "s"),
    LiveComparison(STEP, "step in each of many live sessions", "s"),
    LiveComparison(MEMORY, "memory per live session", "bytes"),
    LiveComparison(PRIVATE, "private memory per live session", "bytes"),
)

_VERSIONS = """
import importlib.metadata, json, sys
print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))
"""


def _peers_python() -> str:
    pins = str(ROOT / "benchmarks/requirements/sandbox-peers.txt")
    return script_python("scripts/peers", "--pins", pins)


def _start_worker(name: str) -> JsonProcess:
    library = LIBRARIES[name]
    python = sys.executable if library.package is None else _peers_python()
    return JsonProcess(python, "benchmarks.sandbox.worker", library.function)


def measure_all(keys: list[str], settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    """Run the selected comparisons."""
    names = tuple(name for name in ALL if _is_selected(name, options.library))
    sessions = options.sessions or (100 if options.quick else 1000)
    rows: list[dict[str, Any]] = []
    results: dict[str, Any] = {
        "machine": describe_machine(("msgspec",)),
        "peers": _versions(names),
        "rows": rows,
    }
    problems: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        workers: dict[str, JsonProcess] = {}
        used: dict[str, dict[str, Any]] = {}
        for name in names:
            with skip_unavailable(name, problems):
                worker = _start_worker(name)
                stack.callback(worker.stop)
                used[name] = worker.request("open")["settings"]
                workers[name] = worker
        for comparison in COMPARISONS:
            if comparison.key in keys:
                settings.log(comparison.key)
                rows.append(_measure_times(comparison, workers, settings, used, dict(problems)))
        live = [comparison for comparison in LIVE_COMPARISONS if comparison.key in keys]
        if live:
            settings.log(f"{sessions} live sessions: {', '.join(one.key for one in live)}")
            rows += _measure_live(live, tuple(workers), settings, sessions, used, dict(problems))
    return results


def _is_selected(name: str, parts: list[str] | None) -> bool:
    return not parts or any(part in name for part in parts)


def _versions(names: tuple[str, ...]) -> dict[str, Any]:
    packages = sorted({package for name in names if (package := LIBRARIES[name].package)})
    found: dict[str, Any] = {}
    if packages:
        try:
            command = [_peers_python(), "-c", _VERSIONS, *packages]
            found |= json.loads(subprocess.check_output(command, text=True))
        except (NotAvailableError, subprocess.SubprocessError):
            found |= dict.fromkeys(packages)
    for program in ("bwrap", "docker"):
        if shutil.which(program):
            output = subprocess.check_output([program, "--version"], text=True)
            found[program] = output.replace(",", "").split()[1 if program == "bwrap" else 2]
    return {name: {"version": version} for name, version in found.items()}


def _measure_times(
    comparison: Comparison,
    workers: dict[str, JsonProcess],
    settings: Settings,
    used: dict[str, dict[str, Any]],
    problems: dict[str, str],
) -> dict[str, Any]:
    def measure(worker: JsonProcess) -> float:
        reply = worker.request("time", what=comparison.key, seconds=settings.seconds)
        return float(reply["seconds"])

    measures = {
        name: functools.partial(measure, worker)
        for name, worker in workers.items()
        if name in comparison.libraries
    }
    measured = measure_interleaved(measures, settings.repeats, problems)
    problems = {name: why for name, why in problems.items() if name in comparison.libraries}
    return _results_of(comparison, measured, problems, unit="s", settings=used)


def _measure_live(
    comparisons: list[LiveComparison],
    names: tuple[str, ...],
    settings: Settings,
    sessions: int,
    used: dict[str, dict[str, Any]],
    problems: dict[str, str],
) -> list[dict[str, Any]]:
    samples: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    numbers = {name: min(LIBRARIES[name].max_sessions or sessions, sessions) for name in names}
    used = {
        name: {**used[name], **({"sessions": number} if number < sessions else {})}
        for name, number in numbers.items()
    }

    def measure(name: str) -> float:
        for key, value in _hold_sessions(name, numbers[name]).items():
            samples[key][name].append(value)
        return samples[CREATE][name][-1]

    measures = {name: functools.partial(measure, name) for name in names if name in AFTER_CREATION}
    measure_interleaved(measures, min(settings.repeats, LIVE_REPEATS), problems)
    return [
        _results_of(
            comparison,
            {
                name: Rate(tuple(values))
                for name, values in samples[comparison.key].items()
                if name not in problems
            },
            problems,
            unit=comparison.unit,
            sessions=sessions,
            settings=used,
        )
        for comparison in comparisons
    ]


def _hold_sessions(name: str, sessions: int) -> dict[str, float]:
    """Hold this many sessions for a moment, and return what each of them takes.

    In a fresh process: memory that an earlier measurement freed or kept would distort the result.
    """
    with contextlib.ExitStack() as stack:
        worker = _start_worker(name)
        stack.callback(worker.stop)
        worker.request("open")
        before = _memory([worker.pid, *worker.request("release")["processes"]])
        reply = worker.request("hold", sessions=sessions)
        after = _memory([worker.pid, *reply["processes"]])
    total, private = ((new - old) / sessions for new, old in zip(after, before, strict=True))
    return {CREATE: reply["create"], STEP: reply["step"], MEMORY: total, PRIVATE: private}


def _memory(roots: list[int]) -> tuple[int, int]:
    """Return the memory of these processes and their descendants, and its private part."""
    private = sum(private_bytes(pid) for root in roots for pid in (root, *children_of(root)))
    return sum(tree_bytes(root) or 0 for root in roots), private


def _results_of(
    comparison: Comparison | LiveComparison,
    measured: dict[str, Rate],
    problems: dict[str, str],
    **more: Any,
) -> dict[str, Any]:
    others = [name for name in measured if name not in OWN]
    return comparison_results(
        comparison.key, comparison.title, measured, problems, ours=ENVWEAVE, others=others, **more
    )


def tables(results: dict[str, Any]) -> list[Table]:
    """Return the results as tables."""
    return comparison_tables(results, "envweave's sandbox and other ways to run Python code")


def chart(results: dict[str, Any]) -> BarChart:
    """Return the time to create a session."""
    [row] = [row for row in results["rows"] if row["key"] == "create"]
    unisolated = (EXEC, SMOLAGENTS, SUBPROCESS, JUPYTER)
    values = {
        f"{name} (not isolated)" if name in unisolated else name: measured["median"]
        for name, measured in row["measured"].items()
        if name in (ENVWEAVE, WARM) or (name not in OWN and name != SMOLAGENTS_UNTIMED)
    }
    return BarChart(
        "Create a session and run its first code",
        "time, log scale (lower is better)",
        values,
        format_duration,
        higher_is_better=False,
    )


RESULTS = Results("sandbox", tables, chart)


def _library(text: str) -> str:
    if not any(text in name for name in ALL):
        known = "; ".join(ALL)
        raise argparse.ArgumentTypeError(f"no library has {text!r} in its name. Known: {known}")
    return text


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--library",
        type=_library,
        action="append",
        metavar="NAME",
        help="the libraries with NAME in their name; can be repeated",
    )
    parser.add_argument(
        "--sessions", type=positive, metavar="N", help="live sessions at once (default: 1000)"
    )


main = ComparisonProgram(
    "sandbox",
    __doc__,
    [comparison.key for comparison in (*COMPARISONS, *LIVE_COMPARISONS)],
    measure_all,
    RESULTS,
    seconds=0.5,
    quick_seconds=0.1,
    add_options=_add_options,
    partial_options=("only", "quick", "library", "sessions"),
).main
