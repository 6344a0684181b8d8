"""The progress of a rollout on a terminal: a bar with rich, plain lines without it."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO, TypeAlias

from envweave.types import Episode

LINE_EVERY_S = 10.0


@dataclass(slots=True)
class RolloutProgress:
    """How far a rollout is, and how well it does.

    Attributes:
        total: How many episodes there will be, if that is known.
        finished: How many are over.
        faults: How many failed, and not by the agent.
        scored: How many were scored.
        earned: What those earned together; with several agents, the mean over them.
        began_s: When it began.
    """

    total: int | None
    began_s: float
    finished: int = 0
    faults: int = 0
    scored: int = 0
    earned: float = 0.0

    def add(self, episode: Episode) -> None:
        """Count one more episode."""
        self.finished += 1
        reward = _mean(episode.reward) if episode.usable else None
        if reward is not None:
            self.scored += 1
            self.earned += reward

    @property
    def mean_reward(self) -> str:
        """The mean reward of the episodes so far, to be shown."""
        return f"{self.earned / self.scored:+.3f}" if self.scored else "-"

    @property
    def per_second(self) -> str:
        """How many episodes finish in a second, to be shown."""
        passed_s = time.perf_counter() - self.began_s
        return f"{self.finished / passed_s:.1f}" if passed_s > 0 else "-"


Show: TypeAlias = Callable[[RolloutProgress], None]


@contextmanager
def show_progress(total: int | None, *, wanted: bool | None) -> Iterator[Show]:
    """Show how far a rollout is, on the standard error stream.

    A terminal gets a live bar if rich is installed. If progress is wanted by name, anything
    else gets a line now and then.
    """
    stream = sys.stderr
    if wanted is False or stream is None:
        yield _nothing
    elif stream.isatty() and importlib.util.find_spec("rich") is not None:
        with _bar(total, stream) as show:
            yield show
    else:
        yield _lines(stream) if wanted else _nothing


def _nothing(figures: RolloutProgress) -> None:
    pass


@contextmanager
def _bar(total: int | None, stream: TextIO) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("rollout"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("episodes  reward [bold]{task.fields[reward]}[/]"),
        TextColumn("faults [bold]{task.fields[faults]}[/]"),
        TextColumn("{task.fields[per_second]}/s"),
        TimeElapsedColumn(),
        console=Console(file=stream),
    ) as progress:
        bar = progress.add_task("rollout", total=total, reward="-", faults=0, per_second="-")

        def show(figures: RolloutProgress) -> None:
            progress.update(
                bar,
                completed=figures.finished,
                reward=figures.mean_reward,
                faults=figures.faults,
                per_second=figures.per_second,
            )

        yield show


def _lines(stream: TextIO) -> Show:
    due_s = 0.0

    def show(figures: RolloutProgress) -> None:
        nonlocal due_s
        now_s = time.perf_counter()
        if now_s < due_s and figures.finished != figures.total:
            return
        due_s = now_s + LINE_EVERY_S
        of = "" if figures.total is None else f"/{figures.total}"
        stream.write(
            f"{figures.finished:>6}{of} episodes  reward {figures.mean_reward}  "
            f"faults {figures.faults}  {figures.per_second}/s\n"
        )
        stream.flush()

    return show


def _mean(reward: Any) -> float | None:
    if not isinstance(reward, dict):
        return None if reward is None else float(reward)
    earned = [one for one in reward.values() if one is not None]
    return sum(earned) / len(earned) if earned else None
