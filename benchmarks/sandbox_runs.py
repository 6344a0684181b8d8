"""Running the comparisons of sandbox.py: a process a contender, and all of them in turns."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from comparing import Settings, excused, figures_of, in_turns
from ordered import HERE, NotAvailableError, Ordered
from sandbox_rows import (
    CREATE,
    ENTRANTS,
    LIVE,
    MEMORY,
    MOST,
    OURS,
    OWN,
    PRIVATE,
    STEP,
    TIMES,
    LiveRow,
    TimeRow,
)

from envweave.bench.memory import children_of, tree_bytes
from envweave.bench.solo import Rate

PINS = HERE / "sandbox-peers.txt"
LIVE_REPEATS = 3


@functools.cache
def peers_python() -> str:
    """Return the interpreter of the peers' virtual environment, which is set up if need be.

    Raises:
        NotAvailableError: It cannot be set up.
    """
    command = [sys.executable, str(HERE.parent / "scripts/peers"), "--pins", str(PINS)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise NotAvailableError("scripts/peers could not set it up")
    return done.stdout.strip()


def start(name: str) -> Ordered:
    """Start the process of a contender."""
    entrant = ENTRANTS[name]
    python = sys.executable if entrant.package is None else peers_python()
    paths = [str(HERE), None if entrant.package else os.environ.get("PYTHONPATH")]
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [python, str(HERE / "sandbox_worker.py"), entrant.target]
    return Ordered(command, surroundings, what="its process")


def run(keys: list[str], how: Settings, sessions: int) -> list[dict[str, Any]]:
    """Measure these comparisons, and return the figures of each."""
    problems: dict[str, str] = {}
    with contextlib.ExitStack() as closing:
        workers: dict[str, Ordered] = {}
        chosen: dict[str, dict[str, Any]] = {}
        for name in how.sides:
            with excused(name, problems):
                workers[name] = worker = start(name)
                closing.callback(worker.stop)
                chosen[name] = worker.ask(do="open")["setting"]
        there = {name: one for name, one in workers.items() if name not in problems}
        rows = []
        for row in TIMES:
            if row.key in keys:
                how.say(row.key)
                rows.append(_run_times(row, there, how, chosen, dict(problems)))
        wanted = [row for row in LIVE if row.key in keys]
        if wanted:
            how.say(f"{sessions} live sessions: {', '.join(row.key for row in wanted)}")
            rows += _run_live(wanted, there, how, sessions, chosen, dict(problems))
    return rows


def _run_times(
    row: TimeRow,
    workers: dict[str, Ordered],
    how: Settings,
    chosen: dict[str, dict[str, Any]],
    problems: dict[str, str],
) -> dict[str, Any]:
    def turn(worker: Ordered) -> float:
        return float(worker.ask(do="time", what=row.key, seconds=how.seconds)["seconds"])

    taking_part = {name: one for name, one in workers.items() if name in row.only}
    turns = {name: functools.partial(turn, one) for name, one in taking_part.items()}
    found = in_turns(turns, how.repeats, problems)
    left = {name: why for name, why in problems.items() if name in row.only}
    return _figures(row, found, left, targets=row.targets, unit="s", chosen=chosen)


def _run_live(
    rows: list[LiveRow],
    workers: dict[str, Ordered],
    how: Settings,
    sessions: int,
    chosen: dict[str, dict[str, Any]],
    problems: dict[str, str],
) -> list[dict[str, Any]]:
    samples: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    numbers = {name: min(ENTRANTS[name].most or sessions, sessions) for name in workers}
    chosen = {
        name: {**chosen[name], **({"sessions": number} if number < sessions else {})}
        for name, number in numbers.items()
    }

    def turn(name: str) -> float:
        for key, value in _hold(name, numbers[name]).items():
            samples[key][name].append(value)
        return samples[CREATE][name][-1]

    turns = {name: functools.partial(turn, name) for name in workers if name in MOST}
    in_turns(turns, min(how.repeats, LIVE_REPEATS), problems)
    return [
        _figures(
            row,
            {
                name: Rate(tuple(found))
                for name, found in samples[row.key].items()
                if name not in problems
            },
            problems,
            targets={},
            unit=row.unit,
            sessions=sessions,
            chosen=chosen,
        )
        for row in rows
    ]


def _hold(name: str, sessions: int) -> dict[str, float]:
    """Have somebody hold so many sessions for a moment, and return what each takes.

    In a fresh process: what was freed or kept for later would be nobody's.
    """
    with contextlib.ExitStack() as closing:
        worker = start(name)
        closing.callback(worker.stop)
        worker.ask(do="open")
        return _weigh(worker, sessions)


def _weigh(worker: Ordered, sessions: int) -> dict[str, float]:
    before = _weights([worker.pid, *worker.ask(do="drop")["also"]])
    told = worker.ask(do="hold", sessions=sessions)
    after = _weights([worker.pid, *told["also"]])
    pairs = zip(after, before, strict=True)
    memory, private = ((new - old) / sessions for new, old in pairs)
    return {CREATE: told["create"], STEP: told["step"], MEMORY: memory, PRIVATE: private}


def _weights(roots: list[int]) -> tuple[int, int]:
    """Return the memory of these processes and all below, and the part that nobody shares."""
    private = sum(_private_bytes(pid) for root in roots for pid in (root, *children_of(root)))
    return sum(tree_bytes(root) or 0 for root in roots), private


def _private_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(one.split()[1]) * 1024 for one in lines if one.startswith("Private_"))
    return 0


def _figures(
    row: TimeRow | LiveRow, found: dict[str, Rate], problems: dict[str, str], **more: Any
) -> dict[str, Any]:
    others = [name for name in found if name not in OWN]
    return figures_of(row.key, row.title, found, problems, ours=OURS, others=others, **more)
