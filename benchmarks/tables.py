"""The figures as tables: rows of text, for the terminal and for a page."""

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
        columns: The heads; those that begin with `>` are of figures.
        rows: The cells.
        notes: What to say below it.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: list[str]

    @property
    def heads(self) -> list[str]:
        """The heads as they are shown."""
        return [column.removeprefix(">") for column in self.columns]


def tables_of(figures: dict[str, Any]) -> list[Table]:
    """Return every table there are figures for."""
    made = []
    for reads in (False, True):
        rows = [row for row in figures["rows"] if row["reads"] is reads]
        one = [row for row in figures["one"] if row["reads"] is reads]
        also = ", requests and infos read at every step" if reads else ""
        if one:
            made.append(_one_table(one, also))
        if rows:
            made.append(_ratio_table(rows, also))
            made.append(_rate_table(rows, also))
    if figures["growth"]:
        made.append(_growth_table(figures["growth"]))
    if figures["memory"]:
        made.append(_memory_table(figures["memory"]))
    return made


def _one_table(rows: list[dict[str, Any]], also: str) -> Table:
    cells = []
    for row in rows:
        added = row["overhead_us"]
        cells.append(
            (
                row["title"],
                *(_steps(row["steps_per_s"][name]) for name in row["steps_per_s"]),
                DASH if added is None else f"{added['median']:.2f} µs",
                DASH if added is None else f"{added['low']:.2f} to {added['high']:.2f}",
                DASH if row["target_us"] is None else f"{row['target_us']:g} µs at most",
                _verdict(row["reached"]),
            )
        )
    columns = ("environment", ">alone, steps/s", ">through make", ">added", ">spread")
    return Table(f"One environment{also}", (*columns, ">target", "reached"), cells, _problems(rows))


def _ratio_table(rows: list[dict[str, Any]], also: str) -> Table:
    cells = []
    for row in rows:
        for one in row["comparisons"]:
            found = one["ratio"]
            cells.append(
                (
                    row["title"],
                    str(row["num_envs"]),
                    one["best"] or " or ".join(one["against"]),
                    DASH if found is None else _times(found["median"]),
                    DASH if found is None else f"{_times(found['low'])} to {_times(found['high'])}",
                    DASH if one["target"] is None else _times(one["target"]),
                    _verdict(one["reached"]),
                )
            )
    columns = ("what", ">N", "against", ">ours is faster by", ">spread", ">target", "reached")
    return Table(f"envweave against its peers{also}", columns, cells, _problems(rows))


def _rate_table(rows: list[dict[str, Any]], also: str) -> Table:
    cells = []
    for row in rows:
        for name, rate in row["steps_per_s"].items():
            chosen = row["settings"].get(name)
            cells.append(
                (
                    row["title"],
                    str(row["num_envs"]),
                    name,
                    _steps(rate),
                    DASH if rate is None else f"{_number(rate['low'])} to {_number(rate['high'])}",
                    ", ".join(f"{key}={value}" for key, value in (chosen or {}).items()),
                )
            )
    columns = ("what", ">N", "who", ">steps/s", ">spread", "its best setting")
    return Table(f"Steps a second{also}", columns, cells, [])


def _growth_table(found: list[dict[str, Any]]) -> Table:
    sizes = sorted({one["num_envs"] for one in found})
    names = list(dict.fromkeys(one["contender"] for one in found))
    rates = {(one["contender"], one["num_envs"]): one["steps_per_s"] for one in found}
    cells = [(name, *(_steps(rates.get((name, size))) for size in sizes)) for name in names]
    columns = ("steps/s with N =", *(f">{size}" for size in sizes))
    notes = [f"{one['contender']}, N = {one['num_envs']}: {one['problem']}" for one in found]
    told = [note for note, one in zip(notes, found, strict=True) if one["problem"]]
    return Table("Growth with N, near-empty environment", columns, cells, told)


def _memory_table(found: list[dict[str, Any]]) -> Table:
    cells = [(one["contender"], _size(one["bytes_per_env"])) for one in found]
    notes = [f"{one['contender']}: {one['problem']}" for one in found if one["problem"]]
    title = f"Memory an environment, {found[0]['num_envs']} of them"
    return Table(title, ("who", ">memory each"), cells, notes)


def _problems(rows: list[dict[str, Any]]) -> list[str]:
    told = {f"{name}: {why}" for row in rows for name, why in row["problems"].items()}
    return sorted(told)


def _verdict(reached: bool | None) -> str:  # noqa: FBT001 - a figure, not an option
    return DASH if reached is None else ("reached" if reached else "not reached")


def _times(ratio: float) -> str:
    return f"{ratio:.3g}×" if ratio < 100 else f"{ratio:.0f}×"


def _steps(rate: dict[str, Any] | None) -> str:
    return DASH if rate is None else _number(rate["median"])


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _size(size: float | None) -> str:
    if size is None:
        return DASH
    return f"{size / 1000:.3g} kB" if size < 1e6 else f"{size / 1e6:.1f} MB"


def as_markdown(table: Table) -> str:
    """Return a table for a page."""
    bars = ["---:" if column.startswith(">") else "---" for column in table.columns]
    lines = [table.heads, bars, *table.rows]
    shown = ["| " + " | ".join(cells) + " |" for cells in lines]
    notes = [f"- {note}" for note in table.notes]
    return "\n".join([*shown, *(["", *notes] if notes else [])])


def as_text(table: Table) -> str:
    """Return a table for a terminal without rich."""
    lines: list[Sequence[str]] = [table.heads, *table.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.columns))]
    shown = []
    for line in lines:
        cells = [
            cell.rjust(width) if column.startswith(">") else cell.ljust(width)
            for cell, width, column in zip(line, widths, table.columns, strict=True)
        ]
        shown.append("  ".join(cells).rstrip())
    shown.insert(1, "-" * len(shown[0]))
    return "\n".join(["", table.title, *shown, *table.notes])


def show(table: Table) -> None:
    """Print a table, with colours where there is rich and a terminal."""
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
    made = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column, head in zip(table.columns, table.heads, strict=True):
        made.add_column(
            head, justify="right" if column.startswith(">") else "left", overflow="fold"
        )
    colours = {"reached": "green", "not reached": "red"}
    for row in table.rows:
        made.add_row(*row, style=colours.get(row[-1]))
    console.print()
    console.print(table.title, style="bold underline")
    console.print(made)
    for note in table.notes:
        console.print(note, style="yellow")
