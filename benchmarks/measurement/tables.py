"""Results as tables, for the terminal and for a page of the docs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

DASH = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """Text in rows and columns.

    Attributes:
        title: What it shows.
        columns: The headers; those that begin with `>` are right-aligned.
        rows: The cells.
        notes: Lines to show below it.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: Sequence[str] = ()

    @property
    def headers(self) -> list[str]:
        """The headers as they are shown."""
        return [column.removeprefix(">") for column in self.columns]

    def without_empty_columns(self) -> Table:
        """Return the table without the columns in which no row has text."""
        used = [i for i in range(len(self.columns)) if any(row[i] for row in self.rows)]
        rows = [tuple(row[i] for i in used) for row in self.rows]
        return Table(self.title, tuple(self.columns[i] for i in used), rows, self.notes)


def comparison_tables(results: dict[str, Any], title: str) -> list[Table]:
    """Return the ratios of a benchmark, and the values they are made of."""
    return [_ratio_table(results["rows"], title), _value_table(results["rows"])]


def _ratio_table(rows: list[dict[str, Any]], title: str) -> Table:
    cells = [
        (*_what(row), one["against"], *format_ratio(one["ratio"]))
        for row in rows
        for one in row["comparisons"]
    ]
    columns = ("comparison", ">sessions", "against", ">ratio (higher = envweave better)", ">range")
    return Table(title, columns, cells, problem_notes(rows))


def _value_table(rows: list[dict[str, Any]]) -> Table:
    cells = []
    for row in rows:
        for name, measured in row["measured"].items():
            median, low, high = (
                _format_value(measured[key], row["unit"]) for key in ("median", "low", "high")
            )
            settings = format_settings(row["settings"].get(name))
            cells.append((*_what(row), name, median, f"{low} to {high}", settings))
    columns = ("comparison", ">sessions", "library", ">median", ">range", "settings")
    return Table("Measured values", columns, cells)


def _what(row: dict[str, Any]) -> tuple[str, str]:
    return row["title"], DASH if row["sessions"] is None else str(row["sessions"])


def problem_notes(rows: list[dict[str, Any]]) -> list[str]:
    """Return why libraries were not measured, one note for each reason."""
    return sorted({f"{name}: {why}" for row in rows for name, why in row["problems"].items()})


def format_ratio(ratio: dict[str, Any] | None) -> tuple[str, str]:
    """Return the median and the range of a ratio."""
    if ratio is None:
        return DASH, DASH
    median, low, high = (_times(ratio[key]) for key in ("median", "low", "high"))
    return median, f"{low} to {high}"


def _times(ratio: float) -> str:
    return f"{ratio:.3g}×" if ratio < 100 else f"{ratio:.0f}×"


def format_settings(settings: dict[str, Any] | None) -> str:
    """Return settings as text."""
    return ", ".join(f"{key}={value}" for key, value in (settings or {}).items())


def _format_value(value: float, unit: str) -> str:
    if unit == "steps/s":
        return f"{value:,.0f} steps/s"
    return format_duration(value) if unit == "s" else format_bytes(value)


def format_duration(seconds: float) -> str:
    """Return a duration with a unit that suits it."""
    if seconds >= 0.1:
        return f"{seconds * 1000:,.0f} ms"
    return f"{seconds * 1000:.3g} ms" if seconds >= 0.001 else f"{seconds * 1e6:.3g} µs"


def format_bytes(size: float) -> str:
    """Return a size with a unit that suits it."""
    return f"{size / 1000:,.1f} kB" if size < 1e6 else f"{size / 1e6:,.1f} MB"


def as_markdown(table: Table) -> str:
    """Return a table for a page."""
    table = table.without_empty_columns()
    bars = ["---:" if column.startswith(">") else "---" for column in table.columns]
    lines = ["| " + " | ".join(cells) + " |" for cells in (table.headers, bars, *table.rows)]
    notes = [f"- {note}" for note in table.notes]
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def as_text(table: Table) -> str:
    """Return a table for a terminal without rich."""
    rows: list[Sequence[str]] = [table.headers, *table.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column.startswith(">") else cell.ljust(width)
            for cell, width, column in zip(row, widths, table.columns, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(["", table.title, *lines, *table.notes])


def show(table: Table) -> None:
    """Print a table, with rich where it is installed."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table as RichTable
    except ImportError:
        print(as_text(table))
        return
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=180)
    rich_table = RichTable(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold"
    )
    for column, header in zip(table.columns, table.headers, strict=True):
        rich_table.add_column(
            header, justify="right" if column.startswith(">") else "left", overflow="fold"
        )
    for row in table.rows:
        rich_table.add_row(*row)
    console.print()
    console.print(table.title, style="bold underline")
    console.print(rich_table)
    for note in table.notes:
        console.print(note, style="yellow")
