"""The main program of a server process that `SubprocessProvider` starts."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envweave.errors import EnvWeaveError
from envweave.registry.plugins import load_path
from envweave.wire.faults import fault_of

BOOT = """\
# an envweave server process
import json, sys
config = json.loads(sys.stdin.readline())
sys.path[:] = config["path"] + (sys.path if config["keeps_path"] else [])
from envweave.providers.child_main import main
main(config["server"])
"""
"""The code that the process runs: it takes over the parent's `sys.path` before any import.

Another interpreter than the parent's keeps its own path, after a folder with envweave in it."""


def main(config: Mapping[str, Any]) -> None:
    """Serve until stopped; if the server cannot start, report why to the parent."""
    try:
        code = load_path("envweave.cli.server_main:serve_config")(config)
    except EnvWeaveError as error:
        fault = fault_of(error)
        report = {"fault": {"code": fault.code, "message": fault.message}}
        os.write(config["ready_fd"], json.dumps(report).encode() + b"\n")
        code = 2
    if config.get("uds"):
        # The socket's folder, which a parent that was killed could not remove.
        with contextlib.suppress(OSError):
            Path(config["uds"]).parent.rmdir()
    sys.exit(load_path("envweave.server.run:leave")(code))
