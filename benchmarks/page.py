"""Write the figures of docs/assets/vector.json into the page about speed, and draw them.

    python benchmarks/page.py

`benchmarks/vector.py --docs` measures first, and then does the same.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from company import NOTABLE
from plot import draw
from tables import Table, as_markdown, tables_of

ROOT = Path(__file__).resolve().parents[1]
JSON = Path("docs/assets/vector.json")
PICTURE = Path("docs/assets/vector.png")
PAGE = Path("docs/explanation/speed.md")
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def filled(page: str, figures: dict[str, Any]) -> str:
    """Return the page with these figures between its marks."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise ValueError(f"{PAGE} needs the marks {BEGIN!r} and {END!r}, once.")
    return pattern.sub(lambda _: f"{BEGIN}\n\n{section(figures)}\n\n{END}", page)


def section(figures: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    parts = [setting(figures)]
    for table in tables_of(figures):
        parts.append(f"## {table.title}")
        if table.title.startswith("Growth"):
            parts.append(f"![Steps a second as N grows, and ratios](../assets/{PICTURE.name})")
        parts.append(as_markdown(_short(table)))
    return "\n\n".join(parts)


def setting(figures: dict[str, Any]) -> str:
    """Return what the figures were measured on, in words."""
    machine, how = figures["machine"], figures["settings"]
    versions = [f"{name} {version}" for name, version in machine["versions"].items()]
    for name, peer in figures["peers"].items():
        package = name.split()[0]
        if peer["version"] and not any(one.startswith(f"{package} ") for one in versions):
            versions.append(f"{package} {peer['version']}")
    share = machine["company"]
    company = (
        f" Other programs took {share:.0%} of the cores meanwhile, which tells most on what spins "
        "while it waits."
        if share is not None and share > NOTABLE
        else ""
    )
    return (
        f"Measured on {machine['cores']} cores of {machine['processor']} with Python "
        f"{machine['python']}; {', '.join(versions)}. Each figure is the median of "
        f"{how['repeats']} turns of {how['seconds']:g} s, taken in turns with the others; the "
        f"spread is from the slowest to the quickest.{company}"
    )


def _short(table: Table) -> Table:
    """Leave out the column of settings where nobody has any."""
    if table.columns[-1] != "its best setting" or any(row[-1] for row in table.rows):
        return table
    rows = [row[:-1] for row in table.rows]
    return Table(table.title, table.columns[:-1], rows, table.notes)


def write_page() -> None:
    """Draw the picture and fill the page, from the figures that are there."""
    figures = json.loads((ROOT / JSON).read_text())
    draw(figures, ROOT / PICTURE)
    page = ROOT / PAGE
    page.write_text(filled(page.read_text(), figures))
    print(f"written: {PICTURE}, {PAGE}", file=sys.stderr)


if __name__ == "__main__":
    write_page()
