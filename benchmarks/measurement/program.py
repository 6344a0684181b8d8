"""The command line of a benchmark that compares libraries: options, progress, tables, files."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measurement.comparison import Settings
from benchmarks.measurement.machine import (
    NOTABLE_LOAD,
    OtherLoad,
    keep_cores_awake,
    raise_file_limit,
)
from benchmarks.measurement.pages import Results, write_json
from benchmarks.measurement.tables import show


@dataclass(frozen=True)
class ComparisonProgram:
    """A benchmark with comparisons that can be selected by name.

    Attributes:
        name: What `benchmarks/run` calls it.
        description: What `--help` shows.
        keys: The names of its comparisons.
        measure: Runs the selected comparisons and returns the results.
        results: How they are shown and where they are stored.
        seconds: How long one measurement takes.
        quick_seconds: The same with `--quick`.
        add_options: Adds options to those that all these benchmarks have.
        partial_options: Options that leave something out, so that `--docs` refuses them.
        separate_processes: Whether the libraries are measured in processes of their own.
    """

    name: str
    description: str
    keys: Sequence[str]
    measure: Callable[[list[str], Settings, argparse.Namespace], dict[str, Any]]
    results: Results
    seconds: float
    quick_seconds: float
    add_options: Callable[[argparse.ArgumentParser], None] = lambda _: None
    partial_options: tuple[str, ...] = ("only", "quick")
    separate_processes: bool = True

    def main(self, arguments: list[str]) -> int:
        """Run it; return the exit code."""
        parser = self._parser()
        options = parser.parse_args(arguments)
        if options.list:
            print("\n".join(self.keys))
            return 0
        self._check(parser, options)
        keys = select(parser, self.keys, options.only, "comparison")
        raise_file_limit()
        settings = Settings(
            options.repeats or (3 if options.quick else 5),
            options.seconds or (self.quick_seconds if options.quick else self.seconds),
            _progress(len(keys)),
        )
        other_load = OtherLoad()
        with contextlib.ExitStack() as stack:
            if self.separate_processes:
                # A benchmark that is ended by a signal still stops the processes it started.
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
                stack.enter_context(keep_cores_awake())
            results = self.measure(keys, settings, options)
        results["settings"] = {"repeats": settings.repeats, "seconds": settings.seconds}
        results["machine"]["other_load"] = share = other_load.share()
        if share is not None and share > NOTABLE_LOAD:
            print(f"{parser.prog}: other programs used {share:.0%} of the cores.", file=sys.stderr)
        for table in self.results.tables(results):
            show(table)
        if options.json:
            write_json(options.json, results)
        if options.docs:
            self.results.store(results)
            self.results.write_docs()
        return 0

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(
            prog=f"benchmarks/run {self.name}",
            description=self.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements")
        parser.add_argument(
            "--only",
            action="append",
            metavar="NAME",
            help="the comparisons with NAME in their name; can be repeated (see --list)",
        )
        parser.add_argument("--list", action="store_true", help="list the comparisons")
        parser.add_argument(
            "--repeats",
            type=positive,
            metavar="N",
            help="measurements of each library (default: 5)",
        )
        parser.add_argument(
            "--seconds",
            type=_duration,
            metavar="S",
            help=f"how long a measurement takes (default: {self.seconds:g})",
        )
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
        parser.add_argument(
            "--docs", action="store_true", help="store the results and write them into the docs"
        )
        self.add_options(parser)
        return parser

    def _check(self, parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
        partial = [name for name in self.partial_options if getattr(options, name)]
        if options.docs and partial:
            parser.error(f"--docs needs a complete run, without --{partial[0]}")
        if options.json and not options.json.resolve().parent.is_dir():
            parser.error(f"--json {options.json}: no such directory")


def select(
    parser: argparse.ArgumentParser, names: Iterable[str], parts: list[str] | None, what: str
) -> list[str]:
    """Return the names that contain one of these parts; all of them if there are no parts."""
    known = list(names)
    for part in parts or []:
        if not any(part in name for name in known):
            parser.error(f"no {what} has {part!r} in its name. Known: {', '.join(known)}")
    return [name for name in known if not parts or any(part in name for part in parts)]


def positive(text: str) -> int:
    """Parse a number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def _duration(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"must be more than 0, got {text}")
    return seconds


def _progress(total: int) -> Callable[[str], None]:
    """Return a function that prints a line with the time since now."""
    start_s = time.monotonic()

    def log(text: str) -> None:
        print(f"[{time.monotonic() - start_s:4.0f} s] {text}", file=sys.stderr, flush=True)

    log(f"{total} comparisons")
    return log
