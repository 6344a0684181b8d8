"""The progress of a training run on a terminal: a bar with rich, plain lines without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO, TypeAlias

Show: TypeAlias = Callable[[int, float, float], None]
"""Takes the episodes finished, and their recent mean return and share of success."""


@contextmanager
def show_progress(total: int, stream: TextIO) -> Iterator[Show]:
    """Show how far a run of `total` episodes is, and how well it does.

    A terminal gets a live bar if rich is installed. Anything else gets a line now and then.
    """
    try:
        import rich  # noqa: F401 - only asked for
    except ImportError:
        has_rich = False
    else:
        has_rich = True
    if has_rich and stream.isatty():
        with _bar(total, stream) as show:
            yield show
    else:
        yield _lines(total, stream)


@contextmanager
def _bar(total: int, stream: TextIO) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("episodes  return [bold]{task.fields[earned]}[/]"),
        TextColumn("success [bold]{task.fields[success]}[/]"),
        TimeElapsedColumn(),
        console=Console(file=stream),
    ) as progress:
        bar = progress.add_task("training", total=total, earned="  -  ", success="  - ")

        def show(finished: int, mean_return: float, success: float) -> None:
            progress.update(
                bar, completed=finished, earned=f"{mean_return:+.2f}", success=f"{success:4.0%}"
            )

        yield show


def _lines(total: int, stream: TextIO) -> Show:
    every = max(1, total // 10)
    due = every

    def show(finished: int, mean_return: float, success: float) -> None:
        nonlocal due
        if finished >= due:
            due = finished - finished % every + every
            stream.write(
                f"{finished:>6}/{total} episodes  return {mean_return:+.2f}  "
                f"success {success:4.0%}\n"
            )
            stream.flush()

    return show
