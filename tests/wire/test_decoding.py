"""The author's objects are rebuilt unchanged, even if they do not fit their hints."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import pathlib
import uuid
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import numpy as np
import pydantic
import pytest
from comparison import same

import envweave as ew
from envweave.codec import Bounds, spec_from_hint
from envweave.wire.decoding import rebuilder
from envweave.wire.encoding import JSON, MSGPACK, PLAIN_JSON, Encoding

both = pytest.mark.parametrize("encoding", [MSGPACK, JSON], ids=lambda one: one.name)


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Point(NamedTuple):
    x: int
    y: Colour


class Config(TypedDict):
    colour: Colour


class Model(pydantic.BaseModel):
    x: int
    when: datetime.date


class Struct(msgspec.Struct):
    x: int


@dataclass
class Counted(ew.Observation):
    x: int
    made: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.made += 1


@dataclass(frozen=True, slots=True)
class Frozen:
    x: int
    inner: tuple[int, ...] = ()


@dataclass
class More(Counted):
    extra: str = ""


@dataclass
class Rich(ew.Observation):
    points: list[Point]
    frozen: Frozen | None
    colours: dict[Colour, set[int]]
    grid: np.ndarray
    config: Config


@dataclass
class Cat:
    lives: int


@dataclass
class Dog:
    tricks: list[str]


def again(hint: Any, value: Any, encoding: Encoding = MSGPACK) -> Any:
    rebuild = rebuilder(spec_from_hint(hint)) or (lambda plain: plain)
    return rebuild(encoding.decode(encoding.encode(value)))


RICH = Rich(
    points=[Point(1, Colour.RED)],
    frozen=Frozen(1, (2, 3)),
    colours={Colour.PAIR: {1, 2}},
    grid=np.array([1.5], np.float32),
    config={"colour": Colour.RED},
    reward=0.5,
    metadata={"a": [1]},
)


@both
def test_a_rich_observation_comes_back_as_it_was(encoding: Encoding):
    arrived = again(Rich, RICH, encoding)

    assert same(arrived, RICH)
    assert type(arrived.points[0]) is Point
    assert type(arrived.frozen.inner) is tuple


@both
def test_no_constructor_runs_a_second_time(encoding: Encoding):
    value = Counted(x=1)

    assert again(Counted, value, encoding) == value
    assert value.made == 1


@both
@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (tuple[int, Colour], (1, Colour.PAIR)),
        (tuple[int, ...], (1, 2)),
        (frozenset[str], frozenset({"a"})),
        (set[Point], {Point(1, Colour.RED)}),
        (dict[int, Colour], {1: Colour.RED}),
        (dict[str, Point], {"a": Point(1, Colour.RED)}),
        (Config, {"colour": Colour.RED}),
        (Frozen, Frozen(5, (1,))),
        (Frozen | None, None),
        (Cat | Dog, Dog(["sit"])),
        (Cat | Dog | None, Cat(9)),
        (list[Cat | Dog], [Cat(9), Dog([])]),
        (Literal["a", 1], 1),
        (datetime.datetime, datetime.datetime(2026, 1, 1)),
        (datetime.date, datetime.date(2026, 1, 1)),
        (datetime.timedelta, datetime.timedelta(seconds=5)),
        (decimal.Decimal, decimal.Decimal("1.50")),
        (uuid.UUID, uuid.UUID(int=5)),
        (pathlib.PurePosixPath, pathlib.PurePosixPath("/a/b")),
        (collections.deque[int], collections.deque([1])),
        (Model, Model(x=1, when=datetime.date(2026, 1, 1))),
        (Struct, Struct(5)),
        (bytes, b"ab"),
        (complex, 1j),
        (Any, {"a": 1}),
    ],
    ids=repr,
)
def test_a_value_is_decoded_to_the_type_of_its_hint(encoding: Encoding, hint: Any, value: Any):
    arrived = again(hint, value, encoding)

    assert arrived == value
    assert type(arrived) is type(value)


@both
@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Counted, 5),
        (Counted, None),
        (Counted, [1]),
        (Colour, "green"),
        (Point, [1]),
        (tuple[int, int], "ab"),
        (list[Colour], ["red?", 5]),
        (set[int], "text"),
        (dict[int, int], 5),
        (np.ndarray, "text"),
        (np.ndarray, ["a", None]),
        (bytes, "no base64!"),
        (datetime.date, "yesterday"),
        (Model, {"x": "no number"}),
        (Cat | Dog, 5),
        (int, "text"),
        (int, 1.5),
    ],
    ids=repr,
)
def test_a_value_that_does_not_fit_its_hint_stays_plain(encoding: Encoding, hint: Any, value: Any):
    assert again(hint, value, encoding) == value


@both
def test_a_field_that_does_not_fit_keeps_its_value(encoding: Encoding):
    wrong = Rich(points="none", frozen=5, colours=None, grid="x", config=[1])  # type: ignore[arg-type]

    assert again(Rich, wrong, encoding) == wrong


def test_what_a_subclass_adds_is_not_lost():
    arrived = again(Counted, More(x=1, extra="here"))

    assert type(arrived) is Counted
    assert (arrived.x, arrived.extra) == (1, "here")


def test_omitted_fields_have_their_defaults():
    rebuild = rebuilder(spec_from_hint(More))
    assert rebuild is not None

    arrived = rebuild({"x": 1})

    assert (arrived.extra, arrived.done, arrived.metadata) == ("", False, {})
    assert rebuild({"x": 1}).metadata is not arrived.metadata


def test_unknown_names_do_not_change_the_class():
    rebuild = rebuilder(spec_from_hint(Counted))
    assert rebuild is not None

    arrived = rebuild({"x": 1, "__class__": "Other", "__dict__": {}, 5: 6})

    assert type(arrived) is Counted
    assert arrived.x == 1


def test_an_array_comes_back_where_json_has_lists():
    hint = Annotated[np.ndarray, Bounds(shape=(2,), dtype="float32")]

    arrived = again(hint, np.array([1.5, np.nan], np.float32), PLAIN_JSON)

    assert same(arrived, np.array([1.5, np.nan], np.float32))


def test_a_rich_observation_comes_back_from_plain_json():
    value = Rich(
        points=[Point(1, Colour.RED)],
        frozen=None,
        colours={},
        grid=np.array([1.5]),
        config={"colour": Colour.RED},
    )

    assert same(again(Rich, value, PLAIN_JSON), value)
