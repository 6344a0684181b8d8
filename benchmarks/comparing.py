"""Comparing in turns: everyone measured again and again, ours against each of the others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ordered import NotAvailableError

from envweave.bench.solo import Rate

Turn = Callable[[], float]
"""Measures once, and returns the figure."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How long to measure.

    Attributes:
        repeats: How many turns each has.
        seconds: How long a turn is.
        say: Tells what is going on.
        sides: Who takes part, where it is not everyone.
    """

    repeats: int
    seconds: float
    say: Callable[[str], None]
    sides: tuple[str, ...] = ()


def in_turns(turns: Mapping[str, Turn], repeats: int, problems: dict[str, str]) -> dict[str, Rate]:
    """Take everyone's turn, and again: A B, A B. Who fails is out, and the others go on."""
    samples: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(repeats):
        for name, turn in turns.items():
            if name not in problems:
                with excused(name, problems):
                    samples[name].append(turn())
    return {name: Rate(tuple(found)) for name, found in samples.items() if name not in problems}


@contextlib.contextmanager
def excused(name: str, problems: dict[str, str]) -> Iterator[None]:
    """Write down why somebody cannot take part, and go on without."""
    try:
        yield
    except NotAvailableError as error:
        problems[name] = str(error)


def figures_of(
    key: str,
    title: str,
    found: Mapping[str, Rate],
    problems: Mapping[str, str],
    *,
    ours: str,
    others: Sequence[str],
    targets: Mapping[str, float | None],
    unit: str,
    sessions: int | None = None,
    chosen: Mapping[str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the figures of a comparison as plain data, with how far ahead ours is.

    Args:
        key: Its short name.
        title: What is compared.
        found: What was measured, by name.
        problems: Why somebody has no figure.
        ours: Who is compared.
        others: With whom.
        targets: How many times as good ours is to be, by whose name.
        unit: `steps/s`, of which more is better, or `s` or `bytes`.
        sessions: How many sessions take part.
        chosen: The settings somebody was measured with.
    """
    comparisons = []
    for name in others:
        target = targets.get(name)
        ahead = _ahead(found[ours], found[name], unit == "steps/s") if ours in found else None
        comparisons.append(
            {
                "against": name,
                "ratio": ahead.as_json() if ahead else None,
                "target": target,
                "reached": ahead.median >= target if ahead and target else None,
            }
        )
    return {
        "key": key,
        "title": title,
        "sessions": sessions,
        "unit": unit,
        "found": {name: one.as_json() for name, one in found.items()},
        "settings": dict(chosen or {}),
        "problems": dict(problems),
        "comparisons": comparisons,
    }


def _ahead(ours: Rate, theirs: Rate, more_is_better: bool) -> Rate:  # noqa: FBT001 - of the unit
    pairs = zip(ours.samples, theirs.samples, strict=True)
    return Rate(tuple(a / b if more_is_better else b / a for a, b in pairs))
