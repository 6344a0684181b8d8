"""Running the comparisons of remote.py: both sides in turns, nobody waited for in vain."""

from __future__ import annotations

import contextlib
from typing import Any

import comparing
from comparing import Settings, Turn, excused, in_turns
from remote_rows import FIRST, IMPORT, START, MemoryRow, RateRow, Row, TimeRow
from remote_sides import (
    OURS,
    QUICKEST,
    TEMPLATE,
    THEIRS,
    TRIED,
    TRIED_WITH_MANY,
    Pair,
    Server,
    Setting,
    seconds_of,
)

from envweave.bench.solo import Rate

AS_TEMPLATE, AT_BEST = "OpenEnv, as its template", "OpenEnv, at its best"
EXAMPLE = "counter-v0"
MEMORY_REPEATS = 3


def run_row(row: Row, how: Settings) -> dict[str, Any]:
    """Measure one comparison, and return its figures."""
    if isinstance(row, RateRow):
        return _run_rates(row, how)
    if isinstance(row, MemoryRow):
        return _run_memory(row, how)
    return _run_times(row, how)


def _run_rates(row: RateRow, how: Settings) -> dict[str, Any]:
    problems: dict[str, str] = {}
    turns: dict[str, Turn] = {}
    chosen: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as closing:
        if OURS in how.sides:
            with excused(OURS, problems):
                pair = Pair(OURS, size=row.size)
                closing.callback(pair.stop)
                pair.open(row.ours, row.sessions)
                turns[OURS] = _turn(pair, how.seconds)
        if THEIRS in how.sides:
            with excused(AT_BEST, problems):
                for name, (pair, setting, used) in _their_ways(row, how, closing).items():
                    pair.open(used, row.sessions)
                    turns[name] = _turn(pair, how.seconds)
                    chosen[name] = {**setting.as_json(), "client": used}
        rates = in_turns(turns, how.repeats, problems)
    return figures_of(row, rates, problems, chosen=chosen, unit="steps/s", sessions=row.sessions)


def _their_ways(
    row: RateRow, how: Settings, closing: contextlib.ExitStack
) -> dict[str, tuple[Pair, Setting, str]]:
    """Try every way for a moment; return the quickest, and the quickest as the template has it."""
    tried: list[tuple[float, Pair, Setting, str]] = []
    for setting in TRIED if row.sessions == 1 else TRIED_WITH_MANY:
        pair = Pair(THEIRS, setting, row.size)
        closing.callback(pair.stop)
        for used in row.theirs:
            pair.open(used, row.sessions)
            tried.append((_turn(pair, how.seconds / 2)(), pair, setting, used))
            pair.close()
    tried.sort(key=lambda one: one[0], reverse=True)
    template = next(one for one in tried if one[2] == TEMPLATE)
    ways = {AT_BEST: tried[0][1:]}
    return ways if template is tried[0] else {AS_TEMPLATE: template[1:], **ways}


def _turn(pair: Pair, seconds: float) -> Turn:
    def turn() -> float:
        pair.run(seconds / 10)
        return pair.run(seconds)

    return turn


_IMPORTS = {
    OURS: "import envweave; envweave.make",
    THEIRS: "from openenv.core import GenericEnvClient",
}
_FIRST = {
    OURS: "import remote_envweave_side as side",
    THEIRS: "import remote_openenv_side as side",
}


def _timed(code: str) -> str:
    return (
        f"import time; began_s = time.perf_counter(); {code}; print(time.perf_counter() - began_s)"
    )


def _run_times(row: TimeRow, how: Settings) -> dict[str, Any]:
    problems: dict[str, str] = {}
    turns: dict[str, Turn] = {}
    with contextlib.ExitStack() as closing:
        for side in how.sides:
            with excused(side, problems):
                turns[side] = _clocked(row, side, closing)
                turns[side]()  # once uncounted: what is read from disk is read by everyone
        seconds = in_turns(turns, how.repeats, problems)
    return figures_of(row, seconds, problems, unit="s")


def _clocked(row: TimeRow, side: str, closing: contextlib.ExitStack) -> Turn:
    if row.key == START:

        def start() -> float:
            server = Server(side, QUICKEST, serves=EXAMPLE)
            server.stop()
            return server.began_s

        return start
    if row.key == IMPORT:
        return lambda: seconds_of(side, _timed(_IMPORTS[side]))
    assert row.key == FIRST
    server = Server(side, QUICKEST)
    closing.callback(server.stop)
    played = (
        f"{_FIRST[side]}; env = side.blocking({server.url!r}); env.reset(); env.step(side.ACTION)"
    )
    return lambda: seconds_of(side, f"{_timed(played)}; env.close()")


def _run_memory(row: MemoryRow, how: Settings) -> dict[str, Any]:
    problems: dict[str, str] = {}
    ways = {OURS: (OURS, TEMPLATE), AS_TEMPLATE: (THEIRS, TEMPLATE), AT_BEST: (THEIRS, QUICKEST)}
    turns = {
        name: _weighing(side, setting, row.sessions)
        for name, (side, setting) in ways.items()
        if side in how.sides
    }
    sizes = in_turns(turns, min(how.repeats, MEMORY_REPEATS), problems)
    return figures_of(row, sizes, problems, unit="bytes", sessions=row.sessions)


def _weighing(side: str, setting: Setting, sessions: int) -> Turn:
    """Return what tells by how much a fresh server grows with each session in an episode."""

    def weigh() -> float:
        with contextlib.ExitStack() as closing:
            pair = Pair(side, setting)
            closing.callback(pair.stop)
            # What is made for the first session is not made for each.
            pair.open("looping", 1)
            pair.run(0.1)
            before = pair.server.bytes_taken()
            pair.open("looping", sessions)
            pair.run(0.1)
            return (pair.server.bytes_taken() - before) / sessions

    return weigh


def figures_of(
    row: Row,
    found: dict[str, Rate],
    problems: dict[str, str],
    *,
    unit: str,
    sessions: int | None = None,
    chosen: dict[str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the figures of a row as plain data, with how far ahead ours is."""
    others = [name for name in found if name != OURS]
    # Whoever is ahead of the others is who ours is compared with.
    more_is_better = unit == "steps/s"
    foremost = sorted(others, key=lambda name: found[name].median, reverse=more_is_better)[:1]
    return comparing.figures_of(
        row.key,
        row.title,
        found,
        problems,
        ours=OURS,
        others=others,
        targets=dict.fromkeys(foremost, row.at_least),
        unit=unit,
        sessions=sessions,
        chosen=chosen,
    )
