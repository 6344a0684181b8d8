"""The table of the docs' page about benchmarks, made from the stored results of several."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measurement.pages import ASSETS, ROOT

PAGE = ROOT / "docs/explanation/benchmarks.md"
BEGIN, END = "<!-- summary: begin -->", "<!-- summary: end -->"


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        what: What was measured.
        results: The name of the stored results.
        key: The key of the measurement there.
        ours: The name of envweave's way.
        other: What it is compared with.
        label: How the page calls that.
    """

    what: str
    results: str
    key: str
    ours: str
    other: str
    label: str


ROWS = (
    Row(
        "256 near-empty environments, one process",
        *("vector", "serial-own-256", "envweave serial"),
        *("gymnasium SyncVectorEnv", "Gymnasium `SyncVectorEnv`"),
    ),
    Row(
        "the same, worker processes",
        *("vector", "process-own-256", "envweave process"),
        *("gymnasium AsyncVectorEnv", "Gymnasium `AsyncVectorEnv`"),
    ),
    Row(
        "256 environments that wait for 1 ms",
        *("vector", "async-io-256", "envweave async"),
        *("gymnasium AsyncVectorEnv", "Gymnasium `AsyncVectorEnv`"),
    ),
    Row(
        "256 CartPoles, one process",
        *("vector", "serial-cartpole-256", "envweave serial"),
        *("PufferLib Serial", "PufferLib Serial"),
    ),
    Row(
        "one session of a server",
        *("remote", "one", "envweave", "OpenEnv, best settings", "OpenEnv, best settings"),
    ),
    Row(
        "64 sessions of a server",
        *("remote", "sessions-64", "envweave", "OpenEnv, best settings", "OpenEnv, best settings"),
    ),
    Row(
        "64 sessions of a server, as a vector",
        *("remote", "vector-64", "envweave", "OpenEnv, best settings", "OpenEnv, best settings"),
    ),
    Row(
        "2,048 sessions with steps of 1 s, 99th percentile",
        *("sessions", "async-2048", "envweave", "OpenEnv", "OpenEnv"),
    ),
    Row(
        "a fresh sandbox session, to its first result",
        *("sandbox", "create", "envweave", "docker run python", "`docker run python`"),
    ),
    Row(
        "a sandbox step",
        *("sandbox", "hot", "envweave", "pydantic-monty", "pydantic-monty"),
    ),
)


def summary() -> str:
    """Return the table, and on what it was measured."""
    stored = {row.results: _load(row.results) for row in ROWS}
    lines = [
        "| What | envweave | Compared with | Ratio (higher = envweave faster) |",
        "| --- | ---: | --- | ---: |",
    ]
    for row in ROWS:
        found = next(one for one in stored[row.results]["rows"] if one["key"] == row.key)
        values = found.get("steps_per_s") or found["measured"]
        unit = found.get("unit", "steps/s")
        ours, other = values[row.ours]["median"], values[row.other]["median"]
        ratio = other / ours if unit == "s" else ours / other
        lines.append(f"| {row.what} | {_amount(ours, unit)} | {row.label} | {_ratio(ratio)} |")
    machines = {
        f"{one['machine']['cores']} cores of {one['machine']['processor']}"
        for one in stored.values()
    }
    measured = f"Measured on {' and '.join(sorted(machines))}."
    return "\n".join([*lines, "", measured])


def page_with_summary() -> str:
    """Return the page with the table in it."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    return pattern.sub(lambda _: f"{BEGIN}\n\n{summary()}\n\n{END}", PAGE.read_text())


def _load(name: str) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(Path(ASSETS / f"{name}.json").read_text())
    return results


def _amount(value: float, unit: str) -> str:
    if unit != "s":
        return f"{float(f'{value:.3g}'):,.0f} {unit}"
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    return f"{value * 1e3:.2g} ms" if value < 1 else f"{value:.2f} s"


def _ratio(value: float) -> str:
    return f"{value:.0f}×" if value >= 20 else f"{value:.1f}×" if value >= 1 else f"{value:.2f}×"
