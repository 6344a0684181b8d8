"""The environment of remote.py written for envweave, as the server's command names it."""

from __future__ import annotations

from dataclasses import dataclass

from remote_text import shown

import envweave as ew

TEXT = shown()


@dataclass
class CountAction(ew.Action):
    delta: int


@dataclass
class CountObservation(ew.Observation):
    count: int
    text: str


class Count(ew.Environment):
    def __init__(self) -> None:
        self._count = 0

    def reset(self, *, seed: int | None = None) -> CountObservation:
        self._count = 0
        return CountObservation(0, TEXT)

    def step(self, action: CountAction) -> CountObservation:
        self._count += action.delta
        return CountObservation(self._count, TEXT, reward=1.0)
