"""The figures of coding.py as tables."""

from __future__ import annotations

from typing import Any

import remote_tables
from tables import DASH, Table

TITLE = "envweave's coding environment against OpenEnv's"


def tables_of(figures: dict[str, Any]) -> list[Table]:
    """Return the ratios, what they are made of, and how a crowd fares."""
    made = remote_tables.tables_of(figures, TITLE) if figures["rows"] else []
    return [*made, *([_crowd_table(figures["crowd"])] if figures["crowd"] else [])]


def _crowd_table(crowd: dict[str, Any]) -> Table:
    cells = []
    for which in ("p50", "p99"):
        slower = crowd["slower"].get(which)
        for name, found in crowd["found"].items():
            is_last = slower is not None and name == list(crowd["found"])[-1]
            cells.append(
                (
                    which,
                    name,
                    _ms(found[which]["median"]),
                    f"{_ms(found[which]['low'])} to {_ms(found[which]['high'])}",
                    f"{slower['median']:.2f}×" if is_last else DASH,
                    f"{found['steps']['median']:,.0f}",
                )
            )
    columns = ("latency", "beside", ">a step of the others", ">spread", ">takes", ">steps a turn")
    title = f"A step among {crowd['sessions']} sessions, while one of them runs in circles"
    return Table(title, columns, cells, [f"{who}: {why}" for who, why in crowd["problems"].items()])


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
