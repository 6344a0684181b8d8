"""An environment that exhausts memory or exits in a container or a pod, and how it gets there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import envweave as ew

_BOOT = """
import os, sys
os.mkdir("/tmp/environments")
with open("/tmp/environments/containers.py", "w") as file:
    file.write(os.environ["SOURCE"])
os.execv(sys.executable, [sys.executable, "-m", "envweave.cli.container_main"])
"""


@dataclass
class Allocated(ew.Observation):
    mebibytes: int = 0


@dataclass
class Allocate(ew.Action):
    """How much memory to allocate, and the code to exit with."""

    mebibytes: int = 0
    exit: int | None = None


class MemoryHog(ew.Environment):
    """Allocates as much memory as an action says; ends its server when an action says so."""

    def __init__(self) -> None:
        self._memory: list[bytes] = []

    def reset(self) -> Allocated:
        self._memory.clear()
        return Allocated()

    def step(self, action: Allocate) -> Allocated:
        if action.exit is not None:
            os._exit(action.exit)
        self._memory += [b"1" * 2**20 for _ in range(action.mebibytes)]
        return Allocated(len(self._memory))


MEMORY_HOG = "pkg://environments.containers:MemoryHog"


def copy_into(folder: Path) -> None:
    """Copy this module, so that a container that mounts the folder can import it."""
    package = folder / "environments"
    package.mkdir()
    (package / "containers.py").write_text(Path(__file__).read_text())


def pod_options(**options: Any) -> dict[str, Any]:
    """Return options of a provider whose pods can import this module."""
    variables = {"SOURCE": Path(__file__).read_text(), "PYTHONPATH": "/tmp"}
    return {"command": ["python", "-c", _BOOT], "env_vars": variables, **options}
