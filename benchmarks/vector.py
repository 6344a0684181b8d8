"""envweave's vectors against those of its peers, in one run.

    scripts/peers benchmarks/vector.py                   everything; about a quarter of an hour
    scripts/peers benchmarks/vector.py --quick           the same, roughly; a few minutes
    scripts/peers benchmarks/vector.py --only serial     the comparisons whose name has it
    scripts/peers benchmarks/vector.py --docs            and write the figures into the docs

scripts/peers sets up the peers once, apart from everything else. Without it, those that are not
installed are named, and left out.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

try:
    import gymnasium  # noqa: F401 - the environments here are Gymnasium's
    from company import Company
    from comparing import Settings
    from contenders import ENTRANTS, end_leftovers, why_missing
    from options import (
        chosen,
        common_parser,
        conclude,
        open_enough_files,
        progress,
        refuse,
        write_json,
    )
    from rows import ROWS, SIZES, WEIGHED
    from runs import run_growth, run_memory, run_one, run_row
    from tables import tables_of

    from envweave.bench.memory import describe_machine
except ImportError as error:
    sys.exit(f"vector.py: {error}. Run it through scripts/peers, which installs what it needs.")

SPINNING = " What spins while it waits, ours and theirs, looks slower than it is."
ONE, GROWTH, MEMORY, READS = "one", "growth", "memory", "reads"


def read_options(arguments: list[str]) -> argparse.Namespace:
    docs = "write docs/assets/vector.json, its plot and its page"
    return common_parser("vector.py", __doc__, seconds=0.5, docs=docs).parse_args(arguments)


def names() -> list[str]:
    plain = [ONE, *(row.key for row in ROWS)]
    return [*plain, *(f"{name}-{READS}" for name in plain), GROWTH, MEMORY]


def run(wanted: list[str], how: Settings, *, quick: bool) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "machine": describe_machine(),
        "settings": {"repeats": how.repeats, "seconds": how.seconds},
        "peers": peers(),
        "one": [],
        "rows": [],
        "growth": [],
        "memory": [],
    }
    for reads in (False, True):
        ending = f"-{READS}" if reads else ""
        if f"{ONE}{ending}" in wanted:
            figures["one"] += run_one(how, reads=reads)
        for row in ROWS:
            if f"{row.key}{ending}" in wanted:
                how.say(f"{row.key}{ending}: {', '.join(row.names)}")
                figures["rows"].append(run_row(row, how, reads=reads))
    if GROWTH in wanted:
        figures["growth"] = run_growth(how, SIZES[:3] if quick else SIZES)
    if MEMORY in wanted:
        figures["memory"] = run_memory(how, WEIGHED)
    return figures


def peers() -> dict[str, Any]:
    """Who may take part, in which version, and why not."""
    found: dict[str, Any] = {}
    for name, entrant in ENTRANTS.items():
        if entrant.package is not None:
            problem = why_missing(name)
            version = None if problem else _version(entrant.package)
            found[name] = {"version": version, "problem": problem}
    return found


def _version(package: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    # Of some only a few modules are installed, without what tells their version.
    for word in (ROOT / "benchmarks/peers.txt").read_text().split():
        if word.startswith(f"{package}=="):
            return word.partition("==")[2]
    return None


def main(arguments: list[str]) -> int:
    options = read_options(arguments)
    if options.list:
        print("\n".join(names()))
        return 0
    refuse(options, "vector.py", ("only", "quick"))
    wanted = chosen(names(), options.only, "vector.py")
    open_enough_files()
    how = Settings(
        options.repeats or (3 if options.quick else 5),
        options.seconds or (0.1 if options.quick else 0.5),
        progress(len(wanted)),
    )
    company = Company()
    try:
        figures = run(wanted, how, quick=options.quick)
    finally:
        end_leftovers()
    conclude("vector.py", options, figures, company, tables_of, because=SPINNING)
    if options.docs:
        from page import JSON, write_page

        write_json(ROOT / JSON, figures)
        write_page()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        end_leftovers()
        sys.exit(130)
