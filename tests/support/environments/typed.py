"""Environments whose hints are `TypedDict`s, unions or pydantic models, also by agent."""

from __future__ import annotations

import datetime
import random
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
from pydantic import BaseModel, ConfigDict, Field, computed_field, model_validator

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


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Buy(BaseModel):
    kind: Literal["buy"] = "buy"
    count: Annotated[int, Field(ge=1, le=9)]


class Sell(BaseModel):
    kind: Literal["sell"] = "sell"
    price: float | None = Field(default=None, ge=0)


class Deal(BaseModel):
    """What a trader does."""

    model_config = ConfigDict(extra="forbid")

    order: Annotated[Buy | Sell, Field(discriminator="kind")]
    colour: Colour = Colour.RED
    note: str = Field(default="", max_length=12)
    tags: set[str] = Field(default_factory=set)
    due: datetime.date | None = None
    sender: int = Field(default=0, alias="from", ge=0)

    @model_validator(mode="after")
    def is_not_both(self) -> Deal:
        if self.note == "red" and self.colour is Colour.RED:
            raise ValueError("that is said twice")
        return self


class Books(BaseModel):
    """What a trader sees: as in OpenEnv, with reward and done."""

    money: float = 0.0
    stock: int = 0
    last: Buy | Sell | None = None
    seen: list[Colour] = Field(default_factory=list)
    due: datetime.date | None = None
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] = Field(default_factory=dict)

    @computed_field
    @property
    def is_rich(self) -> bool:
        return self.money > 10


class Ledger(BaseModel):
    episode_id: str | None = None
    step_count: int = 0
    deals: list[Deal] = Field(default_factory=list)


class Market(ew.Environment):
    """Ends after five deals."""

    def __init__(self) -> None:
        self._ledger = Ledger()

    def reset(self, *, seed: int | None = None, episode_id: str | None = None) -> Books:
        self._chance = random.Random(seed)
        self._ledger = Ledger(episode_id=episode_id)
        return Books(stock=self._chance.randrange(10), metadata={"opens": True})

    def step(self, action: Deal) -> Books:
        assert type(action) is Deal
        self._ledger.step_count += 1
        self._ledger.deals.append(action)
        return Books(
            money=self._chance.random() * 20,
            stock=self._ledger.step_count,
            last=action.order,
            seen=[action.colour],
            due=action.due,
            reward=1.0,
            done=self._ledger.step_count == 5,
            metadata={"sender": action.sender},
        )

    @property
    def state(self) -> Ledger:
        return self._ledger


class Offer(BaseModel):
    price: Annotated[int, Field(ge=0, le=9)]


class Verdict(BaseModel):
    taken: bool
    level: Annotated[int, Field(ge=0, le=3)] = 0


class Haggle(ew.Environment):
    """Returns tuples, and shows a model that says nothing of reward and end."""

    def reset(self, *, seed: int | None = None) -> tuple[Verdict, dict[str, Any]]:
        self._steps = 0
        return Verdict(taken=False), {}

    def step(self, action: Offer) -> tuple[Verdict, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        taken = action.price > 4
        return Verdict(taken=taken, level=1), float(taken), self._steps == 3, False, {}
