"""TrafficLight: a text environment so small that a model without a past can learn it in minutes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, final

import envweave as ew

RULES: dict[str, Literal["stop", "go", "wait"]] = {"red": "stop", "green": "go", "amber": "wait"}
"""What to do at each color."""


@dataclass
class TrafficLightAction(ew.Action):
    """What to do at the light."""

    move: Literal["stop", "go", "wait"]


@dataclass
class TrafficLightObservation(ew.Observation):
    """The color of the light; empty at the end."""

    color: str = ""


@final
class TrafficLightEnv(ew.Environment):
    """Pass some traffic lights. Each right move earns its share of 1; chance earns a third.

    Args:
        lights: How many lights there are.
    """

    copyable = True

    def __init__(self, lights: int = 3) -> None:
        self._count = lights
        self._colors: list[str] = []

    def reset(self, *, seed: int | None = None) -> TrafficLightObservation:
        """Return the first color."""
        rng = random.Random(seed)  # noqa: S311 - a game
        self._colors = rng.choices(list(RULES), k=self._count)
        return TrafficLightObservation(self._colors[0])

    def step(self, action: TrafficLightAction) -> TrafficLightObservation:
        """Return the next color."""
        is_right = RULES[self._colors.pop(0)] == action.move
        color = self._colors[0] if self._colors else ""
        return TrafficLightObservation(color, reward=is_right / self._count, done=not self._colors)
