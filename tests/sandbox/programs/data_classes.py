"""Dataclasses, enums, named tuples, and hints resolved by name."""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections import namedtuple
from typing import NamedTuple, TypedDict


@dataclasses.dataclass(order=True, slots=True, frozen=True)
class Point:
    x: int
    y: int = dataclasses.field(default=2, metadata={"unit": "m"})
    rest: list[Point] = dataclasses.field(default_factory=list, compare=False)


class Colour(enum.Enum):
    RED = enum.auto()
    GREEN = enum.auto()

    @property
    def low(self):
        return self.name.lower()


class Bits(enum.Flag):
    A = 1
    B = 2


class Rank(enum.IntEnum):
    LOW = 1
    HIGH = 9


# %%
class Pair(NamedTuple):
    first: Point
    second: Colour = Colour.RED


class Options(TypedDict, total=False):
    point: Point


def take(one: Point, other: Pair | None = None) -> dict[str, Colour]: ...


Triple = namedtuple("Triple", "a b c", defaults=[3])

# %%
print(Point(1), Point(1) < Point(2), dataclasses.asdict(Point(1, 2, [Point(3)])))
print(dataclasses.replace(Point(1), y=7), dataclasses.fields(Point)[1].metadata["unit"])
try:
    Point(1).x = 2
except dataclasses.FrozenInstanceError as error:
    print("frozen", error)
print(list(Colour), Colour("2" and 2).low, Colour["RED"] is Colour.RED, repr(Bits.A | Bits.B))
print(sorted(Rank, reverse=True), Rank.HIGH + 1, f"{Rank.LOW}", f"{Colour.RED}")
print(Pair(Point(1)), Triple(1, 2), Triple(1, 2)._asdict(), Triple.__module__)
print(typing.get_type_hints(Point), typing.get_type_hints(Pair), typing.get_type_hints(Options))
print(typing.get_type_hints(take))
