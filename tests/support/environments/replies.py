"""Environments whose actions have every shape, for the replies of models."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

import envweave as ew


@dataclass
class Guess(ew.Action):
    """Guess the number.

    Attributes:
        number: The guess.
        why: The reason.
    """

    number: Annotated[int, ew.Bounds(0, 9)]
    why: str = ""


@dataclass
class Walk(ew.Action):
    """Walk somewhere."""

    to: Literal["left", "right"]


@dataclass
class Take(ew.Action):
    """Take a thing."""

    item: str


@dataclass
class Say(ew.Action):
    """Say something."""

    text: str


@dataclass
class Seen(ew.Observation):
    """What is seen."""

    text: str = ""


HINTS: dict[str, Any] = {
    "guess": Guess,
    "walk": Walk,
    "union": Walk | Take,
    "say": Say,
    "code": ew.CodeAction,
    "number": Annotated[int, ew.Bounds(0, 9)],
}


class Recorder(ew.Environment):
    """Takes actions of one shape, and keeps them. The episode does not end."""

    observation_spec = Seen

    def __init__(self, kind: str) -> None:
        self.action_spec = HINTS[kind]
        self.taken: list[Any] = []

    def reset(self) -> Seen:
        return Seen(text="begin")

    def step(self, action: Any) -> Seen:
        self.taken.append(action)
        return Seen(text="next", reward=1.0)


class Mortal(ew.Environment):
    """Earns 1 for "yes" at the second of two questions. Kills its worker once, in a first step.

    Args:
        marker: A file that exists once the worker was killed.
        broken: Whether every episode with an odd seed fails.
    """

    action_spec = Say
    observation_spec = Seen

    def __init__(self, marker: str = "", broken: bool = False) -> None:
        self._marker = Path(marker) if marker else None
        self._broken = broken
        self._seed = 0
        self._steps = 0

    def reset(self, *, seed: int = 0) -> Seen:
        self._seed, self._steps = seed, 0
        return Seen(text="first")

    def step(self, action: Say) -> Seen:
        self._steps += 1
        if self._marker is not None and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self._broken and self._seed % 2:
            raise OSError("the disk is gone")
        return Seen(text="second", reward=float(self._steps == 2), done=self._steps == 2)


class SlowTool(ew.Environment):
    """Takes a while for each step, and ends after two.

    Args:
        seconds: How long.
    """

    action_spec = Guess
    observation_spec = Seen

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._steps = 0

    def reset(self) -> Seen:
        self._steps = 0
        return Seen(text="begin")

    async def step(self, action: Guess) -> Seen:
        self._steps += 1
        await asyncio.sleep(self._seconds)
        return Seen(text="next", reward=1.0, done=self._steps == 2)


class Unscored(ew.Environment):
    """Ends after one step, without a reward."""

    action_spec = Say
    observation_spec = Seen

    def reset(self) -> Seen:
        return Seen(text="begin")

    def step(self, action: Say) -> Seen:
        return Seen(text="end", done=True)


@dataclass
class Camera(ew.Observation):
    """A picture and a note."""

    picture: np.ndarray | None = None
    note: str = ""


class Photographer(ew.Environment):
    """Shows a picture of one gray, which is the number of the step."""

    action_spec = Say
    observation_spec = Camera

    def __init__(self) -> None:
        self._steps = 0

    def reset(self) -> Camera:
        self._steps = 0
        return self._seen()

    def step(self, action: Say) -> Camera:
        self._steps += 1
        seen = self._seen()
        seen.reward = 1.0
        return seen

    def _seen(self) -> Camera:
        return Camera(picture=np.full((16, 20, 3), self._steps, np.uint8), note="a wall")
