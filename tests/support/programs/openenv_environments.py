"""OpenEnv environments of many kinds, for a process that has OpenEnv.

`openenv_peer.py` serves them by OpenEnv's own server; `openenv_classes.py` makes them by envweave.
"""

from __future__ import annotations

import asyncio
import datetime
import enum
import random
import uuid
from typing import Annotated, Any, Literal

from fastmcp import FastMCP
from openenv.core.env_server import Action, Environment, Observation, State
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from pydantic import BaseModel, Field


class Base(Environment):
    """What all of these have in common: a state, and an end after three steps."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def begin(self, seed: int | None, episode_id: str | None) -> None:
        self._state = State(episode_id=episode_id)
        self.chance = random.Random(seed)

    def count(self) -> bool:
        self._state.step_count += 1
        return self._state.step_count >= 3

    @property
    def state(self) -> State:
        return self._state


class Say(Action):
    text: str = Field(..., min_length=1, max_length=20, description="What to say")
    tone: str | None = None
    tags: list[str] = Field(default_factory=list, max_length=3)


class Heard(Observation):
    heard: str
    tags: list[str] = Field(default_factory=list)


class Talk(Base):
    """Texts with lengths, and optional fields."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Heard:
        self.begin(seed, episode_id)
        return Heard(heard="")

    def step(self, action: Say, timeout_s: float | None = None, **_: Any) -> Heard:
        return Heard(heard=action.text, tags=action.tags, reward=1, done=self.count())


class Way(enum.Enum):
    NORTH = "north"
    SOUTH = "south"


class Move(Action):
    way: Way
    paces: int = Field(1, ge=1, le=5)
    speed: float = Field(default=0.5, gt=0, lt=1)


class Place(BaseModel):
    x: int
    y: int


class Seen(Observation):
    place: Place
    board: list[list[int]] = Field(default_factory=list)


class Grid(Base):
    """An enumeration, bounds, and a nested model to look at."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Seen:
        self.begin(seed, episode_id)
        self.y = 0
        return Seen(place=Place(x=0, y=0), board=[[0] * 3] * 3)

    def step(self, action: Move, timeout_s: float | None = None, **_: Any) -> Seen:
        assert isinstance(action.way, Way)
        self.y += action.paces if action.way is Way.NORTH else -action.paces
        place = Place(x=0, y=self.y)
        return Seen(place=place, board=[[1] * 3] * 3, reward=0.5, done=self.count())


class Buy(BaseModel):
    kind: Literal["buy"] = "buy"
    item: str
    count: int = Field(ge=1, le=9)


class Sell(BaseModel):
    kind: Literal["sell"] = "sell"
    item: str
    price: float | None = Field(default=None, ge=0.0)


class Deal(Action):
    order: Annotated[Buy | Sell, Field(discriminator="kind")]
    notes: str | list[str] | None = None


class Books(Observation):
    last: Buy | Sell | None = None
    money: float = 0.0


class Shop(Base):
    """A union that one field tells apart."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Books:
        self.begin(seed, episode_id)
        return Books()

    def step(self, action: Deal, timeout_s: float | None = None, **_: Any) -> Books:
        return Books(last=action.order, money=1.5, reward=True, done=self.count())


class Plan(Action):
    due: datetime.date = datetime.date(2026, 1, 1)
    ref: uuid.UUID = Field(default_factory=uuid.uuid4)
    sizes: tuple[int, str] = (1, "a")
    kinds: set[Literal["a", "b"]] = Field(default_factory=set)
    weights: dict[str, float] = Field(default_factory=dict)
    steps: list[Annotated[int, Field(ge=0, le=9)]] = Field(min_length=1, max_length=4)
    code: str = Field("AB-12", pattern=r"^[A-Z]{2}-\d{2}$")
    share: float | None = Field(None, ge=0, le=1)


class Planned(Observation):
    due: datetime.date | None = None
    total: int = 0


