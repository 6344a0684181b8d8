"""Running the comparisons: everyone in turns, nobody waited for in vain."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comparing import Settings
from contenders import ENTRANTS, PUFFER_WORKERS, NotAvailableError, end_leftovers, open_vector
from rows import GROWTH, OVERHEAD_US, SIZES, WEIGHED_SIZE, Row

import envs
import envweave as ew
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
from envweave.errors import format_error

LONGEST_TURN_S = 60.0
REST_S = 0.6
AUTHOR, MAKE = "the author's code", "through make"


@dataclass(slots=True)
class Field:
    """Who takes part in one comparison, and how."""

    contenders: list[Candidate] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)


@contextlib.contextmanager
def deadline(name: str) -> Iterator[None]:
    """Raise in what takes longer than anything here may."""

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"{name} did not come back within {LONGEST_TURN_S:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_TURN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def gathered(
    names: list[str], kind: envs.Kind, num_envs: int, how: Settings, *, reads: bool
) -> Iterator[Field]:
    """Open everyone, and close them again; nothing they started is left."""
    field_ = Field()
    closing: list[tuple[str, Callable[[], None]]] = []
    try:
        for name in names:
            try:
                with deadline(name):
                    chosen = _quickest_settings(name, kind, num_envs, how)
                    opened = open_vector(name, kind, num_envs, reads=reads, settings=chosen)
            except NotAvailableError as error:
                field_.problems[name] = f"not available: {error}"
            except Exception as error:  # noqa: BLE001 - whoever it is, the others go on
                field_.problems[name] = f"failed: {format_error(error)}"
            else:
                if chosen:
                    field_.settings[name] = chosen
                closing.append((name, opened.close))
                field_.contenders.append(Candidate(name, opened.step))
        yield field_
    finally:
        for name, close in closing:
            try:
                with deadline(name):
                    close()
            except Exception as error:  # noqa: BLE001 - its processes are ended below
                how.say(f"closing {name} failed: {format_error(error)}")
        ended = end_leftovers()
        if ended:
            how.say(f"{ended} processes that were left behind have been ended")


def _quickest_settings(name: str, kind: envs.Kind, num_envs: int, how: Settings) -> dict[str, Any]:
    tried = ENTRANTS[name].settings(num_envs)
    if len(tried) < 2:
        return tried[0] if tried else {}
    rates: list[tuple[float, dict[str, Any]]] = []
    problem: Exception | None = None
    for one in tried:
        try:
            opened = open_vector(name, kind, num_envs, reads=False, settings=one)
        except NotAvailableError:
            raise
        except Exception as error:  # noqa: BLE001 - a setting that it refuses is not its best
            problem = error
            continue
        try:
            measure(Candidate(name, opened.step), how.seconds / 10)
            rates.append((measure(Candidate(name, opened.step), how.seconds / 2), one))
        finally:
            opened.close()
    if not rates:
        raise problem or RuntimeError("none of its settings fits")
    return max(rates, key=lambda pair: pair[0])[1]


def _contest(field_: Field, how: Settings) -> Comparison:
    @contextlib.contextmanager
    def turn(name: str) -> Iterator[None]:
        # PufferLib's workers spin for half a second after their last step; whoever comes next
        # would have to share the cores with them.
        if PUFFER_WORKERS in field_.settings and len(field_.contenders) > 1:
            time.sleep(REST_S)
        with deadline(name):
            yield

    outcome = contest(field_.contenders, repeats=how.repeats, seconds=how.seconds, guard=turn)
    for name, why in outcome.failures.items():
        field_.problems[name] = f"failed: {why}"
    return outcome


def run_row(row: Row, how: Settings, *, reads: bool) -> dict[str, Any]:
    """Run one comparison."""
    with gathered(row.names, envs.KINDS[row.kind], row.num_envs, how, reads=reads) as field_:
        rates = _contest(field_, how).rates
    comparisons = []
    for target in row.targets:
        peer = best(rates, target.against)
        found = (
            ratio(rates[row.ours], rates[peer]) if peer is not None and row.ours in rates else None
        )
        comparisons.append(
            {
                "against": list(target.against),
                "best": peer,
                "ratio": _plain(found),
                "target": target.at_least,
                "reached": None
                if target.at_least is None or found is None
                else found.median >= target.at_least,
            }
        )
    return {
        "key": row.key,
        "title": row.title,
        "environment": envs.KINDS[row.kind].title,
        "num_envs": row.num_envs,
        "reads": reads,
        "ours": row.ours,
        "steps_per_s": {name: _plain(rates.get(name)) for name in row.names},
        "problems": field_.problems,
        "settings": field_.settings,
        "comparisons": comparisons,
    }


def _plain(rate: Rate | None) -> dict[str, Any] | None:
    return None if rate is None else rate.as_json()


def run_one(how: Settings, *, reads: bool) -> list[dict[str, Any]]:
    """Compare one environment through `make` with its author's code alone."""
    fields = {"by": 1}
    cases: list[tuple[str, str, Any, Callable[[Any], Any], Any]] = [
        ("one-tuple", "tuples", envs.OwnBuffer, lambda env: env.step, 1),
        ("one-dataclass", "dataclasses", envs.Dataclasses, lambda env: env.step, envs.Move()),
        (
            "one-dict",
            "dataclasses, the action given as a dict",
            envs.Dataclasses,
            lambda env: lambda action: env.step(envs.Move(**action)),
            fields,
        ),
    ]
    found = []
    for key, title, made, alone, action in cases:
        how.say(f"{key}{' with requests and infos read' if reads else ''}")
        bare = made()
        with ew.make(made, autoreset=True) as env:
            outcome = contest(
                [
                    Candidate(AUTHOR, _episodes(bare.reset, alone(bare), action)),
                    Candidate(MAKE, _episodes(env.reset, env.step, action, reads=reads)),
                ],
                repeats=how.repeats,
                seconds=how.seconds,
            )
        rates = outcome.rates
        added = overhead_us(rates[AUTHOR], rates[MAKE]) if len(rates) == 2 else None
        promised = not reads
        found.append(
            {
                "key": key,
                "title": title,
                "reads": reads,
                "steps_per_s": {name: _plain(rates.get(name)) for name in (AUTHOR, MAKE)},
                "problems": outcome.failures,
                "overhead_us": _plain(added),
                "target_us": OVERHEAD_US if promised else None,
                "reached": added.median <= OVERHEAD_US if promised and added else None,
            }
        )
    return found


