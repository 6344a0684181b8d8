"""The inside of a server process that somebody started for themselves."""

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
told = json.loads(sys.stdin.readline())
sys.path[:] = told["path"] + (sys.path if told["keeps_path"] else [])
from envweave.providers.child_main import main
main(told["server"])
"""
"""What the process runs: it looks for modules where its starter does, before it imports any.

Another interpreter than its starter's keeps its own path, after a folder with envweave in it."""


def main(config: Mapping[str, Any]) -> None:
    """Serve until told to stop; tell the starter why, if it cannot be."""
    try:
        code = load_path("envweave.cli.server_main:serve_config")(config)
    except EnvWeaveError as error:
        fault = fault_of(error)
        told = {"code": fault.code, "message": fault.message}
        os.write(config["ready_fd"], json.dumps({"fault": told}).encode() + b"\n")
        code = 2
    if config.get("uds"):
        # The socket's own folder, which a starter that was killed could not remove.
        with contextlib.suppress(OSError):
            Path(config["uds"]).parent.rmdir()
    sys.exit(load_path("envweave.server.run:leave")(code))
