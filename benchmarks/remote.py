"""envweave over the network against OpenEnv, in one run.

    python benchmarks/remote.py                     everything; about a quarter of an hour
    python benchmarks/remote.py --quick             the same, roughly; some minutes
    python benchmarks/remote.py --only sessions     the comparisons whose name has it
    python benchmarks/remote.py --docs              and write the figures into the docs

Each side has a server process and a client process of its own. OpenEnv's run in a virtual
environment apart, which scripts/openenv-venv sets up once, with the same environment in its terms.
It is measured as its template for a new environment has it, and at its best: the quickest of its
blocking and its async client, of a step on a thread and one awaited, with and without compressed
frames, with one and with several server processes. Targets are against the best. Meanwhile no core
falls asleep (`awake.py`).
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
    from remote_rows import ROWS
    from remote_runs import OURS, THEIRS, run_row
    from remote_sides import NotAvailableError, openenv_python
    from remote_tables import tables_of

    from envweave.bench.memory import describe_machine
except ImportError as error:
    sys.exit(f"remote.py: {error}. Install envweave with its server: pip install -e '.[server]'")


def read_options(arguments: list[str]) -> argparse.Namespace:
    docs = "write docs/assets/remote.json and its page"
    parser = common_parser("remote.py", __doc__, seconds=1.0, docs=docs)
    parser.add_argument(
        "--side", choices=(OURS, THEIRS), help="measure one side alone, without ratios"
    )
    return parser.parse_args(arguments)


def run(rows: list[Any], how: Settings) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "machine": describe_machine(("fastapi", "uvicorn", "uvloop", "websockets")),
        "settings": {"repeats": how.repeats, "seconds": how.seconds},
        "peers": {THEIRS: peer()} if THEIRS in how.sides else {},
        "rows": [],
    }
    for row in rows:
        how.say(row.key)
        figures["rows"].append(run_row(row, how))
    return figures


def peer() -> dict[str, Any]:
    """Tell which version takes part, or why none does."""
    code = "from importlib.metadata import version; print(version('openenv'))"
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
    refuse(options, "remote.py", ("only", "quick", "side"))
    wanted = chosen((row.key for row in ROWS), options.only, "remote.py")
    rows = [row for row in ROWS if row.key in wanted]
    open_enough_files()
    how = Settings(
        options.repeats or (3 if options.quick else 5),
        options.seconds or (0.3 if options.quick else 1.0),
        progress(len(rows)),
        (options.side,) if options.side else (OURS, THEIRS),
    )
    # Ended by a signal, it still ends the servers it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    company = Company()
    with awake():
        figures = run(rows, how)
    conclude("remote.py", options, figures, company, tables_of)
    if options.docs:
        from remote_page import BLOCK

        write_json(ROOT / BLOCK.json, figures)
        BLOCK.write_page()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
