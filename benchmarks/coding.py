"""envweave's coding environment against OpenEnv's, and beside a session that never ends.

    python benchmarks/coding.py                 everything; some minutes
    python benchmarks/coding.py --quick         the same, roughly
    python benchmarks/coding.py --only crowd    the comparisons whose name has it
    python benchmarks/coding.py --docs          and write the figures into the docs

Each side has a server process and a client process of its own. OpenEnv's run in a virtual
environment apart, which `scripts/openenv-venv --coding` sets up once. Its executor is the one of
its coding environment, the interpreter of smolagents in the server's process; ours is a process
behind walls. A piece of code is run again and again in one session.

`crowd` has 64 sessions on one server of ours. Each runs a little code and pauses for 50 ms, but for
one that runs `while True: pass` until its time is over, again and again. How long the steps of the
others take is compared with when nobody runs in circles.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

try:
    from awake import awake
    from coding_runs import CROWD, ROWS, run_crowd, run_piece
    from coding_sides import OURS, THEIRS, openenv_python
    from coding_tables import tables_of
    from company import Company
    from comparing import Settings
    from options import (
        chosen,
        common_parser,
        conclude,
        open_enough_files,
        progress,
        refuse,
        write_json,
    )
    from ordered import NotAvailableError

    from envweave.bench.memory import describe_machine
except ImportError as error:
    sys.exit(
        f"coding.py: {error}. Install envweave with its server: pip install -e '.[cli,server]'"
    )


def read_options(arguments: list[str]) -> argparse.Namespace:
    docs = "write docs/assets/coding.json and its page"
    parser = common_parser("coding.py", __doc__, seconds=2.0, docs=docs)
    parser.add_argument(
        "--side", choices=(OURS, THEIRS), help="measure one side alone, without ratios"
    )
    return parser.parse_args(arguments)


def run(wanted: list[str], how: Settings) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "machine": describe_machine(("fastapi", "uvicorn", "uvloop", "websockets")),
        "settings": {"repeats": how.repeats, "seconds": how.seconds},
        "peers": {THEIRS: peer()} if THEIRS in how.sides else {},
        "rows": [],
        "crowd": None,
    }
    for row in ROWS:
        if row.key not in wanted:
            continue
        how.say(row.key)
        if row is not CROWD:
            figures["rows"].append(run_piece(row, how))
        elif OURS in how.sides:
            figures["crowd"] = run_crowd(how)
    return figures


def peer() -> dict[str, Any]:
    """Tell which version takes part, or why none does."""
    code = (
        "from importlib.metadata import version; "
        "print(version('openenv'), 'with smolagents', version('smolagents'))"
    )
    try:
        told = subprocess.check_output([openenv_python(), "-c", code], text=True)
    except (NotAvailableError, subprocess.SubprocessError) as error:
        return {"version": None, "problem": str(error)}
    return {"version": told.strip(), "problem": None}


def main(arguments: list[str]) -> int:
    options = read_options(arguments)
    if options.list:
        print("\n".join(row.key for row in ROWS))
        return 0
    refuse(options, "coding.py", ("only", "quick", "side"))
    wanted = chosen((row.key for row in ROWS), options.only, "coding.py")
    open_enough_files()
    how = Settings(
        options.repeats or (3 if options.quick else 5),
        options.seconds or (0.5 if options.quick else 2.0),
        progress(len(wanted)),
        (options.side,) if options.side else (OURS, THEIRS),
    )
    # Ended by a signal, it still ends the servers it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    company = Company()
    with awake():
        figures = run(wanted, how)
    conclude("coding.py", options, figures, company, tables_of)
    if options.docs:
        from coding_page import BLOCK

        write_json(ROOT / BLOCK.json, figures)
        BLOCK.write_page()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
