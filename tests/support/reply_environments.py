"""Environments whose actions have every shape, for the replies of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

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
