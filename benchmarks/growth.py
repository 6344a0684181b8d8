"""How speed changes with the number of environments, and with the size of observations.

    benchmarks/run growth                     everything; about five minutes
    benchmarks/run growth --only 256          the sizes with "256" in their name
    benchmarks/run growth --docs              store the results and write them into the docs

Vectors of 1 to 4,096 near-empty environments are stepped in one process and in worker processes,
beside Gymnasium's. One session of a server returns observations of 100 bytes to 16 MB, beside
OpenEnv's. How sessions grow in number is in `benchmarks/run sessions`.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import Any

from benchmarks.measurement.comparison import (
    Measure,
    Settings,
    comparison_results,
    measure_interleaved,
    skip_unavailable,
)
from benchmarks.measurement.machine import describe_machine
from benchmarks.measurement.pages import Results
from benchmarks.measurement.plots import LineChart
from benchmarks.measurement.program import ComparisonProgram
from benchmarks.measurement.tables import Table, comparison_tables
from benchmarks.remote.benchmark import openenv_version
from benchmarks.remote.processes import ENVWEAVE, FASTEST, OPENENV, TEMPLATE, ClientAndServer
from benchmarks.vector.environments import KINDS
from benchmarks.vector.libraries import (
    ASYNC,
    PROCESS,
    SERIAL,
    SYNC,
    end_leftover_processes,
    open_vector,
)

ENVIRONMENTS = (1, 4, 16, 64, 256, 1024, 4096)
MOST_PROCESSES = 256
"""`AsyncVectorEnv` has a process for each environment."""
BYTES = (100, 1_000, 10_000, 100_000, 1_000_000, 16_000_000)
_VECTOR, _TEXT = "environments-", "bytes-"


def measure_all(keys: list[str], settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the selected sizes."""
    del options
    rows = []
    for key in keys:
        settings.log(key)
        kind, _, size = key.rpartition("-")
        measure = _measure_vectors if f"{kind}-" == _VECTOR else _measure_observations
        rows.append(measure(key, int(size), settings))
    return {
        "machine": describe_machine(("gymnasium", "uvicorn", "uvloop", "websockets")),
        "peers": {OPENENV: openenv_version()},
        "rows": rows,
    }


def _measure_vectors(key: str, num_envs: int, settings: Settings) -> dict[str, Any]:
    problems: dict[str, str] = {}
    measures: dict[str, Measure] = {}
    names = (SERIAL, PROCESS, SYNC, *((ASYNC,) if num_envs <= MOST_PROCESSES else ()))
    with contextlib.ExitStack() as stack:
        stack.callback(end_leftover_processes)
        for name in names:
            with skip_unavailable(name, problems):
                vector = open_vector(name, KINDS["own"], num_envs, reads=False)
                stack.callback(vector.close)
                measures[name] = _rate_of(vector.step, settings.seconds)
        rates = measure_interleaved(measures, settings.repeats, problems)
    others = [name for name in rates if name in (SYNC, ASYNC)]
    return comparison_results(
        key,
        f"vector of {num_envs}",
        rates,
        problems,
        ours=SERIAL,
        others=others,
        unit="steps/s",
    )


def _rate_of(step: Any, seconds: float) -> Measure:
    def measure() -> float:
        step()  # warm-up
        steps, start_s = 0, time.perf_counter()
        while (passed_s := time.perf_counter() - start_s) < seconds:
            steps += step()
        return steps / passed_s

    return measure


def _measure_observations(key: str, size: int, settings: Settings) -> dict[str, Any]:
    problems: dict[str, str] = {}
    measures: dict[str, Measure] = {}
    with contextlib.ExitStack() as stack:
        for library, server in ((ENVWEAVE, TEMPLATE), (OPENENV, FASTEST)):
            with skip_unavailable(library, problems):
                pair = ClientAndServer(library, server, text_size=size)
                stack.callback(pair.stop)
                pair.open("blocking", 1)
                measures[library] = _session_rate(pair, settings.seconds)
        rates = measure_interleaved(measures, settings.repeats, problems)
    others = [name for name in rates if name != ENVWEAVE]
    return comparison_results(
        key,
        f"one session, observations of {_format_bytes(size)}",
        rates,
        problems,
        ours=ENVWEAVE,
        others=others,
        unit="steps/s",
    )


def _session_rate(pair: ClientAndServer, seconds: float) -> Measure:
    def measure() -> float:
        pair.run(seconds / 10)  # warm-up
        return pair.run(seconds)

    return measure


def _lines(results: dict[str, Any], kind: str) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in results["rows"]:
        if row["key"].startswith(kind):
            size = float(row["key"].removeprefix(kind))
            for name, rate in row["measured"].items():
                lines.setdefault(name, []).append((size, rate["median"]))
    return lines


def vector_chart(results: dict[str, Any]) -> LineChart:
    """Return steps per second by the number of environments."""
    return LineChart(
        "Vectors of near-empty environments",
        "environments",
        "steps per second, log scales (higher is better)",
        _lines(results, _VECTOR),
        "{:,.0f}".format,
        "{:,.0f}".format,
    )


def observation_chart(results: dict[str, Any]) -> LineChart:
    """Return steps per second of one session by the size of an observation."""
    return LineChart(
        "One session of a server, by the size of its observations",
        "bytes of text in an observation",
        "steps per second, log scales (higher is better)",
        _lines(results, _TEXT),
        _format_bytes,
        "{:,.0f}".format,
    )


def _format_bytes(size: float) -> str:
    for unit, factor in (("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size:g} B"


def tables(results: dict[str, Any]) -> list[Table]:
    """Return the results as tables."""
    return comparison_tables(results, "Speed by size")


RESULTS = Results("growth", tables, vector_chart, {"observations": observation_chart})

main = ComparisonProgram(
    "growth",
    __doc__,
    [*(f"{_VECTOR}{n}" for n in ENVIRONMENTS), *(f"{_TEXT}{n}" for n in BYTES)],
    measure_all,
    RESULTS,
    seconds=0.5,
    quick_seconds=0.1,
).main
