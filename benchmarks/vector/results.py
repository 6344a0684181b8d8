"""The results of the vector benchmark as tables and as a chart."""

from __future__ import annotations

from typing import Any

from benchmarks.measurement.pages import Results
from benchmarks.measurement.plots import BarChart
from benchmarks.measurement.tables import (
    DASH,
    Table,
    format_bytes,
    format_ratio,
    format_settings,
    problem_notes,
)

CHART_SIZE = 256


def tables(results: dict[str, Any]) -> list[Table]:
    """Return every table there are results for."""
    found = []
    for reads in (False, True):
        rows = [row for row in results["rows"] if row["reads"] is reads]
        one = [row for row in results["one"] if row["reads"] is reads]
        suffix = ", requests and infos read at every step" if reads else ""
        if one:
            found.append(_overhead_table(one, suffix))
        if rows:
            found += [_ratio_table(rows, suffix), _rate_table(rows, suffix)]
    if results["scaling"]:
        found.append(_scaling_table(results["scaling"]))
    if results["memory"]:
        found.append(_memory_table(results["memory"]))
    return found


def _overhead_table(rows: list[dict[str, Any]], suffix: str) -> Table:
    cells = []
    for row in rows:
        added = row["overhead_us"]
        cells.append(
            (
                row["title"],
                *(_steps(rate) for rate in row["steps_per_s"].values()),
                DASH if added is None else f"{added['median']:.2f} µs",
                DASH if added is None else f"{added['low']:.2f} to {added['high']:.2f}",
            )
        )
    columns = ("environment", ">called directly, steps/s", ">through make", ">added", ">range")
    return Table(f"One environment{suffix}", columns, cells, problem_notes(rows))


def _ratio_table(rows: list[dict[str, Any]], suffix: str) -> Table:
    cells = [
        (
            row["title"],
            str(row["num_envs"]),
            one["best"] or " or ".join(one["against"]),
            *format_ratio(one["ratio"]),
        )
        for row in rows
        for one in row["comparisons"]
    ]
    columns = ("comparison", ">N", "against", ">ratio (higher = envweave faster)", ">range")
    return Table(f"envweave and other libraries{suffix}", columns, cells, problem_notes(rows))


def _rate_table(rows: list[dict[str, Any]], suffix: str) -> Table:
    cells = []
    for row in rows:
        for name, rate in row["steps_per_s"].items():
            spread = DASH if rate is None else f"{rate['low']:,.0f} to {rate['high']:,.0f}"
            settings = format_settings(row["settings"].get(name))
            size = str(row["num_envs"])
            cells.append((row["title"], size, name, _steps(rate), spread, settings))
    columns = ("comparison", ">N", "library", ">steps/s", ">range", "best settings")
    return Table(f"Steps per second{suffix}", columns, cells)


def _scaling_table(measured: list[dict[str, Any]]) -> Table:
    sizes = sorted({one["num_envs"] for one in measured})
    names = list(dict.fromkeys(one["library"] for one in measured))
    rates = {(one["library"], one["num_envs"]): one["steps_per_s"] for one in measured}
    cells = [(name, *(_steps(rates.get((name, size))) for size in sizes)) for name in names]
    notes = [
        f"{one['library']}, N = {one['num_envs']}: {one['problem']}"
        for one in measured
        if one["problem"]
    ]
    columns = ("steps/s with N =", *(f">{size}" for size in sizes))
    return Table("Scaling with N, near-empty environment", columns, cells, notes)


def _memory_table(measured: list[dict[str, Any]]) -> Table:
    cells = []
    for one in measured:
        size = one["bytes_per_env"]
        cells.append((one["library"], DASH if size is None else format_bytes(size)))
    notes = [f"{one['library']}: {one['problem']}" for one in measured if one["problem"]]
    title = f"Memory per environment, N = {measured[0]['num_envs']}"
    return Table(title, ("library", ">memory"), cells, notes)


def _steps(rate: dict[str, Any] | None) -> str:
    return DASH if rate is None else f"{rate['median']:,.0f}"


def chart(results: dict[str, Any]) -> BarChart:
    """Return the steps per second of all vectors of one size."""
    values = {
        one["library"]: one["steps_per_s"]["median"]
        for one in results["scaling"]
        if one["num_envs"] == CHART_SIZE and one["steps_per_s"]
    }
    return BarChart(
        f"Vectors of {CHART_SIZE} near-empty environments",
        "steps per second over all environments, log scale (higher is better)",
        values,
        "{:,.0f}".format,
    )


RESULTS = Results("vector", tables, chart, heading="##")
