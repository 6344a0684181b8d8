"""envweave's sandbox against what else runs Python code of others, in one run.

    python benchmarks/sandbox.py                     everything; about twenty minutes
    python benchmarks/sandbox.py --quick             the same, roughly; some minutes
    python benchmarks/sandbox.py --only hot          the comparisons whose name has it
    python benchmarks/sandbox.py --who envweave      who has it in its name, alone or with others
    python benchmarks/sandbox.py --docs              and write the figures into the docs

Each contender has a process of its own, and those from other projects a virtual environment apart,
which `scripts/peers --pins benchmarks/sandbox-peers.txt` sets up once. Who is not there is named
with the reason. Meanwhile no core falls asleep (`awake.py`).
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

try:
    from awake import awake
    from company import Company
    from comparing import Settings
    from options import (
        chosen,
        common_parser,
        conclude,
        open_enough_files,
        positive,
        progress,
        refuse,
        write_json,
    )
    from ordered import NotAvailableError
    from sandbox_page import tables_of
    from sandbox_rows import ENTRANTS, KEYS
    from sandbox_runs import peers_python, run

    from envweave.bench.memory import describe_machine
except ImportError as error:
    sys.exit(f"sandbox.py: {error}. Install envweave: pip install -e .")

VERSIONS = """
import importlib.metadata, json, sys
print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))
"""


def read_options(arguments: list[str]) -> argparse.Namespace:
    docs = "write docs/assets/sandbox.json and its page"
    parser = common_parser("sandbox.py", __doc__, seconds=0.5, docs=docs)
    parser.add_argument(
        "--who",
        action="append",
        metavar="NAME",
        help="the contenders whose name has it; may be given several times",
    )
    parser.add_argument(
        "--sessions", type=positive, metavar="N", help="how many live at once; 1000 by default"
    )
    return parser.parse_args(arguments)


def taking_part(who: list[str] | None) -> tuple[str, ...]:
    names = tuple(ENTRANTS)
    for part in who or []:
        if not any(part in name for name in names):
            sys.exit(f"sandbox.py: no contender has {part!r} in its name: {', '.join(names)}.")
    return tuple(name for name in names if not who or any(part in name for part in who))


def versions(names: tuple[str, ...]) -> dict[str, Any]:
    """Tell which versions take part, as far as they can be told."""
    wanted = sorted({package for name in names if (package := ENTRANTS[name].package)})
    found: dict[str, Any] = {}
    if wanted:
        try:
            command = [peers_python(), "-c", VERSIONS, *wanted]
            found |= json.loads(subprocess.check_output(command, text=True))
        except (NotAvailableError, subprocess.SubprocessError):
            found |= dict.fromkeys(wanted)
    for program in ("bwrap", "docker"):
        if shutil.which(program):
            told = subprocess.check_output([program, "--version"], text=True)
            found[program] = told.replace(",", "").split()[1 if program == "bwrap" else 2]
    return {name: {"version": version} for name, version in found.items()}


def main(arguments: list[str]) -> int:
    options = read_options(arguments)
    if options.list:
        print("\n".join(KEYS))
        return 0
    refuse(options, "sandbox.py", ("only", "quick", "who", "sessions"))
    keys, names = chosen(KEYS, options.only, "sandbox.py"), taking_part(options.who)
    open_enough_files()
    how = Settings(
        options.repeats or (3 if options.quick else 5),
        options.seconds or (0.1 if options.quick else 0.5),
        progress(len(keys)),
        names,
    )
    # Ended by a signal, it still ends the processes it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    figures: dict[str, Any] = {
        "machine": describe_machine(("msgspec",)),
        "settings": {"repeats": how.repeats, "seconds": how.seconds},
        "peers": versions(names),
    }
    company = Company()
    with awake():
        figures["rows"] = run(keys, how, options.sessions or (100 if options.quick else 1000))
    conclude("sandbox.py", options, figures, company, tables_of)
    if options.docs:
        from sandbox_page import BLOCK

        write_json(ROOT / BLOCK.json, figures)
        BLOCK.write_page()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
