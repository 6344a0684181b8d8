"""Steps a second, measured in turns, so that a busy moment of the machine meets everyone."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from envweave.errors import EnvWeaveError, in_words


@dataclass(frozen=True, slots=True)
class Contender:
    """Something that takes steps.

    Attributes:
        name: What to call it.
        step: Takes steps, and returns how many.
        prepare: Called before each `step`; the clock stands meanwhile.
        check: Called after each repeat; raises if the steps were no good.
    """

    name: str
    step: Callable[[], int]
    prepare: Callable[[], None] | None = None
    check: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Rate:
    """Steps a second, one figure a repeat."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.samples)

    @property
    def low(self) -> float:
        """The slowest repeat."""
        return min(self.samples)

    @property
    def high(self) -> float:
        """The quickest repeat."""
        return max(self.samples)

    @property
    def step_us(self) -> float:
        """How long a step takes, in microseconds."""
        return 1e6 / self.median

    def as_json(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return {
            "median": self.median,
            "low": self.low,
            "high": self.high,
            "samples": list(self.samples),
        }


@dataclass(frozen=True, slots=True)
class Contest:
    """What came of contenders that were measured in turns.

    Attributes:
        rates: Steps a second, by name.
        failures: Why the others have none, by name.
    """

    rates: dict[str, Rate] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def measure(contender: Contender, seconds: float, *, steps: int | None = None) -> float:
    """Return steps a second, over `seconds` or over so many `steps`; at least one call."""
    clock, step, prepare = time.perf_counter, contender.step, contender.prepare
    taken, spent_s, wanted = 0, 0.0, steps or 0
    gc.collect()
    if prepare is None:
        began_s = clock()
        while (taken < wanted) if steps else (spent_s < seconds):
            taken += step()
            spent_s = clock() - began_s
    else:
        while (taken < wanted) if steps else (spent_s < seconds):
            prepare()
            began_s = clock()
            taken += step()
            spent_s += clock() - began_s
    if contender.check is not None:
        contender.check()
    return taken / max(spent_s, 1e-9)


def contest(
    contenders: Sequence[Contender],
    *,
    repeats: int,
    seconds: float,
    steps: int | None = None,
    on_sample: Callable[[str], None] = lambda _: None,
    guard: Callable[[str], AbstractContextManager[Any]] = nullcontext,
) -> Contest:
    """Measure everyone in turns: A B C, A B C, and so on.

    A turn begins with a few steps that are not counted, so that whatever slept is awake. One that
    raises is out, with the reason, and the others go on.

    Args:
        contenders: Who takes part.
        repeats: How many turns each has.
        seconds: How long a turn is.
        steps: How many steps a turn is, instead.
        on_sample: Called after each turn, with the name of whose it was.
        guard: Entered around each turn, with the name; may raise where one takes too long.
    """
    outcome = Contest()
    samples: dict[str, list[float]] = {one.name: [] for one in contenders}
    for _ in range(repeats):
        for one in contenders:
            if one.name in outcome.failures:
                continue
            try:
                with guard(one.name):
                    measure(one, seconds / 10, steps=steps and 1)
                    samples[one.name].append(measure(one, seconds, steps=steps))
            except EnvWeaveError as error:
                outcome.failures[one.name] = str(error)
            except Exception as error:  # noqa: BLE001 - whoever it is, the others go on
                outcome.failures[one.name] = in_words(error)
            on_sample(one.name)
    for name, found in samples.items():
        if name not in outcome.failures:
            outcome.rates[name] = Rate(tuple(found))
    return outcome


def ratio(ours: Rate, theirs: Rate) -> Rate:
    """Return how many times as fast `ours` is, turn by turn."""
    return Rate(tuple(a / b for a, b in zip(ours.samples, theirs.samples, strict=True)))


def overhead_us(inner: Rate, outer: Rate) -> Rate:
    """Return by how many microseconds a step of `outer` takes longer, turn by turn."""
    pairs = zip(inner.samples, outer.samples, strict=True)
    return Rate(tuple(1e6 / slow - 1e6 / quick for quick, slow in pairs))


def best(rates: Mapping[str, Rate], names: Sequence[str]) -> str | None:
    """Return who of `names` has the highest median; `None` if nobody has one."""
    found = [name for name in names if name in rates]
    return max(found, key=lambda name: rates[name].median, default=None)
