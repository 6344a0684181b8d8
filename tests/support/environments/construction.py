"""Environments with unusual signatures: keywords that `make` takes too, no seed, failures."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import envweave as ew
from envweave.examples import CounterEnv
from envweave.testing import ScriptedAction, ScriptedObservation


class Colliding(ew.Environment):
    """Shows what it was made with."""

    def __init__(
        self,
        *,
        backend: str = "cpu",
        timeout_s: float = 0,
        size: int = 0,
        num_envs: int = 0,
        **more: Any,
    ) -> None:
        given = {"backend": backend, "timeout_s": timeout_s, "size": size, "num_envs": num_envs}
        self.given = json.dumps({**given, **more})

    def reset(self) -> str:
        return self.given

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return self.given, 0.0, True, False, {}


class Needy(Colliding):
    def __init__(self, *, backend: str) -> None:
        super().__init__(backend=backend)


class Exits(CounterEnv):
    """Ends its process while it is made."""

    def __init__(self) -> None:
        super().__init__()
        sys.stderr.write("no good today\n")
        sys.stderr.flush()
        os._exit(7)


class Sleeps(CounterEnv):
    """Is not made for a long time."""

    def __init__(self) -> None:
        super().__init__()
        time.sleep(60)


class FailsOnce(CounterEnv):
    """Cannot be made, once a file is there; it is gone then."""

    def __init__(self, sign: str) -> None:
        super().__init__()
        if Path(sign).exists():
            Path(sign).unlink()
            raise RuntimeError("no licence")


class Seedless(ew.Environment):
    """Takes no seed, and ends after one step."""

    def reset(self) -> ScriptedObservation:
        return ScriptedObservation(0)

    def step(self, action: ScriptedAction) -> ScriptedObservation:
        return ScriptedObservation(1, action.text, reward=1.0, done=True)