def _episodes(
    reset: Callable[[], Any], step: Callable[[Any], Any], action: Any, *, reads: bool = False
) -> Callable[[], int]:
    """Return what plays an episode to its last step but one, again and again.

    Both sides are reset by hand, so that both do the same.
    """
    turns = range(envs.EPISODE_STEPS - 1)

    def play() -> int:
        reset()
        for _ in turns:
            step(action)
        return len(turns)

    def play_and_read() -> int:
        reset()
        for _ in turns:
            result = step(action)
            result.requests, result.info  # noqa: B018
        return len(turns)

    return play_and_read if reads else play


def run_growth(how: Settings, sizes: tuple[int, ...] = SIZES) -> list[dict[str, Any]]:
    """Measure everyone at each size."""
    found = []
    for num_envs in sizes:
        how.say(f"growth: {num_envs} environments")
        names = [name for name, most in GROWTH.items() if num_envs <= most]
        with gathered(names, envs.KINDS["own"], num_envs, how, reads=False) as field_:
            rates = _contest(field_, how).rates
        found += [
            {
                "contender": name,
                "num_envs": num_envs,
                "steps_per_s": _plain(rates.get(name)),
                "problem": field_.problems.get(name),
            }
            for name in names
        ]
    return found


def run_memory(how: Settings, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Weigh everyone, each in a process of its own."""
    found = []
    for name in names:
        how.say(f"memory: {name}")
        problem: str | None = None
        weight: float | None = None
        try:
            done = subprocess.run(
                [sys.executable, str(Path(__file__).with_name("weigh.py")), name],
                capture_output=True,
                text=True,
                timeout=LONGEST_TURN_S,
                check=False,
            )
            told = json.loads(done.stdout.splitlines()[-1])
            weight, problem = told["bytes_per_env"], told["problem"]
        except (subprocess.SubprocessError, ValueError, IndexError) as error:
            problem = f"failed: {format_error(error)}"
        found.append(
            {
                "contender": name,
                "num_envs": WEIGHED_SIZE,
                "bytes_per_env": weight,
                "problem": problem,
            }
        )
    return found
