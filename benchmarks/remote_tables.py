"""The figures of remote.py as tables."""

from __future__ import annotations

from typing import Any

from tables import DASH, Table

TITLE = "envweave over the network against OpenEnv"


def tables_of(figures: dict[str, Any], title: str = TITLE) -> list[Table]:
    """Return the ratios, and what they are made of."""
    return [_ratio_table(figures["rows"], title), _found_table(figures["rows"])]


def _ratio_table(rows: list[dict[str, Any]], title: str) -> Table:
    cells = []
    for row in rows:
        for one in row["comparisons"]:
            ratio = one["ratio"]
            cells.append(
                (
                    *_what(row),
                    one["against"],
                    DASH if ratio is None else _times(ratio["median"]),
                    DASH if ratio is None else f"{_times(ratio['low'])} to {_times(ratio['high'])}",
                    DASH if one["target"] is None else _times(one["target"]),
                    DASH if one["reached"] is None else _verdict(one["reached"]),
                )
            )
    columns = ("what", ">sessions", "against", ">ours is better by", ">spread")
    return Table(
        title,
        (*columns, ">target", "reached"),
        cells,
        sorted({f"{name}: {why}" for row in rows for name, why in row["problems"].items()}),
    )


def _found_table(rows: list[dict[str, Any]]) -> Table:
    cells = []
    for row in rows:
        for name, found in row["found"].items():
            shown = [_amount(found[key], row["unit"]) for key in ("median", "low", "high")]
            chosen = row["settings"].get(name, {})
            cells.append(
                (
                    *_what(row),
                    name,
                    shown[0],
                    f"{shown[1]} to {shown[2]}",
                    ", ".join(f"{key}={value}" for key, value in chosen.items()),
                )
            )
    columns = ("what", ">sessions", "who", ">figure", ">spread", "its setting")
    return Table("What was measured", columns, cells, [])


def _what(row: dict[str, Any]) -> tuple[str, str]:
    return row["title"], DASH if row["sessions"] is None else str(row["sessions"])


def _verdict(reached: bool) -> str:  # noqa: FBT001 - a figure, not an option
    return "reached" if reached else "not reached"


def _times(ratio: float) -> str:
    return f"{ratio:.3g}×" if ratio < 100 else f"{ratio:.0f}×"


def _amount(value: float, unit: str) -> str:
    if unit == "steps/s":
        return f"{value:,.0f} steps/s"
    if unit == "s":
        return _duration(value)
    return f"{value / 1000:,.1f} kB" if value < 1e6 else f"{value / 1e6:,.1f} MB"


def _duration(seconds: float) -> str:
    if seconds >= 0.1:
        return f"{seconds * 1000:,.0f} ms"
    return f"{seconds * 1000:.3g} ms" if seconds >= 0.001 else f"{seconds * 1e6:.3g} µs"
