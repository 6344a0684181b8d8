"""The command `envweave`. Needs the extra `cli`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    0 means success, 1 that an environment failed or a check did, 2 a mistake in what was
    asked, 130 that the user interrupted it.

    Args:
        arguments: What follows the command's name; those of this process by default.
    """
    if any(importlib.util.find_spec(name) is None for name in ("typer", "rich")):
        sys.stderr.write(
            "The envweave command needs its extra. Install it with: pip install 'envweave[cli]'\n"
        )
        return 1
    try:
        from envweave.cli.app import run

        return run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # before or after the command itself, which handles its own
        return 130
