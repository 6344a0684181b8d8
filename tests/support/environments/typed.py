"""Environments whose hints are `TypedDict`s or unions, and agents with types of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec

import envweave as ew
from envweave.errors import ActionError


class MoveTo(TypedDict):
    to: Annotated[int, ew.Bounds(0, 9)]
    note: NotRequired[str]


class Location(TypedDict):
    at: int
    label: str


class TypedDictEnvironment(ew.Environment):
    """Takes and shows plain dicts."""

    def reset(self, *, seed: int | None = None) -> tuple[Location, dict[str, Any]]:
        return {"at": 0, "label": "start"}, {}

    def step(self, action: MoveTo) -> tuple[Location, float, bool, bool, dict[str, Any]]:
        label = action.get("note", "none")
        return {"at": action["to"], "label": label}, 1.0, action["to"] == 9, False, {}


@dataclass
class SayWord(ew.Action):
    word: Literal["hot", "cold"] = "hot"


@dataclass
class Dig(ew.Action):
    depth: Annotated[int, ew.Bounds(1, 3)] = 1


@dataclass
class Heard(ew.Observation):
    word: str = ""


@dataclass
class Found(ew.Observation):
    depth: int = 0


class Actions(TypedDict):
    guide: SayWord
    digger: Dig


class SeenByAgents(TypedDict):
    guide: Found
    digger: Heard


class _Treasure(ew.MultiAgentEnvironment):
    """One says a word, the other digs; each sees what the other did."""

    possible_agents = ("guide", "digger")

    def _begin(self) -> dict[str, Any]:
        self.steps = 0
        return {"guide": Found(0), "digger": Heard("")}

    def _go(self, actions: Any) -> dict[str, Any]:
        assert isinstance(actions["guide"], SayWord)
        assert isinstance(actions["digger"], Dig)
        self.steps += 1
        over = self.steps == 3
        return {
            "guide": Found(actions["digger"].depth, reward=1.0, done=over),
            "digger": Heard(actions["guide"].word, reward=2.0, done=over),
        }


class ByTypedDict(_Treasure):
    def reset(self, *, seed: int | None = None) -> SeenByAgents:
        return self._begin()  # type: ignore[return-value]

    def step(self, actions: Actions) -> SeenByAgents:
        return self._go(actions)  # type: ignore[return-value]


class BySpec(_Treasure):
    action_spec = {"guide": SayWord, "digger": Dig}  # noqa: RUF012 - as authors write it
    observation_spec = {"guide": Found, "digger": Heard}  # noqa: RUF012 - as authors write it

    def reset(self, *, seed: int | None = None) -> dict[str, Any]:
        return self._begin()

    def step(self, actions: dict[str, Any]) -> dict[str, Any]:
        return self._go(actions)


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
