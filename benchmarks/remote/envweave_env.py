"""The counter of the remote benchmark, written for envweave."""

from __future__ import annotations

from dataclasses import dataclass

import envweave as ew
from benchmarks.remote.libraries import observation_text

TEXT = observation_text()


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
