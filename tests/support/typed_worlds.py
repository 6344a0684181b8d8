"""Environments whose hints are `TypedDict`s, and agents with types of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import envweave as ew


class Move(TypedDict):
    to: Annotated[int, ew.Bounds(0, 9)]
    note: NotRequired[str]


class Place(TypedDict):
    at: int
    label: str


class TypedDicts(ew.Environment):
    """Takes and shows plain dicts."""

    def reset(self, *, seed: int | None = None) -> tuple[Place, dict[str, Any]]:
        return {"at": 0, "label": "start"}, {}

    def step(self, action: Move) -> tuple[Place, float, bool, bool, dict[str, Any]]:
        label = action.get("note", "none")
        return {"at": action["to"], "label": label}, 1.0, action["to"] == 9, False, {}


@dataclass
class Say(ew.Action):
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
    guide: Say
    digger: Dig


class Seen(TypedDict):
    guide: Found
    digger: Heard


class _Treasure(ew.MultiAgentEnvironment):
    """One says a word, the other digs; each sees what the other did."""

    possible_agents = ("guide", "digger")

    def _begin(self) -> dict[str, Any]:
        self.steps = 0
        return {"guide": Found(0), "digger": Heard("")}

    def _go(self, actions: Any) -> dict[str, Any]:
        assert isinstance(actions["guide"], Say)
        assert isinstance(actions["digger"], Dig)
        self.steps += 1
        over = self.steps == 3
        return {
            "guide": Found(actions["digger"].depth, reward=1.0, done=over),
            "digger": Heard(actions["guide"].word, reward=2.0, done=over),
        }


class ByTypedDict(_Treasure):
    def reset(self, *, seed: int | None = None) -> Seen:
        return self._begin()  # type: ignore[return-value]

    def step(self, actions: Actions) -> Seen:
        return self._go(actions)  # type: ignore[return-value]


class BySpec(_Treasure):
    action_spec = {"guide": Say, "digger": Dig}  # noqa: RUF012 - as authors write it
    observation_spec = {"guide": Found, "digger": Heard}  # noqa: RUF012 - as authors write it

    def reset(self, *, seed: int | None = None) -> dict[str, Any]:
        return self._begin()

    def step(self, actions: dict[str, Any]) -> dict[str, Any]:
        return self._go(actions)
