"""The coding environment behind a server: envweave's and OpenEnv's.

    benchmarks/run coding                         everything; some minutes
    benchmarks/run coding --quick                 less precise
    benchmarks/run coding --only noisy-neighbor   the comparisons with that in their name
    benchmarks/run coding --docs                  store the results and write them into the docs

Each library has a server process and a client process, which runs a snippet again and again in one
session. OpenEnv's coding environment uses the interpreter of smolagents in the server's process;
envweave's uses an isolated process per session.

`noisy-neighbor` has 64 sessions on one server of envweave. Each runs a short snippet and pauses for
50 ms, except one that runs `while True: pass` until its time limit, again and again. It compares
the latency of the others with and without that one.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from typing import Any

import numpy as np

from benchmarks.measurement.comparison import (
    Measure,
    Rate,
    Settings,
    comparison_results,
    measure_interleaved,
    skip_unavailable,
)
from benchmarks.measurement.machine import describe_machine
from benchmarks.measurement.pages import Results
from benchmarks.measurement.processes import (
    JsonProcess,
    NotAvailableError,
    ServerProcess,
    script_python,
)
from benchmarks.measurement.program import ComparisonProgram
from benchmarks.measurement.tables import DASH, Table, comparison_tables, format_duration

ENVWEAVE, OPENENV = "envweave", "OpenEnv"
CLIENTS = {ENVWEAVE: ("blocking",), OPENENV: ("blocking", "async")}
"""The clients of each library to try; the fastest is measured."""
QUIET, NOISY = "no noisy neighbor", "a noisy neighbor"
SESSIONS = 64
CODE_TIMEOUT_S = 1.0
"""How long envweave's server lets code run."""

SNIPPETS = {
    "print": "print a word",
    "loop": "loop of 1,000 iterations",
    "fib": "fib(18), recursive",
}
NOISY_NEIGHBOR = "noisy-neighbor"