class Planner(Base):
    """Dates, patterns, tuples, sets, and defaults that are made anew each time."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Planned:
        self.begin(seed, episode_id)
        return Planned()

    def step(self, action: Plan, timeout_s: float | None = None, **_: Any) -> Planned:
        return Planned(due=action.due, total=sum(action.steps), reward=0.0, done=self.count())


class Node(BaseModel):
    name: str
    children: list[Node] = Field(default_factory=list)


class Grow(Action):
    tree: Node
    other: Node | None = None


class Grown(Observation):
    size: int = 0
    tree: Node | None = None


class Garden(Base):
    """A model within itself."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Grown:
        self.begin(seed, episode_id)
        return Grown()

    def step(self, action: Grow, timeout_s: float | None = None, **_: Any) -> Grown:
        return Grown(size=1, tree=action.tree, reward=1.0, done=self.count())


class Poke(Action):
    pass


class Felt(Observation):
    feeling: int = 0


class Slow(Base):
    """Methods that are coroutines; the plain ones are never to be called."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Felt:
        raise NotImplementedError("reset_async() is")

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **_: Any
    ) -> Felt:
        await asyncio.sleep(0)
        self.begin(seed, episode_id)
        return Felt()

    def step(self, action: Poke, timeout_s: float | None = None, **_: Any) -> Felt:
        raise NotImplementedError("step_async() is")

    async def step_async(self, action: Poke, timeout_s: float | None = None, **_: Any) -> Felt:
        await asyncio.sleep(0)
        return Felt(feeling=self.chance.randrange(9), reward=2.0, done=self.count())


class Task(Observation):
    question: str = ""


class Verdict(Observation):
    correct: bool = False
    explanation: str = ""


class Answer(Action):
    answer: int = Field(ge=0, le=20)


class Quiz(Base):
    """What its reset shows has other fields than what its steps show."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Task:
        self.begin(seed, episode_id)
        self.first = self.chance.randrange(10)
        return Task(question=f"{self.first} + 1?", metadata={"level": 1})

    def step(self, action: Answer, timeout_s: float | None = None, **_: Any) -> Verdict:
        right = action.answer == self.first + 1
        return Verdict(correct=right, explanation="so it is", reward=right, done=self.count())


class Untyped(Base):
    """An environment without hints: only those who serve it name its classes."""

    def reset(self, seed=None, episode_id=None, **kwargs):  # type: ignore[no-untyped-def]
        self.begin(seed, episode_id)
        return Felt()

    def step(self, action, timeout_s=None, **kwargs):  # type: ignore[no-untyped-def]
        return Felt(feeling=1, reward=None, done=self.count())


class Kitchen(MCPEnvironment):
    """Tools, called by actions as OpenEnv's own echo environment has them."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        tools = FastMCP("kitchen")

        @tools.tool
        def cook(dish: str) -> str:
            return f"{dish}, cooked"

        super().__init__(tools)
        self._state = State()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **_: Any
    ) -> Observation:
        self._state = State(episode_id=episode_id)
        return Observation(metadata={"status": "ready"})

    def step(
        self, action: CallToolAction, timeout_s: float | None = None, **more: Any
    ) -> Observation:
        self._state.step_count += 1
        return super().step(action, timeout_s=timeout_s, **more)

    async def step_async(
        self, action: CallToolAction, timeout_s: float | None = None, **more: Any
    ) -> Observation:
        self._state.step_count += 1
        return await super().step_async(action, timeout_s=timeout_s, **more)

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        return Observation(reward=0.0, metadata={"error": "only tools are used here"})

    @property
    def state(self) -> State:
        return self._state


ZOO: dict[str, tuple[Any, ...]] = {
    "talk": (Talk, Say, Heard),
    "grid": (Grid, Move, Seen),
    "shop": (Shop, Deal, Books),
    "planner": (Planner, Plan, Planned),
    "garden": (Garden, Grow, Grown),
    "slow": (Slow, Poke, Felt),
    "quiz": (Quiz, Answer, Verdict),
    "untyped": (Untyped, Poke, Felt),
    "kitchen": (Kitchen, CallToolAction, CallToolObservation),
}
"""By path: the environment, its action, and the observation of its steps."""
