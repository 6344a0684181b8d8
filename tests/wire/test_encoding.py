"""Encoded values are decoded unchanged."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import json
import logging
import uuid
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pydantic
import pytest
from fuzzing import equal, is_standard, nested, values
from hypothesis import given, settings

from envweave.errors import WireError
from envweave.wire.encoding import ENCODINGS, JSON, MSGPACK, PLAIN_JSON, Encoding

both = pytest.mark.parametrize("encoding", [MSGPACK, JSON], ids=lambda one: one.name)
each = pytest.mark.parametrize("encoding", [MSGPACK, JSON, PLAIN_JSON], ids=lambda one: one.name)
quick = settings(max_examples=100, deadline=None)


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(enum.IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: int
    y: int


class Message(msgspec.Struct, tag="message", tag_field="type"):
    text: str
    parts: list[Any] = []


@dataclass(frozen=True)
class Inner:
    grid: np.ndarray
    _private: int = 3


@dataclass
class Outer:
    inner: Inner
    colour: Colour = Colour.RED
    derived: int = field(init=False)


class Model(pydantic.BaseModel):
    x: int
    when: datetime.date
    more: Any = None


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("on purpose")


class Tensor:
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array([1.0, 2.0], dtype)


class Text(str):
    def __str__(self) -> str:
        return "something else"


@pytest.mark.slow  # many generated messages
@both
@given(value=values)
@quick
def test_plain_data_arrives_as_it_was(encoding: Encoding, value: Any):
    arrived = encoding.decode(encoding.encode(value))

    assert equal(arrived, value)


@pytest.mark.slow  # many generated messages
@given(value=values)
@quick
def test_plain_json_is_standard_json(value: Any):
    data = PLAIN_JSON.encode(value)

    assert is_standard(json.loads(data, parse_constant=pytest.fail))


def test_plain_json_replaces_lone_surrogates_in_arrays_too():
    assert PLAIN_JSON.encode(np.array(["\ud800", "b"])) == b'["?","b"]'


def test_the_encodings_are_known_by_name_and_subprotocol():
    assert {name: one.subprotocol for name, one in ENCODINGS.items()} == {
        "msgpack": "envweave.v1.msgpack",
        "json": "envweave.v1.json",
    }
    assert [one.is_text for one in ENCODINGS.values()] == [False, True]


NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
SOME_ID = uuid.uuid4()


@both
@pytest.mark.parametrize(
    ("sent", "arrives"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        ({4}, [4]),
        (frozenset({"a"}), ["a"]),
        (Point(1, 2), [1, 2]),
        (collections.deque([1, 2]), [1, 2]),
        (range(3), [0, 1, 2]),
        (collections.OrderedDict(a=1), {"a": 1}),
        (collections.ChainMap({"a": 1}, {"b": 2}), {"b": 2, "a": 1}),
        (Colour.RED, "red"),
        (Colour.PAIR, [1, 2]),
        (Level.LOW, 1),
        ({Colour.RED: Level.LOW}, {"red": 1}),
        (np.float16(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.int8(-1), -1),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.bytes_(b"a"), b"a"),
        (np.complex64(1j), 1j),
        (np.datetime64("2026-01-01"), "2026-01-01"),
        ({np.int64(3): 1}, {3: 1}),
        (np.array([1, "a", None], object), [1, "a", None]),
        (np.array(["2026-01-01"], "M8[D]"), ["2026-01-01"]),
        (np.array([(1, 2.0)], [("a", "i4"), ("b", "f4")]), [[1, 2.0]]),
        (datetime.date(2026, 1, 1), "2026-01-01"),
        (NOON, NOON),
        (datetime.datetime(2026, 1, 1), "2026-01-01T00:00:00"),
        (datetime.timedelta(days=1), "P1D"),
        (decimal.Decimal("1.50"), "1.50"),
        (SOME_ID, str(SOME_ID)),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        (Text("as it is"), "as it is"),
        (Message("hello", [1]), {"type": "message", "text": "hello", "parts": [1]}),
        (ValueError("no"), "ValueError: no"),
        (2**70000, 2**70000),
        ({2**70: {(1, 2): 3}}, {2**70: {(1, 2): 3}}),
        ({"\ud800": ["\udfff"]}, {"\ud800": ["\udfff"]}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_plain_arrives_in_its_plain_form(encoding: Encoding, sent: Any, arrives: Any):
    arrived = encoding.decode(encoding.encode(sent))

    assert arrived == arrives
    assert type(arrived) is type(arrives)


@both
def test_dataclasses_arrive_with_the_fields_they_hold(encoding: Encoding):
    sent = Outer(Inner(np.arange(3, dtype=np.int8)))

    arrived = encoding.decode(encoding.encode(sent))

    assert arrived["inner"].pop("grid").tolist() == [0, 1, 2]
    assert arrived == {"inner": {"_private": 3}, "colour": "red"}


@both
def test_models_of_pydantic_arrive_with_their_fields(encoding: Encoding):
    sent = Model(x=1, when=datetime.date(2026, 1, 1), more=Model(x=2, when="2026-01-02"))

    arrived = encoding.decode(encoding.encode(sent))

    assert arrived == {
        "x": 1,
        "when": "2026-01-01",
        "more": {"x": 2, "when": "2026-01-02", "more": None},
    }


@both
@pytest.mark.parametrize(
    "array", [np.arange(6).reshape(2, 3).T, np.arange(9)[::-2], np.broadcast_to(np.int8(1), (2, 2))]
)
def test_arrays_in_any_order_of_memory_arrive(encoding: Encoding, array: np.ndarray):
    arrived = encoding.decode(encoding.encode(array))

    assert arrived.tolist() == array.tolist()
    assert arrived.dtype == array.dtype


@both
def test_an_array_that_arrived_may_be_written_to(encoding: Encoding):
    data = bytearray(encoding.encode([np.zeros(2), np.zeros((0, 2))]))
    array, empty = encoding.decode(data)

    array[0] = 1.0
    data[:] = b"\0" * len(data)

    assert array.tolist() == [1.0, 0.0]
    assert empty.flags.writeable


@both
def test_a_tensor_of_another_library_arrives_as_an_array(encoding: Encoding):
    arrived = encoding.decode(encoding.encode({"tensor": Tensor()}))

    assert arrived["tensor"].tolist() == [1.0, 2.0]


@each
def test_values_without_a_wire_form_arrive_as_their_repr(encoding: Encoding):
    sent = [object, lambda: None, Unshowable()]

    kind, function, unshowable = encoding.decode(encoding.encode(sent))

    assert kind == "<class 'object'>"
    assert function.startswith("<function ")
    assert unshowable.endswith("Unshowable, whose repr failed with RuntimeError>")


def test_values_without_a_wire_form_are_logged_once_per_type(caplog: pytest.LogCaptureFixture):
    class Strange:
        pass

    with caplog.at_level(logging.WARNING, "envweave.wire"):
        MSGPACK.encode([Strange(), Strange()])
        MSGPACK.encode(Strange())

    assert [record.getMessage().count("Strange") for record in caplog.records] == [1]


@each
def test_a_value_that_contains_itself_is_replaced_by_a_note(encoding: Encoding):
    within: dict[str, Any] = {"a": 1}
    within["self"] = [within]

    arrived = encoding.decode(encoding.encode(within))

    assert arrived == {"a": 1, "self": ["<a dict within itself>"]}


@each
def test_deeply_nested_values_are_replaced_by_a_note(encoding: Encoding):
    arrived = encoding.decode(encoding.encode({"deep": nested(10_000), "flat": 1}))

    assert arrived["flat"] == 1
    assert "nested too deeply" in str(arrived["deep"])


@each
def test_what_is_nested_a_hundred_deep_arrives(encoding: Encoding):
    assert encoding.decode(encoding.encode(nested(90))) == nested(90)


def test_plain_json_has_lists_and_base64_and_null():
    sent = {
        "array": np.array([[1.0, np.nan]]),
        "bytes": b"hello",
        1: float("inf"),
        "complex": 1j,
        "long": 2**70,
        "text": "\ud800",
    }

    arrived = json.loads(PLAIN_JSON.encode(sent))

    assert arrived == {
        "array": [[1.0, None]],
        "bytes": "aGVsbG8=",
        "1": None,
        "complex": [0.0, 1.0],
        "long": 2**70,
        "text": "?",
    }


@pytest.mark.parametrize("text", ['{"a": NaN}', '["\\ud800", NaN]', "[1e999]"])
def test_json_as_python_writes_it_is_read(text: str):
    arrived = PLAIN_JSON.decode(text)

    assert equal(arrived, json.loads(text))


def test_our_dialect_of_json_is_as_documented():
    sent = [
        float("nan"),
        float("-inf"),
        2**65,
        b"hello",
        np.array([1.0], "<f4"),
        1 + 0j,
        {1: "one"},
        {"$float": "nan"},
        {"a": 1},
    ]

    assert json.loads(JSON.encode(sent)) == [
        {"$float": "nan"},
        {"$float": "-inf"},
        {"$int": "36893488147419103232"},
        {"$bytes": "aGVsbG8="},
        {"$array": "AACAPw==", "dtype": "<f4", "shape": [1]},
        {"$complex": [1.0, 0.0]},
        {"$map": [[1, "one"]]},
        {"$dict": {"$float": "nan"}},
        {"a": 1},
    ]


def test_an_array_may_be_written_in_lists():
    text = '{"$array": [[1, 2], [3, {"$float": "nan"}]], "dtype": "<f4"}'

    arrived = JSON.decode(text)

    assert equal(arrived, np.array([[1, 2], [3, np.nan]], np.float32))


def test_unknown_marks_are_left_unchanged():
    assert JSON.decode('{"$ref": "#/$defs/a", "b": {"$float": "inf"}}') == {
        "$ref": "#/$defs/a",
        "b": float("inf"),
    }


def test_text_is_not_messagepack():
    with pytest.raises(WireError, match="must be binary, got text"):
        MSGPACK.decode("{}")