def measure_all(keys: list[str], settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    """Run the selected comparisons."""
    libraries = (options.library,) if options.library else (ENVWEAVE, OPENENV)
    results: dict[str, Any] = {
        "machine": describe_machine(("fastapi", "uvicorn", "uvloop", "websockets")),
        "peers": {OPENENV: _openenv_version()} if OPENENV in libraries else {},
        "rows": [],
        "noisy_neighbor": None,
    }
    for key, title in SNIPPETS.items():
        if key in keys:
            settings.log(key)
            results["rows"].append(_measure_snippet(key, title, settings, libraries))
    if NOISY_NEIGHBOR in keys and ENVWEAVE in libraries:
        settings.log(NOISY_NEIGHBOR)
        results["noisy_neighbor"] = _measure_noisy_neighbor(settings)
    return results


def _python_of(library: str) -> str:
    is_theirs = library == OPENENV
    return script_python("scripts/openenv-venv", "--coding") if is_theirs else sys.executable


def _openenv_version() -> dict[str, Any]:
    code = (
        "from importlib.metadata import version; "
        "print(version('openenv'), 'with smolagents', version('smolagents'))"
    )
    try:
        version = subprocess.check_output([_python_of(OPENENV), "-c", code], text=True)
    except (NotAvailableError, subprocess.SubprocessError) as error:
        return {"version": None, "problem": str(error)}
    return {"version": version.strip(), "problem": None}


class ClientAndServer:
    """A client process and the server process it is connected to."""

    def __init__(self, library: str) -> None:
        python = _python_of(library)

        def command(port: int) -> list[str]:
            address = ["--host", "127.0.0.1", "--port", str(port)]
            if library == ENVWEAVE:
                limits = f'limits={{"timeout_s": {CODE_TIMEOUT_S}}}'
                serve = [python, "-m", "envweave.cli", "serve", "coding-v0"]
                return [*serve, *address, "--arg", limits]
            return [
                *(python, "-m", "uvicorn", "benchmarks.coding.openenv_app:app", *address),
                # Without compression it is faster on one machine.
                *("--no-access-log", "--ws-per-message-deflate", "false"),
            ]

        # The client first: it starts while the server does.
        self.client = JsonProcess(python, "benchmarks.coding.client", library)
        try:
            self._server = ServerProcess(command)
        except BaseException:
            self.client.stop()
            raise
        self.url = self._server.url

    def run(self, snippet: str, seconds: float) -> float:
        """Run a snippet again and again for this time, and return the time of one step."""
        reply = self.client.request("run", snippet=snippet, seconds=seconds)
        return float(reply["seconds"]) / float(reply["steps"])

    def stop(self) -> None:
        """End both processes."""
        self.client.stop()
        self._server.stop()


def _measure_snippet(
    key: str, title: str, settings: Settings, libraries: tuple[str, ...]
) -> dict[str, Any]:
    problems: dict[str, str] = {}
    measures: dict[str, Measure] = {}
    used: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        for library in libraries:
            with skip_unavailable(library, problems):
                pair = ClientAndServer(library)
                stack.callback(pair.stop)
                client = _fastest_client(pair, key, CLIENTS[library], settings.seconds / 4)
                pair.client.request("open", url=pair.url, client=client)
                used[library] = {"client": client} if len(CLIENTS[library]) > 1 else {}
                measures[library] = _stepping(pair, key, settings.seconds)
        times = measure_interleaved(measures, settings.repeats, problems)
    return comparison_results(
        key,
        title,
        times,
        problems,
        ours=ENVWEAVE,
        others=[name for name in times if name != ENVWEAVE],
        unit="s",
        sessions=1,
        settings=used,
    )


def _fastest_client(
    pair: ClientAndServer, snippet: str, clients: tuple[str, ...], seconds: float
) -> str:
    if len(clients) == 1:
        return clients[0]
    times = {}
    for client in clients:
        pair.client.request("open", url=pair.url, client=client)
        times[client] = _stepping(pair, snippet, seconds)()
        pair.client.request("close")
    return min(times, key=lambda client: times[client])


def _stepping(pair: ClientAndServer, snippet: str, seconds: float) -> Measure:
    def measure() -> float:
        pair.run(snippet, seconds / 10)  # warm-up
        return pair.run(snippet, seconds)

    return measure


def _measure_noisy_neighbor(settings: Settings) -> dict[str, Any]:
    """Measure the latency of steps among many sessions, with and without a noisy neighbor."""
    problems: dict[str, str] = {}
    samples: dict[str, dict[str, list[float]]] = {
        name: {"p50": [], "p99": [], "steps": [], "timeouts": []} for name in (QUIET, NOISY)
    }
    with contextlib.ExitStack() as stack, skip_unavailable(ENVWEAVE, problems):
        pair = ClientAndServer(ENVWEAVE)
        stack.callback(pair.stop)
        pair.client.request("open-many", url=pair.url, sessions=SESSIONS)
        pair.client.request("run-many", seconds=settings.seconds / 4, noisy=False)  # warm-up
        for _ in range(settings.repeats):
            for name, found in samples.items():
                reply = pair.client.request(
                    "run-many", seconds=settings.seconds, noisy=name == NOISY
                )
                latencies_s = reply["latencies_s"]
                found["p50"].append(float(np.percentile(latencies_s, 50)))
                found["p99"].append(float(np.percentile(latencies_s, 99)))
                found["steps"].append(float(len(latencies_s)))
                found["timeouts"].append(float(reply["timeouts"]))
    measured = {
        name: {key: Rate(tuple(values)).as_json() for key, values in found.items()}
        for name, found in samples.items()
        if not problems
    }
    return {
        "sessions": SESSIONS,
        "timeout_s": CODE_TIMEOUT_S,
        "measured": measured,
        "slowdown": {key: _slowdown(samples, key) for key in ("p50", "p99")} if measured else {},
        "problems": problems,
    }


def _slowdown(samples: dict[str, dict[str, list[float]]], key: str) -> dict[str, Any]:
    pairs = zip(samples[NOISY][key], samples[QUIET][key], strict=True)
    slowdown: dict[str, Any] = Rate(tuple(noisy / quiet for noisy, quiet in pairs)).as_json()
    return slowdown


def tables(results: dict[str, Any]) -> list[Table]:
    """Return the results as tables."""
    found = []
    if results["rows"]:
        found += comparison_tables(results, "envweave's coding environment and OpenEnv's")
    if results["noisy_neighbor"]:
        found.append(_noisy_neighbor_table(results["noisy_neighbor"]))
    return found


def _noisy_neighbor_table(results: dict[str, Any]) -> Table:
    cells = []
    for key in ("p50", "p99"):
        for name, found in results["measured"].items():
            median, low, high = (
                format_duration(found[key][one]) for one in ("median", "low", "high")
            )
            slowdown = results["slowdown"][key]["median"]
            steps = f"{found['steps']['median']:,.0f}"
            times = f"{slowdown:.2f}×" if name == NOISY else DASH
            cells.append((key, name, median, f"{low} to {high}", times, steps))
    columns = ("latency", "with", ">step of another session", ">range", ">slowdown", ">steps")
    title = f"Noisy neighbor: one of {results['sessions']} sessions runs an infinite loop"
    notes = [f"{name}: {why}" for name, why in results["problems"].items()]
    return Table(title, columns, cells, notes)


RESULTS = Results("coding", tables)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--library", choices=(ENVWEAVE, OPENENV), help="measure one library, without ratios"
    )


main = ComparisonProgram(
    "coding",
    __doc__,
    [*SNIPPETS, NOISY_NEIGHBOR],
    measure_all,
    RESULTS,
    seconds=2.0,
    quick_seconds=0.5,
    add_options=_add_options,
    partial_options=("only", "quick", "library"),
).main
