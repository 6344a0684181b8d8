"""Results as files: the JSON in docs/assets, the tables in a page of the docs, and the charts."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measurement.machine import NOTABLE_LOAD
from benchmarks.measurement.plots import THEMES, BarChart, LineChart, draw
from benchmarks.measurement.tables import Table, as_markdown

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "docs/assets"


MakeChart = Callable[[dict[str, Any]], BarChart | LineChart]


@dataclass(frozen=True)
class Results:
    """The results of a benchmark, and where the docs show them.

    The JSON is in docs/assets/NAME.json, the charts in docs/assets/benchmark-NAME-THEME.svg (and
    benchmark-NAME-WHICH-THEME.svg), and the tables between two comments of the page.

    Attributes:
        name: The name of the benchmark.
        tables: Makes tables of the results.
        chart: Makes a chart of them.
        more_charts: Make further charts, by name.
        heading: The Markdown heading of a table.
        page: The page, from the root of the project.
        conditions: Says on what the results were measured; by default, for comparisons with other
            libraries.
    """

    name: str
    tables: Callable[[dict[str, Any]], list[Table]]
    chart: MakeChart | None = None
    more_charts: Mapping[str, MakeChart] = field(default_factory=dict)
    heading: str = "###"
    page: str = "benchmarks/RESULTS.md"
    conditions: Callable[[dict[str, Any]], str] | None = None

    def load(self) -> dict[str, Any]:
        """Return the stored results."""
        results: dict[str, Any] = json.loads((ASSETS / f"{self.name}.json").read_text())
        return results

    def store(self, results: dict[str, Any]) -> None:
        """Store results in docs/assets."""
        write_json(ASSETS / f"{self.name}.json", results)

    def files(self) -> dict[Path, str]:
        """Return the docs' files with the stored results in them, by path."""
        results, page = self.load(), ROOT / self.page
        found = {page: self._fill(page.read_text(), results)}
        for name, make_chart in self._charts().items():
            chart = make_chart(results)
            found |= {_picture(name, theme): draw(chart, theme) for theme in THEMES}
        return found

    def _charts(self) -> dict[str, MakeChart]:
        """Return what makes each chart, by the name of its file."""
        first = {} if self.chart is None else {self.name: self.chart}
        return {**first, **{f"{self.name}-{it}": make for it, make in self.more_charts.items()}}

    def write_docs(self) -> None:
        """Write the stored results into the docs."""
        for path, text in self.files().items():
            path.write_text(text)
            print(f"written: {path.relative_to(ROOT)}", file=sys.stderr)

    def _fill(self, page: str, results: dict[str, Any]) -> str:
        begin, end = (f"<!-- {self.name} results: {which} -->" for which in ("begin", "end"))
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if len(pattern.findall(page)) != 1:
            raise ValueError(f"{self.page} must contain {begin!r} and {end!r} once.")
        section = "\n\n".join(self._section(results))
        return pattern.sub(lambda _: f"{begin}\n\n{section}\n\n{end}", page)

    def _section(self, results: dict[str, Any]) -> list[str]:
        parts = []
        for name, make_chart in self._charts().items():
            title = make_chart(results).title
            folder = (ROOT / self.page).parent
            light, dark = (os.path.relpath(_picture(name, it), folder) for it in ("light", "dark"))
            if self.page.startswith("docs/"):
                pictures = ("light", light), ("dark", dark)
                parts.append("\n".join(f"![{title}]({it}#only-{on})" for on, it in pictures))
                continue
            parts.append(
                f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
                f'<img src="{light}" alt="{title}"></picture>'
            )
        parts.append((self.conditions or _conditions)(results))
        for table in self.tables(results):
            parts += [f"{self.heading} {table.title}", as_markdown(table)]
        return parts


def _picture(name: str, theme: str) -> Path:
    return ASSETS / f"benchmark-{name}-{theme}.svg"


def write_json(path: Path, results: dict[str, Any]) -> None:
    """Write results to a file, and print where."""
    path.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")
    print(f"\nwritten: {os.path.relpath(path)}", file=sys.stderr)


def _conditions(results: dict[str, Any]) -> str:
    """Return on what and how the results were measured, as a paragraph."""
    machine, settings = results["machine"], results["settings"]
    versions = [f"{name} {version}" for name, version in machine["versions"].items()]
    for name, peer in results["peers"].items():
        package = name.split()[0]
        if peer["version"] and not any(one.startswith(f"{package} ") for one in versions):
            versions.append(f"{package} {peer['version']}")
    share = machine["other_load"]
    load = (
        f" Other programs used {share:.0%} of the cores, which affects libraries that spin while "
        "they wait most."
        if share is not None and share > NOTABLE_LOAD
        else ""
    )
    return (
        f"Measured on {machine['cores']} cores of {machine['processor']} with Python "
        f"{machine['python']}; {', '.join(versions)}. Each value is the median of "
        f"{settings['repeats']} measurements of {settings['seconds']:g} s, interleaved with those "
        f"of the other libraries; the range is from the lowest to the highest.{load}"
    )
