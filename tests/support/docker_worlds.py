"""Environments that fare badly in a container."""

from __future__ import annotations

from dataclasses import dataclass

import envweave as ew


@dataclass
class Serving(ew.Observation):
    """How much was eaten."""

    eaten: int = 0


@dataclass
class Bite(ew.Action):
    """How much to eat, in millions of bytes."""

    delta: int


class Hungry(ew.Environment):
    """Needs as much memory as it is told to."""

    def __init__(self) -> None:
        self._plate: list[bytes] = []

    def reset(self) -> Serving:
        self._plate.clear()
        return Serving()

    def step(self, action: Bite) -> Serving:
        self._plate += [b"1" * 2**20 for _ in range(action.delta)]
        return Serving(len(self._plate))
