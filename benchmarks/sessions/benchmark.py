"""Thousands of sessions at once, each with one step that waits: envweave and OpenEnv.

    benchmarks/run sessions                   everything; about ten minutes
    benchmarks/run sessions --only 2048       the comparisons with "2048" in their name
    benchmarks/run sessions --library envweave
    benchmarks/run sessions --docs            store the results and write them into the docs

This is OpenEnv's public scaling experiment: N WebSocket sessions start at the same moment; each
connects, resets, takes one step that waits a second, and ends. The figure is the time of a whole
session, from connect to the end of the step, of which the wait is one second; the 99th percentile
is compared. The clients are processes of ours that send raw frames of OpenEnv's dialect, which both
servers understand; clients and server share the same cores.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.measurement.comparison import (
    Measure,
    Settings,
    comparison_results,
    measure_interleaved,
    skip_unavailable,
)
from benchmarks.measurement.machine import describe_machine, tree_bytes
from benchmarks.measurement.pages import Results
from benchmarks.measurement.plots import LineChart
from benchmarks.measurement.processes import JsonProcess, NotAvailableError, ServerProcess
from benchmarks.measurement.program import ComparisonProgram
from benchmarks.measurement.tables import DASH, Table, comparison_tables
from benchmarks.remote.benchmark import openenv_version
from benchmarks.remote.processes import ENVWEAVE, OPENENV, python_of

CLIENTS = 2
"""How many client processes share the sessions."""
MAX_SESSIONS = 1 << 16
PARTS = ("connect", "reset", "step", "total")
_SAMPLE_S = 0.2


@dataclass(frozen=True, slots=True)
class Comparison:
    """A number of sessions.

    Attributes:
        key: Its short name.
        title: What is compared.
        sessions: How many there are.
        is_async: Whether the step waits on the event loop, or blocks a thread.
        libraries: Which servers take part.
    """

    key: str
    title: str
    sessions: int
    is_async: bool
    libraries: tuple[str, ...] = (ENVWEAVE, OPENENV)


COMPARISONS = (
    *(
        Comparison(f"async-{n}", "p99 of a session with an async step of 1 s", n, is_async=True)
        for n in (16, 128, 512, 2048)
    ),
    Comparison(
        "blocking-2048", "p99 of a session with a blocking step of 1 s", 2048, is_async=False
    ),
    *(
        Comparison(
            f"async-{n}",
            "p99 of a session with an async step of 1 s",
            n,
            is_async=True,
            libraries=(ENVWEAVE,),
        )
        for n in (8192, 16384)
    ),
)


def start_server(library: str, *, is_async: bool) -> ServerProcess:
    """Start the server of a library, with no limit on sessions that matters here."""

    def command(port: int) -> list[str]:
        address = ["--host", "127.0.0.1", "--port", str(port)]
        if library == ENVWEAVE:
            name = "AsyncWait" if is_async else "Wait"
            env_id = f"pkg://benchmarks.sessions.envweave_env:{name}"
            serve = [sys.executable, "-m", "envweave.cli", "serve", env_id]
            return [*serve, *address, "--max-sessions", str(MAX_SESSIONS)]
        app = "benchmarks.sessions.openenv_app:app"
        return [
            *(python_of(library), "-m", "uvicorn", app, *address, "--no-access-log"),
            *("--ws-per-message-deflate", "false"),
        ]

    return ServerProcess(command, BENCHMARK_ASYNC_STEP=str(int(is_async)))


class Sessions:
    """A server and the client processes that start sessions there.

    Attributes:
        times: The times of all sessions so far, by part, in seconds.
        failed: How many sessions failed.
        bytes_per_session: The most memory that the server used in a run, for each session.
    """

    def __init__(self, library: str, comparison: Comparison, wait_s: float) -> None:
        self.times: dict[str, list[float]] = {part: [] for part in PARTS}
        self.failed = 0
        self.bytes_per_session = 0.0
        self._sessions, self._wait_s = comparison.sessions, wait_s
        self._server = start_server(library, is_async=comparison.is_async)
        self._clients = [
            JsonProcess(sys.executable, "benchmarks.sessions.client") for _ in range(CLIENTS)
        ]
        self._run(16)  # warm-up: imports, and what all sessions share
        self._idle_bytes = tree_bytes(self._server.pid) or 0

    def measure(self) -> float:
        """Run all sessions once; return the 99th percentile of their times."""
        peak, replies = _with_peak_bytes(self._server.pid, lambda: self._run(self._sessions))
        self.bytes_per_session = max(
            self.bytes_per_session, (peak - self._idle_bytes) / self._sessions
        )
        for reply in replies:
            for part in PARTS:
                self.times[part] += reply[part]
            self.failed += reply["failed"]
        failed = [reply for reply in replies if reply["failed"]]
        if failed:
            count = sum(reply["failed"] for reply in failed)
            raise NotAvailableError(f"{count} sessions failed: {failed[0]['cause']}")
        return float(np.percentile([total for reply in replies for total in reply["total"]], 99))

    def _run(self, sessions: int) -> list[dict[str, Any]]:
        port = int(self._server.url.rpartition(":")[2])
        share = sessions // CLIENTS
        with ThreadPoolExecutor(CLIENTS) as threads:
            replies = threads.map(
                lambda client: client.request(
                    "run", port=port, sessions=share, wait_s=self._wait_s
                ),
                self._clients,
            )
            return list(replies)

    def details(self) -> dict[str, Any]:
        """Return percentiles of all parts, failures and memory as plain data."""
        percentiles = {
            part: {f"p{rank}": float(np.percentile(values, rank)) for rank in (50, 95, 99)}
            for part, values in self.times.items()
            if values
        }
        return {
            "seconds": percentiles,
            "failed": self.failed,
            "bytes_per_session": self.bytes_per_session,
        }

    def stop(self) -> None:
        """End all processes."""
        for client in self._clients:
            client.stop()
        self._server.stop()


def _with_peak_bytes(
    pid: int, work: Callable[[], list[dict[str, Any]]]
) -> tuple[int, list[dict[str, Any]]]:
    """Do the work; return the most memory that a process used meanwhile, and what it returned."""
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(_SAMPLE_S):
            peak = max(peak, tree_bytes(pid) or 0)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        return_value = work()
    finally:
        done.set()
        watcher.join()
    return peak, return_value


def measure_all(keys: list[str], settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    """Run the selected comparisons."""
    libraries = (options.library,) if options.library else (ENVWEAVE, OPENENV)
    rows = []
    for comparison in COMPARISONS:
        if comparison.key in keys:
            settings.log(comparison.key)
            rows.append(_measure(comparison, settings, libraries))
    return {
        "machine": describe_machine(("fastapi", "uvicorn", "uvloop", "websockets")),
        "peers": {OPENENV: openenv_version()} if OPENENV in libraries else {},
        "rows": rows,
    }


def _measure(
    comparison: Comparison, settings: Settings, libraries: tuple[str, ...]
) -> dict[str, Any]:
    problems: dict[str, str] = {}
    measures: dict[str, Measure] = {}
    opened: dict[str, Sessions] = {}
    with contextlib.ExitStack() as stack:
        for library in comparison.libraries:
            if library in libraries:
                with skip_unavailable(library, problems):
                    opened[library] = Sessions(library, comparison, settings.seconds)
                    stack.callback(opened[library].stop)
                    measures[library] = opened[library].measure
        times = measure_interleaved(measures, settings.repeats, problems)
        details = {library: sessions.details() for library, sessions in opened.items()}
    row = comparison_results(
        comparison.key,
        comparison.title,
        times,
        problems,
        ours=ENVWEAVE,
        others=[library for library in times if library != ENVWEAVE],
        unit="s",
        sessions=comparison.sessions,
    )
    return {**row, "details": details}


def tables(results: dict[str, Any]) -> list[Table]:
    """Return the results as tables."""
    cells = []
    for row in results["rows"]:
        for library, details in row["details"].items():
            for part, percentiles in details["seconds"].items():
                is_total = part == "total"
                cells.append(
                    (
                        row["key"],
                        library,
                        part,
                        *(f"{percentiles[rank]:.3f} s" for rank in ("p50", "p95", "p99")),
                        f"{details['bytes_per_session'] / 1024:.0f} KiB" if is_total else DASH,
                        str(details["failed"]) if is_total else DASH,
                    )
                )
    columns = (
        *("experiment", "library", "part", ">p50", ">p95", ">p99"),
        *(">server memory per session", ">failed sessions"),
    )
    return [
        *comparison_tables(results, "Thousands of sessions at once"),
        Table("Parts of a session", columns, cells),
    ]


def chart(results: dict[str, Any]) -> LineChart:
    """Return how the 99th percentile grows with the number of sessions."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in results["rows"]:
        if row["key"].startswith("async-"):
            for name, time in row["measured"].items():
                lines.setdefault(name, []).append((row["sessions"], time["median"]))
    return LineChart(
        "Sessions that start at once, each with a step of 1 s",
        "sessions",
        "99th percentile of a whole session in seconds, log scales (lower is better)",
        lines,
        "{:,.0f}".format,
        "{:g} s".format,
    )


RESULTS = Results("sessions", tables, chart)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--library", choices=(ENVWEAVE, OPENENV), help="measure one library, without ratios"
    )


main = ComparisonProgram(
    "sessions",
    __doc__,
    [comparison.key for comparison in COMPARISONS],
    measure_all,
    RESULTS,
    seconds=1.0,
    quick_seconds=0.5,
    add_options=_add_options,
    partial_options=("only", "quick", "library"),
).main
