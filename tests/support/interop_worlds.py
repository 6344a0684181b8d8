"""Environments whose actions and observations are no objects, and that fail as they are told."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import envweave as ew


class Pixels(ew.Environment):
    """Shows an array, and takes a number."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._at = int((options or {}).get("start", 0))
        return self._shown(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._at += action
        return self._shown(), 1.0, False, self._at >= 3, {"at": self._at}

    def _shown(self) -> np.ndarray:
        return np.full((2, 2), self._at, np.float32)


class Talk(ew.Environment):
    """Shows a text, and takes one."""

    def reset(self) -> str:
        return "Say something."

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return action.upper(), 0.5, action == "bye", False, {}


@dataclass
class MoodAction(ew.Action):
    do: str = "go"


@dataclass
class MoodObservation(ew.Observation):
    steps: int = 0


class Moody(ew.Environment):
    """Fails, or waits, as it is told.

    Attributes:
        waiting: Set when a step waits.
        go_on: What it waits for.
        open: How many there are.
    """

    waiting: ClassVar[threading.Event] = threading.Event()
    go_on: ClassVar[threading.Event] = threading.Event()
    open: ClassVar[int] = 0

    def __init__(self) -> None:
        type(self).open += 1
        self._steps = 0

    def reset(self, *, seed: int | None = None) -> MoodObservation:
        self._steps = 0
        return MoodObservation()

    def step(self, action: MoodAction) -> MoodObservation:
        self._steps += 1
        if action.do == "fail":
            raise RuntimeError("as it was told")
        if action.do == "wait":
            self.waiting.set()
            self.go_on.wait(30)
        return MoodObservation(self._steps, reward=1.0)

    def close(self) -> None:
        type(self).open -= 1


@dataclass
class Account(ew.Observation):
    value: int = 0
    note: str = ""


class Curt(ew.Environment):
    """Has a field of its own, besides those that OpenEnv has a class for."""

    openenv_fields = ("value",)

    def reset(self, *, seed: int | None = None) -> Account:
        return Account(note="hello")

    def step(self, action: int) -> Account:
        return Account(value=action, note="there you are", reward=1.0, metadata={"more": 1})
