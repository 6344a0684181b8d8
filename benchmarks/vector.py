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
import json
import os
import resource
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

try:
    import gymnasium  # noqa: F401 - the environments here are Gymnasium's
    from company import NOTABLE, Company
    from contenders import ENTRANTS, end_leftovers, why_missing
    from rows import ROWS, SIZES, WEIGHED
    from runs import Settings, run_growth, run_memory, run_one, run_row
    from tables import show, tables_of

    from envweave.bench.machine import describe_machine
except ImportError as error:
    sys.exit(f"vector.py: {error}. Run it through scripts/peers, which installs what it needs.")

ONE, GROWTH, MEMORY, READS = "one", "growth", "memory", "reads"


def read_options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/vector.py",
        description=__doc__,
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
    parser.add_argument("--repeats", type=_positive, metavar="N", help="turns each; 5 by default")
    parser.add_argument(
        "--seconds", type=_duration, metavar="S", help="how long a turn is; 0.5 by default"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument(
        "--docs", action="store_true", help="write docs/assets/vector.json, its plot and its page"
    )
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _duration(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return seconds


def names() -> list[str]:
    plain = [ONE, *(row.key for row in ROWS)]
    return [*plain, *(f"{name}-{READS}" for name in plain), GROWTH, MEMORY]


def chosen(only: list[str] | None) -> list[str]:
    known = names()
    for part in only or []:
        if not any(part in name for name in known):
            sys.exit(f"vector.py: no comparison has {part!r} in its name. --list prints them.")
    return [name for name in known if not only or any(part in name for part in only)]


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


def progress(total: int) -> Any:
    began_s, done = time.monotonic(), 0

    def say(text: str) -> None:
        nonlocal done
        done += 1
        print(f"[{time.monotonic() - began_s:4.0f} s] {text}", file=sys.stderr, flush=True)

    say(f"{total} comparisons")
    return say


def open_enough_files() -> None:
    """A process an environment needs more pipes than a shell allows by default."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main(arguments: list[str]) -> int:
    options = read_options(arguments)
    if options.list:
        print("\n".join(names()))
        return 0
    if options.docs and (options.only or options.quick):
        sys.exit("vector.py: --docs takes the whole run; leave out --only and --quick.")
    if options.json and not options.json.resolve().parent.is_dir():
        sys.exit(f"vector.py: --json {options.json}: there is no such directory.")
    wanted = chosen(options.only)
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
    figures["machine"]["company"] = share = company.share()
    if share is not None and share > NOTABLE:
        print(
            f"vector.py: other programs took {share:.0%} of the cores meanwhile. What spins while "
            "it waits, ours and theirs, looks slower than it is.",
            file=sys.stderr,
        )
    for table in tables_of(figures):
        show(table)
    if options.json:
        write_json(options.json, figures)
    if options.docs:
        from page import JSON, write_page

        write_json(ROOT / JSON, figures)
        write_page()
    return 0


def write_json(path: Path, figures: dict[str, Any]) -> None:
    path.write_text(json.dumps(figures, indent=1, allow_nan=False) + "\n")
    print(f"\nwritten: {os.path.relpath(path)}", file=sys.stderr)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        end_leftovers()
        sys.exit(130)
