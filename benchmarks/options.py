"""What the programs here share: their options, their progress, and where their figures go."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from company import NOTABLE, Company
from tables import Table, show


def common_parser(
    program: str, about: str | None, *, seconds: float, docs: str
) -> argparse.ArgumentParser:
    """Return a parser of the options that every program here has.

    Args:
        program: Its file, such as `vector.py`.
        about: Its docstring.
        seconds: How long a turn is by default.
        docs: What `--docs` does.
    """
    parser = argparse.ArgumentParser(
        prog=f"benchmarks/{program}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="shorter turns, and fewer")
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help="the comparisons whose name has it; may be given several times (see --list)",
    )
    parser.add_argument("--list", action="store_true", help="print the names, and stop")
    parser.add_argument("--repeats", type=positive, metavar="N", help="turns each; 5 by default")
    parser.add_argument(
        "--seconds",
        type=_duration,
        metavar="S",
        help=f"how long a turn is; {seconds:g} by default",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--docs", action="store_true", help=docs)
    return parser


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _duration(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return seconds


def refuse(options: argparse.Namespace, program: str, partial: Iterable[str]) -> None:
    """Stop where the options do not go together; with `partial` the run is not the whole one."""
    given = [name for name in partial if getattr(options, name)]
    if options.docs and given:
        *most, last = (f"--{name}" for name in partial)
        left_out = f"{', '.join(most)} and {last}"
        sys.exit(f"{program}: --docs takes the whole run; leave out {left_out}.")
    if options.json and not options.json.resolve().parent.is_dir():
        sys.exit(f"{program}: --json {options.json}: there is no such directory.")


def chosen(known: Iterable[str], only: list[str] | None, program: str) -> list[str]:
    """Return the names that have one of these parts in them, or all."""
    names = list(known)
    for part in only or []:
        if not any(part in name for name in names):
            sys.exit(f"{program}: no comparison has {part!r} in its name. --list prints them.")
    return [name for name in names if not only or any(part in name for part in only)]


def progress(total: int) -> Callable[[str], None]:
    """Return what tells of each comparison, with the time since now."""
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began_s:4.0f} s] {text}", file=sys.stderr, flush=True)

    say(f"{total} comparisons")
    return say


def open_enough_files() -> None:
    """Processes, pipes and sessions need more files than a shell allows by default."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def conclude(
    program: str,
    options: argparse.Namespace,
    figures: dict[str, Any],
    company: Company,
    tables_of: Callable[[dict[str, Any]], list[Table]],
    *,
    because: str = "",
) -> None:
    """Show the figures, and write them down where that was asked for.

    Args:
        program: Whose they are.
        options: What it was started with.
        figures: They also take down which share of the cores others had.
        company: Tells that share; who was measured must have ended.
        tables_of: Makes tables of them.
        because: What to bear in mind where that share is notable.
    """
    figures["machine"]["company"] = share = company.share()
    if share is not None and share > NOTABLE:
        print(
            f"{program}: other programs took {share:.0%} of the cores meanwhile.{because}",
            file=sys.stderr,
        )
    for table in tables_of(figures):
        show(table)
    if options.json:
        write_json(options.json, figures)


def write_json(path: Path, figures: dict[str, Any]) -> None:
    """Write the figures down, and say where."""
    path.write_text(json.dumps(figures, indent=1, allow_nan=False) + "\n")
    print(f"\nwritten: {os.path.relpath(path)}", file=sys.stderr)
