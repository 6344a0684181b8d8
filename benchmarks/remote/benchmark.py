"""Environments behind a server: envweave and OpenEnv.

    benchmarks/run remote                     everything; about a quarter of an hour
    benchmarks/run remote --quick             less precise; a few minutes
    benchmarks/run remote --only sessions     the comparisons with "sessions" in their name
    benchmarks/run remote --library envweave  one library, without ratios
    benchmarks/run remote --profile           where the time of one step goes, part by part
    benchmarks/run remote --floor             the least that a step can cost, beside envweave's
    benchmarks/run remote --trace             the files, calls and lines that one step visits
    benchmarks/run remote --docs              store the results and write them into the docs

Each library has a server process and a client process. OpenEnv serves the same environment from
its own virtual environment. It is measured twice: as in its template for a new environment, and
with its best settings, which are tried first (blocking or async client, step on a thread or
`step_async`, compressed frames or not, one server process or two).
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
from dataclasses import dataclass
from typing import Any

from benchmarks.measurement.comparison import (
    Measure,
    Rate,
    Settings,
    comparison_results,
    measure_interleaved,
    skip_unavailable,
)
from benchmarks.measurement.machine import describe_machine, tree_bytes
from benchmarks.measurement.pages import Results
from benchmarks.measurement.plots import BarChart
from benchmarks.measurement.processes import NotAvailableError
from benchmarks.measurement.program import ComparisonProgram
from benchmarks.measurement.tables import Table, comparison_tables
from benchmarks.remote.processes import (
    ENVWEAVE,
    FASTEST,
    OPENENV,
    TEMPLATE,
    TRIED,
    TRIED_WITH_MANY,
    ClientAndServer,
    ServerSettings,
    python_of,
    start_server,
    time_code,
)

OPENENV_TEMPLATE, OPENENV_BEST = "OpenEnv, default template", "OpenEnv, best settings"
MEMORY_REPEATS = 3
KIB = 1024


@dataclass(frozen=True, slots=True)
class RateComparison:
    """Steps per second.

    Attributes:
        key: Its short name.
        title: What is compared.
        sessions: How many sessions are stepped.
        ours: Which client of ours: `blocking`, `async` or `vector`.
        theirs: The clients of OpenEnv to try.
        text_size: How many bytes of text an observation has.
    """

    key: str
    title: str
    sessions: int
    ours: str
    theirs: tuple[str, ...]
    text_size: int = 200


@dataclass(frozen=True, slots=True)
class TimeComparison:
    """Seconds until something is ready."""

    key: str
    title: str


@dataclass(frozen=True, slots=True)
class MemoryComparison:
    """Memory of the server per session."""

    key: str
    title: str
    sessions: int


Comparison = RateComparison | TimeComparison | MemoryComparison

_ONE, _MANY = ("blocking", "async"), ("async",)
COMPARISONS: tuple[Comparison, ...] = (
    RateComparison("one", "one session", 1, "blocking", _ONE),
    RateComparison("one-64k", "one session, observations of 64 KiB", 1, "blocking", _ONE, 64 * KIB),
    RateComparison("one-1m", "one session, observations of 1 MiB", 1, "blocking", _ONE, KIB * KIB),
    RateComparison("sessions-1", "concurrent sessions", 1, "async", _MANY),
    RateComparison("sessions-64", "concurrent sessions", 64, "async", _MANY),
    RateComparison("sessions-512", "concurrent sessions", 512, "async", _MANY),
    RateComparison("sessions-2048", "concurrent sessions", 2048, "async", _MANY),
    RateComparison("vector-64", "vector, against concurrent sessions", 64, "vector", _MANY),
    TimeComparison("start", "server start, until healthy"),
    TimeComparison("import", "import of the client"),
    TimeComparison("first-step", "client start, until the first step"),
    MemoryComparison("memory-512", "server memory per session", 512),
    MemoryComparison("memory-2048", "server memory per session", 2048),
)


def measure_all(keys: list[str], settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    """Run the selected comparisons."""
    libraries = (options.library,) if options.library else (ENVWEAVE, OPENENV)
    rows = []
    results: dict[str, Any] = {
        "machine": describe_machine(("fastapi", "uvicorn", "uvloop", "websockets")),
        "peers": {OPENENV: openenv_version()} if OPENENV in libraries else {},
        "rows": rows,
    }
    for comparison in COMPARISONS:
        if comparison.key in keys:
            settings.log(comparison.key)
            if isinstance(comparison, RateComparison):
                rows.append(_measure_rates(comparison, settings, libraries))
            elif isinstance(comparison, MemoryComparison):
                rows.append(_measure_memory(comparison, settings, libraries))
            else:
                rows.append(_measure_times(comparison, settings, libraries))
    return results


def openenv_version() -> dict[str, Any]:
    """Return which version of OpenEnv is measured, or why there is none."""
    code = "from importlib.metadata import version; print(version('openenv'))"
    try:
        version = subprocess.check_output([python_of(OPENENV), "-c", code], text=True)
    except (NotAvailableError, subprocess.SubprocessError) as error:
        return {"version": None, "problem": str(error)}
    return {"version": version.strip(), "problem": None}


def _measure_rates(
    comparison: RateComparison, settings: Settings, libraries: tuple[str, ...]
) -> dict[str, Any]:
    problems: dict[str, str] = {}
    measures: dict[str, Measure] = {}
    used: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        if ENVWEAVE in libraries:
            with skip_unavailable(ENVWEAVE, problems):
                pair = ClientAndServer(ENVWEAVE, text_size=comparison.text_size)
                stack.callback(pair.stop)
                pair.open(comparison.ours, comparison.sessions)
                measures[ENVWEAVE] = _stepping(pair, settings.seconds)
        if OPENENV in libraries:
            with skip_unavailable(OPENENV_BEST, problems):
                for name, (pair, server, client) in _try_openenv(
                    comparison, settings, stack
                ).items():
                    pair.open(client, comparison.sessions)
                    measures[name] = _stepping(pair, settings.seconds)
                    used[name] = {**server.as_json(), "client": client}
        rates = measure_interleaved(measures, settings.repeats, problems)
    return results_of(
        comparison,
        rates,
        problems,
        unit="steps/s",
        sessions=comparison.sessions,
        settings=used,
    )


def _try_openenv(
    comparison: RateComparison, settings: Settings, stack: contextlib.ExitStack
) -> dict[str, tuple[ClientAndServer, ServerSettings, str]]:
    """Try all settings for a moment; return the fastest, and the fastest with the template's."""
    tried: list[tuple[float, ClientAndServer, ServerSettings, str]] = []
    for server in TRIED if comparison.sessions == 1 else TRIED_WITH_MANY:
        pair = ClientAndServer(OPENENV, server, comparison.text_size)
        stack.callback(pair.stop)
        for client in comparison.theirs:
            pair.open(client, comparison.sessions)
            tried.append((_stepping(pair, settings.seconds / 2)(), pair, server, client))
            pair.close()
    tried.sort(key=lambda one: one[0], reverse=True)
    template = next(one for one in tried if one[2] == TEMPLATE)
    fastest = {OPENENV_BEST: tried[0][1:]}
    return fastest if template is tried[0] else {OPENENV_TEMPLATE: template[1:], **fastest}


