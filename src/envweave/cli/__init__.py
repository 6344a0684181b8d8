"""The command `envweave`. Needs the extra `cli`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    0 means success, 1 that an environment or a check failed, 2 invalid arguments, 130 that the
    user interrupted it.

    Args:
        arguments: The arguments after the command's name; default: those of this process.
    """
    if any(importlib.util.find_spec(name) is None for name in ("typer", "rich")):
        sys.stderr.write(
            "The envweave command needs its extra. Install it with: pip install 'envweave[cli]'\n"
        )
        return 1
    try:
        from envweave.cli.app import run

        return run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # outside the command, which handles its own
        return 130
