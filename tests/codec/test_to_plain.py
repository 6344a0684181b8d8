"""From the author's objects to plain data."""

from __future__ import annotations

import enum
import json
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

import envweave as ew
from envweave.codec import to_plain


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Heading(enum.Enum):
    UP = (0, 1)


class Point(NamedTuple):
    x: int
    y: int


class Name(str):
    __slots__ = ()


@dataclass
class Shown(ew.Observation):
    grid: np.ndarray
    colour: Colour = Colour.RED
    hidden: int = field(init=False, default=3)


class Odd:
    def __repr__(self) -> str:
        return "Odd()"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (0.5, 0.5),
        ("a", "a"),
        (b"a", b"a"),
        (Name("a"), "a"),
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.int64(3), 3),
        (np.True_, True),
        (np.str_("a"), "a"),
        (np.bytes_(b"a"), b"a"),
        (np.array([[1, 2]]), [[1, 2]]),
        (np.array(0.5), 0.5),
        (np.zeros((0, 3)), []),
        (np.array([None, Colour.RED]), [None, "red"]),
        (np.datetime64("2000-01-01"), "datetime.date(2000, 1, 1)"),
        (Colour.RED, "red"),
        (Level.LOW, 1),
        (Heading.UP, [0, 1]),
        ((1, [2, (3,)]), [1, [2, [3]]]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        (Point(1, 2), [1, 2]),
        ({1: "a", Colour.RED: "b", Level.LOW: "c"}, {"1": "c", "red": "b"}),
        (Odd(), "Odd()"),
        (Shown, repr(Shown)),
    ],
    ids=lambda one: "a frozenset" if isinstance(one, frozenset) else repr(one),
)
def test_a_value_becomes_plain_of_exactly_a_plain_type(value, plain):
    converted = to_plain(value)

    assert converted == plain
    assert type(converted) is type(plain)


def test_a_dataclass_becomes_a_dict_of_all_its_fields():
    observation = Shown(np.array([1.0]), reward=np.float32(0.5), metadata={"k": {1, 2}})

    assert to_plain(observation) == {
        "reward": 0.5,
        "done": False,
        "truncated": False,
        "metadata": {"k": [1, 2]},
        "grid": [1.0],
        "colour": "red",
        "hidden": 3,
    }


@pytest.mark.parametrize(
    ("request_", "plain"),
    [
        (
            ew.NeedAction(Shown(np.array([1]))),
            {"type": "need_action", "agent_id": "agent", "reward": None, "action_mask": None},
        ),
        (
            ew.EpisodeEnd("truncated"),
            {"type": "episode_end", "reason": "truncated", "blame": None},
        ),
        (ew.LogEvent("hello"), {"type": "log_event", "message": "hello", "level": "info"}),
        (ew.ToolResult("c", 1), {"call_id": "c", "value": 1, "error": None}),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_request_becomes_a_dict_that_keeps_its_type(request_, plain):
    converted = to_plain(request_)

    assert plain.items() <= converted.items()
    assert ("type" in converted) is ("type" in plain)


def test_plain_data_shares_nothing_with_its_source():
    value: dict[str, Any] = {"a": [1, {"b": 2}], "c": np.zeros(2)}

    plain = to_plain(value)
    value["a"][1]["b"] = 3
    value["c"][0] = 9

    assert plain == {"a": [1, {"b": 2}], "c": [0.0, 0.0]}


def test_plain_data_can_be_written_by_json_and_msgspec():
    value = {
        "floats": [np.float64(1), np.float32(2), 3.0],
        "array": np.arange(3, dtype=np.uint8),
        "set": {Colour.RED},
        "observation": Shown(np.ones(2)),
    }

    plain = to_plain(value)

    assert json.loads(json.dumps(plain)) == plain
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plain)) == plain


def test_nan_and_infinity_stay_numbers():
    plain = to_plain(np.array([math.nan, math.inf]))

    assert math.isnan(plain[0])
    assert plain[1] == math.inf
