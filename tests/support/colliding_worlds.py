"""Environments whose constructors take what `make` takes too."""

from __future__ import annotations

import json
from typing import Any

import envweave as ew


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
