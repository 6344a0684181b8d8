"""The progress of rollouts and training runs: a bar on a terminal with rich, else plain lines."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO, TypeAlias

from envweave.types import Episode

LINE_EVERY_S = 10.0


@dataclass(slots=True)
class RolloutProgress:
    """The running figures of a rollout.

    Attributes:
        began_s: When it began.
        finished: How many episodes have ended.
        faults: How many failed through no fault of the agent.
        restored: How many losses episodes were brought back from.
        scored: How many were scored.
        earned: The sum of their rewards; with several agents, of the mean over the agents.
        describe_workers: Returns what is known of the environments' workers, if there is anything.
    """

    began_s: float
    finished: int = 0
    faults: int = 0
    restored: int = 0
    scored: int = 0
    earned: float = 0.0
    describe_workers: Callable[[], str] | None = None

    def add(self, episode: Episode) -> None:
        """Count one more episode."""
        self.finished += 1
        reward = _mean(episode.reward) if episode.usable else None
        if reward is not None:
            self.scored += 1
            self.earned += reward

    def __str__(self) -> str:
        reward = f"{self.earned / self.scored:+.3f}" if self.scored else "-"
        passed_s = time.perf_counter() - self.began_s
        per_second = f"{self.finished / passed_s:.1f}" if passed_s > 0 else "-"
        workers = "" if self.describe_workers is None else f"  {self.describe_workers()}"
        restored = f"  restored {self.restored}" if self.restored else ""
        return f"reward {reward}  faults {self.faults}{restored}  {per_second}/s{workers}"


Show: TypeAlias = Callable[[int, object], None]
"""Takes the number of finished episodes and the figures to print after it, formatted by `str`."""


@contextmanager
def show_progress(
    label: str,
    total: int | None,
    stream: TextIO | None,
    *,
    lines: bool,
    every: int | None = None,
) -> Iterator[Show]:
    """Show the progress of many episodes on a stream.

    A terminal gets a live bar if rich is installed. Anything else gets plain lines, or nothing.

    Args:
        label: What is running, such as `"rollout"`.
        total: How many episodes there will be, if that is known.
        stream: Where to write.
        lines: Whether to print lines where there is no bar.
        every: How many episodes apart the lines are; by default `LINE_EVERY_S` seconds.
    """
    if stream is not None and stream.isatty() and importlib.util.find_spec("rich") is not None:
        with _bar(label, total, stream) as show:
            yield show
    else:
        yield _lines(total, stream, every) if lines and stream is not None else _show_nothing


def _show_nothing(finished: int, figures: object) -> None:
    pass


@contextmanager
def _bar(label: str, total: int | None, stream: TextIO) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("episodes  {task.fields[figures]}"),
        TimeElapsedColumn(),
        console=Console(file=stream),
    ) as progress:
        bar = progress.add_task(label, total=total, figures="")
        yield lambda finished, figures: progress.update(
            bar, completed=finished, figures=str(figures)
        )


def _lines(total: int | None, stream: TextIO, every: int | None) -> Show:
    of = "" if total is None else f"/{total}"
    due: float = every or 0

    def show(finished: int, figures: object) -> None:
        nonlocal due
        if every is not None:
            if finished < due:
                return
            due = finished - finished % every + every
        else:
            now_s = time.perf_counter()
            if now_s < due and finished != total:
                return
            due = now_s + LINE_EVERY_S
        stream.write(f"{finished:>6}{of} episodes  {figures}\n")
        stream.flush()

    return show


def _mean(reward: Any) -> float | None:
    if not isinstance(reward, dict):
        return None if reward is None else float(reward)
    earned = [one for one in reward.values() if one is not None]
    return sum(earned) / len(earned) if earned else None
