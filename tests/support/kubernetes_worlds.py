"""An environment that fares badly in a pod, and how it gets there: by a variable."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import envweave as ew

_BOOT = """
import os, sys
with open("/tmp/kubernetes_worlds.py", "w") as file:
    file.write(os.environ["WORLD"])
os.execv(sys.executable, [sys.executable, "-m", "envweave.cli.container_main"])
"""


@dataclass
class Mood(ew.Observation):
    """How much was eaten."""

    eaten: int = 0


@dataclass
class Whim(ew.Action):
    """How much to eat, in millions of bytes; and with which code to exit."""

    eat: int = 0
    exit: int | None = None


class Moody(ew.Environment):
    """Needs as much memory as it is told to, and takes its server along when it goes."""

    def __init__(self) -> None:
        self._plate: list[bytes] = []

    def reset(self) -> Mood:
        self._plate.clear()
        return Mood()

    def step(self, action: Whim) -> Mood:
        if action.exit is not None:
            os._exit(action.exit)
        self._plate += [b"1" * 2**20 for _ in range(action.eat)]
        return Mood(len(self._plate))


MOODY = "pkg://kubernetes_worlds:Moody"


def with_world(**options: Any) -> dict[str, Any]:
    """Return options of a provider whose pods can import this module."""
    variables = {"WORLD": Path(__file__).read_text(), "PYTHONPATH": "/tmp"}
    return {"command": ["python", "-c", _BOOT], "env_vars": variables, **options}