def _stepping(pair: ClientAndServer, seconds: float) -> Measure:
    def measure() -> float:
        pair.run(seconds / 10)  # warm-up
        return pair.run(seconds)

    return measure


_IMPORTS = {
    ENVWEAVE: "import envweave; envweave.make",
    OPENENV: "from openenv.core import GenericEnvClient",
}


def _measure_times(
    comparison: TimeComparison, settings: Settings, libraries: tuple[str, ...]
) -> dict[str, Any]:
    problems: dict[str, str] = {}
    measures: dict[str, Measure] = {}
    with contextlib.ExitStack() as stack:
        for library in libraries:
            with skip_unavailable(library, problems):
                measures[library] = _timing(comparison.key, library, stack)
                measures[library]()  # warm-up: the first run reads files from disk
        times = measure_interleaved(measures, settings.repeats, problems)
    return results_of(comparison, times, problems, unit="s")


def _timing(key: str, library: str, stack: contextlib.ExitStack) -> Measure:
    if key == "start":

        def start() -> float:
            server = start_server(library, FASTEST, env_id="counter-v0")
            server.stop()
            return server.startup_s

        return start
    if key == "import":
        return lambda: time_code(library, _IMPORTS[library])
    server = start_server(library, FASTEST)
    stack.callback(server.stop)
    code = (
        "from benchmarks.remote.libraries import ACTION, LIBRARIES; "
        f"env = LIBRARIES[{library!r}].blocking({server.url!r}); env.reset(); env.step(ACTION)"
    )
    return lambda: time_code(library, code, before_exit="env.close()")


