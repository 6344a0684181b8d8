"""Running the comparisons of coding.py: in turns, nobody waited for in vain."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import comparing
import numpy as np
from coding_sides import CIRCLE_S, OURS, THEIRS, Pair
from comparing import Settings, Turn, excused, in_turns

from envweave.bench.solo import Rate

ALONE, BESIDE = "nobody in circles", "one in circles"
SESSIONS = 64
CLIENTS = {OURS: ("blocking",), THEIRS: ("blocking", "looping")}
"""How the client of a side may be used; the quickest counts."""


@dataclass(frozen=True, slots=True)
class Row:
    """A comparison.

    Attributes:
        key: Its short name; that of a piece of code where there is one.
        title: What is compared.
        at_least: How many times as fast ours is to be; `None` where nothing was promised.
    """

    key: str
    title: str
    at_least: float | None = None


CROWD = Row("crowd", f"one of {SESSIONS} sessions in `while True`, again and again")
ROWS = (
    Row("print", "print a word"),
    Row("loop", "a loop of 1,000 iterations"),
    Row("fib", "fib(18), recursive"),
    CROWD,
)


def run_piece(row: Row, how: Settings) -> dict[str, Any]:
    """Measure how long a step takes with a piece of code on each side, and return the figures."""
    problems: dict[str, str] = {}
    turns: dict[str, Turn] = {}
    chosen: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as closing:
        for side in how.sides:
            with excused(side, problems):
                pair = Pair(side)
                closing.callback(pair.stop)
                best = _best_client(pair, row.key, side, how.seconds / 4)
                pair.open(best)
                chosen[side] = {"client": best} if len(CLIENTS[side]) > 1 else {}
                turns[side] = _turn(pair, row.key, how.seconds)
        times = in_turns(turns, how.repeats, problems)
    others = [name for name in times if name != OURS]
    return comparing.figures_of(
        row.key,
        row.title,
        times,
        problems,
        ours=OURS,
        others=others,
        targets=dict.fromkeys(others, row.at_least),
        unit="s",
        sessions=1,
        chosen=chosen,
    )


def _best_client(pair: Pair, piece: str, side: str, seconds: float) -> str:
    ways = CLIENTS[side]
    if len(ways) == 1:
        return ways[0]
    times = {}
    for way in ways:
        pair.open(way)
        times[way] = _turn(pair, piece, seconds)()
        pair.close()
    return min(times, key=lambda way: times[way])


def _turn(pair: Pair, piece: str, seconds: float) -> Turn:
    def turn() -> float:
        pair.run(piece, seconds / 10)
        return pair.run(piece, seconds)

    return turn


def run_crowd(how: Settings) -> dict[str, Any]:
    """Measure how long a step takes among many sessions, with and without one in circles."""
    problems: dict[str, str] = {}
    seen: dict[str, dict[str, list[float]]] = {
        name: {"p50": [], "p99": [], "steps": [], "circled": []} for name in (ALONE, BESIDE)
    }
    with contextlib.ExitStack() as closing, excused(OURS, problems):
        pair = Pair(OURS)
        closing.callback(pair.stop)
        pair.gather(SESSIONS)
        pair.crowd(how.seconds / 4, circling=False)
        for _ in range(how.repeats):
            for name in (ALONE, BESIDE):
                told = pair.crowd(how.seconds, circling=name == BESIDE)
                taken = told["latencies_s"]
                seen[name]["p50"].append(float(np.percentile(taken, 50)))
                seen[name]["p99"].append(float(np.percentile(taken, 99)))
                seen[name]["steps"].append(float(len(taken)))
                seen[name]["circled"].append(float(told["circled"]))
    found = {
        name: {key: Rate(tuple(values)).as_json() for key, values in one.items()}
        for name, one in seen.items()
        if one["p50"]
    }
    return {
        "title": CROWD.title,
        "sessions": SESSIONS,
        "circle_s": CIRCLE_S,
        "found": found,
        "slower": {which: _slower(seen, which) for which in ("p50", "p99")} if found else {},
        "problems": problems,
    }


def _slower(seen: dict[str, dict[str, list[float]]], which: str) -> dict[str, Any]:
    """Return how many times as long a step takes beside the one in circles."""
    pairs = zip(seen[BESIDE][which], seen[ALONE][which], strict=True)
    told: dict[str, Any] = Rate(tuple(beside / alone for beside, alone in pairs)).as_json()
    return told
