"""Interleaved measurement: every library in turn, again and again, and envweave's ratio to each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.measurement.processes import NotAvailableError
from envweave.bench.solo import (
    Candidate,
    Comparison,
    Rate,
    best,
    contest,
    measure,
    overhead_us,
    ratio,
)

__all__ = [
    "Candidate",
    "Comparison",
    "Measure",
    "Rate",
    "Settings",
    "best",
    "comparison_results",
    "contest",
    "measure",
    "measure_interleaved",
    "overhead_us",
    "ratio",
    "skip_unavailable",
]

Measure = Callable[[], float]
"""Measures once and returns the value."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How long to measure.

    Attributes:
        repeats: How many times each library is measured.
        seconds: How long each time.
        log: Prints a line of progress.
    """

    repeats: int
    seconds: float
    log: Callable[[str], None]


def measure_interleaved(
    measures: Mapping[str, Measure], repeats: int, problems: dict[str, str]
) -> dict[str, Rate]:
    """Measure A B, A B, and so on, so that a busy moment of the machine affects all of them.

    A library that fails is left out from then on, with the reason in `problems`.
    """
    samples: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(repeats):
        for name, measure_once in measures.items():
            if name not in problems:
                with skip_unavailable(name, problems):
                    samples[name].append(measure_once())
    return {name: Rate(tuple(some)) for name, some in samples.items() if name not in problems}


@contextlib.contextmanager
def skip_unavailable(name: str, problems: dict[str, str]) -> Iterator[None]:
    """Record in `problems` why a library cannot be measured, and continue."""
    try:
        yield
    except NotAvailableError as error:
        problems[name] = str(error)


def comparison_results(
    key: str,
    title: str,
    measured: Mapping[str, Rate],
    problems: Mapping[str, str],
    *,
    ours: str,
    others: Sequence[str],
    unit: str,
    sessions: int | None = None,
    settings: Mapping[str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the results of a comparison as plain data, with the ratio to each of the others.

    Args:
        key: Its short name.
        title: What is compared.
        measured: What was measured, by library.
        problems: Why a library was not measured.
        ours: Which of them is envweave.
        others: With which libraries it is compared.
        unit: `steps/s` (higher is better), or `s` or `bytes` (lower is better).
        sessions: How many sessions were open.
        settings: The settings that a library was measured with.
    """
    comparisons = []
    for name in others:
        better = None
        if ours in measured and unit == "steps/s":
            better = ratio(measured[ours], measured[name])
        elif ours in measured:
            better = ratio(measured[name], measured[ours])
        comparisons.append({"against": name, "ratio": better.as_json() if better else None})
    return {
        "key": key,
        "title": title,
        "sessions": sessions,
        "unit": unit,
        "measured": {name: one.as_json() for name, one in measured.items()},
        "settings": dict(settings or {}),
        "problems": dict(problems),
        "comparisons": comparisons,
    }