def _measure_memory(
    comparison: MemoryComparison, settings: Settings, libraries: tuple[str, ...]
) -> dict[str, Any]:
    problems: dict[str, str] = {}
    servers = {
        ENVWEAVE: (ENVWEAVE, TEMPLATE),
        OPENENV_TEMPLATE: (OPENENV, TEMPLATE),
        OPENENV_BEST: (OPENENV, FASTEST),
    }
    measures = {
        name: _memory_per_session(library, server, comparison.sessions)
        for name, (library, server) in servers.items()
        if library in libraries
    }
    sizes = measure_interleaved(measures, min(settings.repeats, MEMORY_REPEATS), problems)
    return results_of(comparison, sizes, problems, unit="bytes", sessions=comparison.sessions)


def _memory_per_session(library: str, server: ServerSettings, sessions: int) -> Measure:
    def measure() -> float:
        with contextlib.ExitStack() as stack:
            pair = ClientAndServer(library, server)
            stack.callback(pair.stop)
            # The first session also allocates what all sessions share.
            pair.open("async", 1)
            pair.run(0.1)
            before = tree_bytes(pair.server.pid) or 0
            pair.open("async", sessions)
            pair.run(0.1)
            return ((tree_bytes(pair.server.pid) or 0) - before) / sessions

    return measure


def results_of(
    comparison: Comparison, measured: dict[str, Rate], problems: dict[str, str], **more: Any
) -> dict[str, Any]:
    """Return the results of a comparison as plain data."""
    others = [name for name in measured if name != ENVWEAVE]
    return comparison_results(
        comparison.key, comparison.title, measured, problems, ours=ENVWEAVE, others=others, **more
    )


def tables(results: dict[str, Any]) -> list[Table]:
    """Return the results as tables."""
    return comparison_tables(results, "envweave and OpenEnv over the network")


def chart(results: dict[str, Any]) -> BarChart:
    """Return the steps per second of 64 sessions, all from one interleaved comparison."""
    [row] = [row for row in results["rows"] if row["key"] == "sessions-64"]
    values = {name: rate["median"] for name, rate in row["measured"].items()}
    return BarChart(
        "64 concurrent sessions of one server",
        "steps per second over all sessions, log scale (higher is better)",
        values,
        "{:,.0f}".format,
    )


RESULTS = Results("remote", tables, chart)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--library", choices=(ENVWEAVE, OPENENV), help="measure one library, without ratios"
    )


_program = ComparisonProgram(
    "remote",
    __doc__,
    [comparison.key for comparison in COMPARISONS],
    measure_all,
    RESULTS,
    seconds=1.0,
    quick_seconds=0.3,
    add_options=_add_options,
    partial_options=("only", "quick", "library"),
)


def main(arguments: list[str]) -> int:
    """Run the comparisons, the profile, the floor or the trace; return the exit code."""
    if arguments == ["--profile"]:
        from benchmarks.remote import profile

        return profile.main()
    if arguments == ["--floor"]:
        from benchmarks.remote import floor

        return floor.main()
    if arguments == ["--trace"]:
        from benchmarks.remote import trace

        return trace.main()
    return _program.main(arguments)
