"""What figures were measured on."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from envweave import __version__


def describe_machine(packages: Iterable[str] = ()) -> dict[str, Any]:
    """Return the processor, the cores this process may use, and versions.

    Args:
        packages: Whose versions to tell, beside envweave's and numpy's; those not installed
            are left out.
    """
    versions = {"envweave": __version__}
    for name in ("numpy", *packages):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "processor": _processor(),
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def usable_cores() -> int:
    """Return how many cores this process may use."""
    with contextlib.suppress(AttributeError):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    with contextlib.suppress(OSError):
        named = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if named:
            return named[1].strip()
    return platform.processor() or platform.machine()
