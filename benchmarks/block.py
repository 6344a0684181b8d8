"""A block of the page about speed that is written from figures in docs/assets."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page import PAGE, ROOT, setting
from tables import Table, as_markdown


@dataclass(frozen=True, slots=True)
class Block:
    """Where figures stand: in a file, and between two marks of the page.

    Attributes:
        name: What the marks and the file are called by.
        tables_of: Makes tables of the figures.
    """

    name: str
    tables_of: Callable[[dict[str, Any]], list[Table]]

    @property
    def json(self) -> Path:
        """The file, from the root of the project."""
        return Path(f"docs/assets/{self.name}.json")

    def filled(self, page: str, figures: dict[str, Any] | None) -> str:
        """Return the page with these figures between its marks, or with none."""
        begin, end = (f"<!-- {self.name} figures: {one} -->" for one in ("begin", "end"))
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if len(pattern.findall(page)) != 1:
            raise ValueError(f"{PAGE} needs the marks {begin!r} and {end!r}, once.")
        shown = f"\n{self._section(figures)}\n\n" if figures else ""
        return pattern.sub(lambda _: f"{begin}\n{shown}{end}", page)

    def _section(self, figures: dict[str, Any]) -> str:
        parts = [setting(figures)]
        for table in self.tables_of(figures):
            parts += [f"### {table.title}", as_markdown(table)]
        return "\n\n".join(parts)

    def read_figures(self) -> dict[str, Any] | None:
        """Return the figures that are written down; `None` before the first."""
        path = ROOT / self.json
        return json.loads(path.read_text()) if path.exists() else None

    def write_page(self) -> None:
        """Fill the page from the figures that are there."""
        page = ROOT / PAGE
        page.write_text(self.filled(page.read_text(), self.read_figures()))
        print(f"written: {PAGE}", file=sys.stderr)
