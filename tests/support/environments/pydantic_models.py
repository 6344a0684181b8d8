"""Environments whose actions and observations are pydantic models."""

from __future__ import annotations

import datetime
import random
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field, model_validator

import envweave as ew


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
