"""Output of the commands: tables for people, one JSON document for programs."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints plain text: brackets and colons are not markup.

    Colors appear only on a terminal, and never with NO_COLOR.
    """
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def table(*columns: str, numeric: Iterable[str] = ()) -> Table:
    """Return an empty table that folds long cells rather than truncating them."""
    from rich import box
    from rich.table import Table

    made = Table(
        box=box.SIMPLE_HEAD,
        header_style="bold",
        show_edge=False,
        pad_edge=False,
    )
    right = set(numeric)
    for column in columns:
        made.add_column(
            column, overflow="fold", justify="right" if column in right else "left", no_wrap=False
        )
    return made


def print_table(title: str, shown: Table, *, empty: str = "none") -> None:
    """Print a table under its title, after an empty line."""
    where = console()
    where.print()
    where.print(title, style="bold underline", soft_wrap=True)
    where.print(shown if shown.row_count else f"  {empty}")


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and values, without headers."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, value)
    return made


@contextlib.contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show a progress bar on stderr, if that is a terminal, until the work is done.

    Yields a function to call after each of `total` parts, with a note about it.
    """
    from rich import progress as bars

    where = console(stderr=True)
    if not where.is_terminal:
        yield lambda _: None
        return
    with bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TextColumn("{task.fields[note]}", markup=False),
        console=where,
        transient=True,
    ) as bar:
        task = bar.add_task(description, total=total, note="")
        yield lambda note: bar.update(task, advance=1, note=note)


@contextlib.contextmanager
def spinner(description: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done on stderr, if that is a terminal.

    Yields a function to call with a note about each part.
    """
    where = console(stderr=True)
    if not where.is_terminal:
        yield lambda _: None
        return
    with where.status(description) as status:
        yield lambda note: status.update(f"{description}: {note}")


def write_json(document: Any) -> None:
    """Write one JSON document to stdout."""
    text = json.dumps(jsonable(document), indent=2, allow_nan=False)
    sys.stdout.write(text + "\n")


def jsonable(value: Any) -> Any:
    """Return `value` as plain JSON data. Infinity and NaN become null."""
    from envweave.codec import to_plain

    return _finite(to_plain(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


@contextlib.contextmanager
def stdout_reserved(reserved: bool) -> Iterator[None]:
    """With `reserved`, redirect prints of environments to stderr: stdout has one document."""
    with contextlib.redirect_stdout(sys.stderr) if reserved else contextlib.nullcontext():
        yield


def error_line(message: str) -> None:
    """Write "Error: …" to stderr, in red on a terminal, on one line."""
    from rich.text import Text

    line = Text("Error: ", style="bold red").append(_join_lines(message), style="red")
    console(stderr=True).print(line, soft_wrap=True)


def reflow(text: str) -> str:
    """Join the lines of each paragraph of a docstring; other blocks stay unchanged."""
    blocks = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        block
        if re.search(r"^(\s|```|[-*|+>#]|\d+\. )", block, re.MULTILINE)
        else _join_lines(block)
        for block in blocks
    )


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def number(value: float | None) -> str:
    """Return a number in four digits; a dash if there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.4g}"
