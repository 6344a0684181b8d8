"""How a process ended, in words."""

from __future__ import annotations

import signal


def ending(code: int | None, pid: int) -> str:
    """Say how the worker process with this id ended, from its exit code."""
    if code is not None and code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"its worker process {pid} was killed by {name}"
    return f"its worker process {pid} ended with exit code {code}"
