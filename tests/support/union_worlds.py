"""Environments whose actions are of several kinds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec

import envweave as ew
from envweave.errors import ActionError


@dataclass
class Wait(ew.Action):
    pass


@dataclass
class Move(ew.Action):
    dx: Annotated[int, ew.Bounds(-1, 1)] = 0
    dy: Annotated[int, ew.Bounds(-1, 1)] = 0


@dataclass
class Say(ew.Action):
    words: Annotated[str, msgspec.Meta(min_length=1, max_length=40)] = "hi"


class Open(msgspec.Struct, tag="open"):
    door: Annotated[int, msgspec.Meta(ge=1, le=3)]


class Close(msgspec.Struct, tag="close"):
    door: int = 1
    loudly: bool = False


class Take(TypedDict):
    what: str


class Drop(TypedDict):
    what: str
    where: NotRequired[int]


@dataclass
class Turn(ew.Action):
    """Has a union inside."""

    inner: Wait | Move = field(default_factory=Wait)


class _Kinds(ew.Environment):
    """Ends after three steps; shows which kind it was given last."""

    def reset(self, *, seed: int | None = None) -> str:
        self.steps = 0
        return ""

    def _take(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return f"{type(action).__name__}", 1.0, self.steps == 3, False, {}


class Dataclasses(_Kinds):
    def step(self, action: Wait | Move | Say) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return self._take(action)


class Structs(_Kinds):
    """A door can be closed only when it is open."""

    def reset(self, *, seed: int | None = None) -> str:
        self.is_open = False
        return super().reset(seed=seed)

    def step(self, action: Open | Close) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if isinstance(action, Close) and not self.is_open:
            raise ActionError("action.door: it is closed")
        self.is_open = isinstance(action, Open)
        return self._take(action)


class TypedDicts(_Kinds):
    def step(self, action: Take | Drop) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return self._take(action)


class Inside(_Kinds):
    def step(self, action: Turn) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return self._take(action.inner)
