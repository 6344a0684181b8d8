"""From type hints to specs: what each hint takes, refuses and turns into what."""

from __future__ import annotations

import collections
import enum
import math
import sys
import typing
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Protocol,
    TypedDict,
)

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from envweave.codec import AnySpec, Bounds, spec_from_hint
from envweave.errors import DefinitionError, SpecError

Metres = NewType("Metres", float)
Gear = NewType("Gear", Annotated[int, Bounds(1, 5)])  # type: ignore[valid-newtype]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Heading(enum.Enum):
    UP = (0, 1)
    DOWN = (0, -1)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Listed(enum.Enum):
    A = [1]  # noqa: RUF012 - an Enum's value that cannot be hashed
    B = [2]  # noqa: RUF012


class Point(NamedTuple):
    x: int
    y: int = 0


class Config(TypedDict):
    name: str
    size: NotRequired[int]


class Loose(TypedDict, total=False):
    name: str


class Quacks(Protocol):
    def quack(self) -> str: ...


class Opaque:
    def __init__(self, needed: int) -> None:
        self.needed = needed


def refusal(hint: Any, value: Any) -> str:
    with pytest.raises(SpecError) as caught:
        spec_from_hint(hint).check(value, "action")
    return str(caught.value)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, 3),
        (int, -(10**400)),
        (float, 0.5),
        (float, math.inf),
        (bool, False),
        (str, "abc"),
        (bytes, b"abc"),
        (None, None),
        (type(None), None),
        (Any, object),
        (object, [1, "a"]),
        (Literal["a", 1], 1),
        (Colour, Colour.RED),
        (list, [1, "a"]),
        (list[int], [1, 2]),
        (typing.List[int], [1, 2]),  # noqa: UP006 - authors still write it
        (Sequence[int], [1, 2]),
        (Iterable[int], [1, 2]),
        (tuple, (1, "a")),
        (typing.Tuple, (1, "a")),  # noqa: UP006
        (tuple[()], ()),
        (tuple[int, ...], (1, 2, 3)),
        (tuple[int, str], (1, "a")),
        (set, {1, 2}),
        (set[int], {1, 2}),
        (frozenset[int], frozenset({1, 2})),
        (AbstractSet[str], {"a"}),
        (dict, {"a": 1}),
        (dict[str, int], {"a": 1}),
        (dict[int, str], {1: "a"}),
        (Mapping[str, int], {"a": 1}),
        (MutableMapping, {"a": 1}),
        (int | None, None),
        (None | int, 3),
        (Optional[int], None),  # noqa: UP045
        (int | str, "a"),
        (Config, {"name": "a", "size": 1}),
        (Config, {"name": "a"}),
        (Loose, {}),
        (Point, Point(1, 2)),
        (Quacks, 3),
        (collections.deque, collections.deque([1])),
    ],
)
def test_a_value_of_the_hinted_type_is_taken_as_it_is(hint, value):
    read = spec_from_hint(hint).check(value)

    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("hint", "value", "read"),
    [
        (float, 3, 3.0),
        (float, np.float32(0.5), 0.5),
        (float, np.array(0.5), 0.5),
        (int, np.int16(7), 7),
        (int, np.array(7), 7),
        (int, Level.HIGH, 2),
        (bool, np.True_, True),
        (bool, np.array(True), True),
        (Literal[1, 2], np.int64(2), 2),
        (Literal["a"], np.str_("a"), "a"),
        (Literal[1, 2], np.array(1), 1),
        (Literal[Colour.RED], "red", Colour.RED),
        (Colour, "blue", Colour.BLUE),
        (Heading, (0, -1), Heading.DOWN),
        (Heading, [0, -1], Heading.DOWN),
        (Listed, [2], Listed.B),
        (Level, 2, Level.HIGH),
        (Metres, 3, 3.0),
        (bytes, "YWJj", b"abc"),
        (list[float], (1, 2), [1.0, 2.0]),
        (list[float], np.array([1, 2]), [1.0, 2.0]),
        (list[list[int]], np.array([[1], [2]]), [[1], [2]]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[int, float], [1, 2], (1, 2.0)),
        (set[int], [1, 2], {1, 2}),
        (frozenset[int], [1, 2], frozenset({1, 2})),
        (dict[int, float], {"1": 2}, {1: 2.0}),
        (dict[float, int], {"0.5": 2}, {0.5: 2}),
        (dict[Colour, int], {"red": 2}, {Colour.RED: 2}),
        (Point, [1, 2], Point(1, 2)),
        (Point, {"x": 1}, Point(1, 0)),
        (np.float32, 3, 3.0),
        (np.int8, 3, 3),
        (np.bool_, True, True),
    ],
)
def test_lossless_conversions_are_made(hint, value, read):
    converted = spec_from_hint(hint).check(value)

    assert converted == read
    assert type(converted) is type(read)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (int, 1.0, "action: 1.0 is not an int"),
        (int, True, "action: True is not an int"),
        (int, np.True_, f"action: {np.True_!r} is not an int"),
        (int, "1", "action: '1' is not an int"),
        (int, None, "action: None is not an int"),
        (float, True, "action: True is not a number"),
        (float, "1", "action: '1' is not a number"),
        (float, 1j, "action: 1j is not a number"),
        (bool, 1, "action: 1 is not a bool"),
        (bool, np.int8(1), f"action: {np.int8(1)!r} is not a bool"),
        (str, b"a", "action: b'a' is not a str"),
        (bytes, "not base64!", "action: 'not base64!' is neither bytes nor base64"),
        (bytes, 3, "action: 3 is not a bytes"),
        (None, 0, "action: 0 is not one of None"),
        (Literal[1, 2], True, "action: True is not one of 1, 2"),
        (Literal["a", "b"], ["a"], "action: ['a'] is not one of 'a', 'b'"),
        (Colour, "green", "action: 'green' is not one of 'red', 'blue'"),
        (Heading, [1, 1], "action: [1, 1] is not one of (0, 1), (0, -1)"),
        (list[int], "ab", "action: 'ab' is not a list"),
        (list[int], {1, 2}, "action: {1, 2} is not a list"),
        (list[int], [1, "a"], "action[1]: 'a' is not an int"),
        (list[list[int]], [[1], [2, None]], "action[1][1]: None is not an int"),
        (tuple[int, str], (1, "a", 2), "action: (1, 'a', 2) is not a tuple of 2"),
        (tuple[int, str], (1, 2), "action[1]: 2 is not a str"),
        (tuple[int, ...], 3, "action: 3 is not a tuple"),
        (tuple[()], [1], "action: [1] is not a tuple of 0"),
        (set[int], [1, 1], "action: [1, 1] is not a set: it has duplicates"),
        (set[int], "ab", "action: 'ab' is not a set"),
        (dict[str, int], [], "action: [] is not a dict"),
        (dict[str, int], {"a": "b"}, "action['a']: 'b' is not an int"),
        (dict[int, int], {"a": 1}, "action['a']: this key does not fit: 'a' is not an int"),
        (Config, {"nmae": "a"}, "action['nmae']: unknown key. Did you mean 'name'?"),
        (Config, {"size": 1}, "action['name']: this key is missing"),
        (Config, {"name": "a", "size": "b"}, "action['size']: 'b' is not an int"),
        (Point, {"z": 1}, "action.z: unknown field. Known: x, y."),
        (Point, {"y": 1}, "action.x: this field is missing"),
        (Point, (1, "a"), "action.y: 'a' is not an int"),
        (Point, (1, 2, 3), "action: (1, 2, 3) is not a Point of 2"),
        (Opaque, 3, "action: 3 is not a Opaque"),
        (int | None, "a", "action: 'a' is not an int; or 'a' is not one of None"),
        (np.int8, 200, "action: 200 is not between -128 and 127"),
    ],
)
def test_a_mismatch_is_reported_by_path(hint, value, message):
    assert refusal(hint, value) == message


def test_an_int_beyond_every_float_is_refused_as_a_float():
    assert "too large for a float" in refusal(float, 10**400)
    assert refusal(float, 10**5000) == "action: this int is too large for a float"


def test_a_long_value_is_cut_in_the_message():
    message = refusal(int, "a" * 10_000)

    assert len(message) < 150
    assert message.endswith("... is not an int")


@pytest.mark.parametrize("hint", [int | float, float | int])
def test_in_a_union_an_int_stays_an_int_and_a_float_a_float(hint):
    spec = spec_from_hint(hint)

    assert [type(spec.check(value)) for value in (2**60 + 1, 0.5)] == [int, float]


@pytest.mark.parametrize("hint", [int | bool, bool | int])
def test_in_a_union_a_bool_stays_a_bool(hint):
    assert spec_from_hint(hint).check(True) is True
    assert spec_from_hint(hint).check(1) is not True


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs the `type` statement")
def test_an_alias_is_what_it_stands_for():
    names: dict[str, Any] = {}
    exec("type Count = int\ntype Json = dict[str, Json] | int\ntype Many[T] = list[T]", names)
    count = names["Count"]

    assert refusal(count, "a") == "action: 'a' is not an int"
    assert refusal(names["Many"][int], ["a"]) == "action[0]: 'a' is not an int"
    assert "IntSpec(0, 1)" in repr(spec_from_hint(Annotated[count | None, Bounds(0, 1)]))
    assert spec_from_hint(names["Json"]).check({"a": {"b": 1}}) == {"a": {"b": 1}}


# Bounds


@pytest.mark.parametrize(
    ("mark", "fits", "beyond"),
    [
        (Bounds(0, 5), [0, 5], [-1, 6]),
        (Bounds(0.5, 2.5), [1, 2], [0, 3]),
        (Bounds(low=0), [0, 10**30], [-1]),
        (Bounds(0, math.inf), [0, 10**30], [-1]),
        (msgspec.Meta(ge=0, le=5), [0, 5], [-1, 6]),
        (msgspec.Meta(gt=0, lt=5), [1, 4], [0, 5]),
        (msgspec.Meta(gt=0.5, lt=2.5), [1, 2], [0, 3]),
    ],
)
def test_bounds_of_an_int_are_inclusive_unless_exclusive(mark, fits, beyond):
    spec = spec_from_hint(Annotated[int, mark])

    assert [spec.contains(value) for value in fits] == [True] * len(fits)
    assert [spec.contains(value) for value in beyond] == [False] * len(beyond)


@pytest.mark.parametrize(
    ("mark", "fits", "beyond"),
    [
        (Bounds(0, 1), [0, 1.0], [-1e-300, 1.0000000000000002]),
        (msgspec.Meta(gt=0, lt=1), [5e-324, 0.9999999999999999], [0, 0.0, 1, 1.0]),
        (msgspec.Meta(ge=0), [0.0, math.inf], [-0.1, -math.inf]),
        (Bounds(-math.inf, 0), [-math.inf, 0], [1, math.inf]),
    ],
)
def test_bounds_of_a_float_are_as_declared_and_exclude_nan(mark, fits, beyond):
    spec = spec_from_hint(Annotated[float, mark])

    assert [spec.contains(value) for value in fits] == [True] * len(fits)
    assert [spec.contains(value) for value in [*beyond, math.nan, np.float32("nan")]] == [False] * (
        len(beyond) + 2
    )


def test_nan_is_a_float_without_bounds():
    assert math.isnan(spec_from_hint(float).check(math.nan))


def test_marks_of_several_makers_narrow_each_other():
    @dataclass(frozen=True)
    class Ge:  # as in annotated_types
        ge: float

    @dataclass(frozen=True)
    class Field:  # as in pydantic
        metadata: list[Any]

    hint = Annotated[int, Bounds(0, 9), Ge(3), Field([Ge(4)]), msgspec.Meta(le=20), "a note"]

    assert repr(spec_from_hint(hint)) == "IntSpec(4, 9)"


def test_bounds_around_a_union_are_those_of_its_numbers():
    spec = spec_from_hint(Annotated[float | None, Bounds(0, 1)])

    assert [spec.contains(value) for value in (0.5, None, 2.0)] == [True, True, False]


def test_bounds_within_a_new_type_count():
    assert repr(spec_from_hint(Gear)) == "IntSpec(1, 5)"
    assert repr(spec_from_hint(Annotated[Gear, Bounds(3, 9)])) == "IntSpec(3, 5)"


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        (Annotated[int, Bounds(5, 3)], "No number is between 5 and 3"),
        (Annotated[float, Bounds(math.nan)], "No number is at least nan"),
        (Annotated[float, Bounds(math.inf)], "No number is at least inf"),
        (Annotated[str, Bounds(0, 5)], "Bounds do not apply to <class 'str'>"),
        (Annotated[bool, Bounds(0, 1)], "Bounds do not apply to <class 'bool'>"),
        (Annotated[list[int], Bounds(0, 1)], r"Bounds do not apply to list\[int\]"),
        (Annotated[str | None, Bounds(0, 1)], "Bounds do not apply to"),
        (Annotated[int, Bounds(0, 1, shape=(3,))], "neither shape nor dtype"),
        (Annotated[np.ndarray, Bounds(dtype="flaot32")], "'flaot32' is not a numpy dtype"),
        ("int", "'int' is a string"),
    ],
)
def test_hints_that_make_no_sense_are_refused_where_they_are_read(hint, message):
    with pytest.raises(DefinitionError, match=message):
        spec_from_hint(hint)


# Arrays


def test_an_array_hint_gives_dtype_shape_and_bounds():
    plain = spec_from_hint(np.ndarray)
    typed = spec_from_hint(npt.NDArray[np.float32])
    family = spec_from_hint(npt.NDArray[np.floating[Any]])
    bounded = spec_from_hint(
        Annotated[npt.NDArray[np.int8], Bounds(0.5, 2, shape=(3,)), msgspec.Meta(lt=2)]
    )

    assert repr(plain) == "ArraySpec(None, None, None, None)"
    assert repr(typed) == "ArraySpec(None, float32, None, None)"
    assert repr(family) == "ArraySpec(None, None, None, None)"
    assert repr(bounded) == "ArraySpec((3,), int8, 1, 1)"


def test_an_array_above_zero_excludes_zero_in_its_own_dtype():
    spec = spec_from_hint(Annotated[npt.NDArray[np.float32], msgspec.Meta(gt=0)])

    assert not spec.contains(np.zeros(2, np.float32))
    assert spec.contains(np.full(2, 1e-40, np.float32))


def test_an_unknown_class_takes_its_instances():
    opaque = Opaque(1)

    assert spec_from_hint(Opaque).check(opaque) is opaque
    assert isinstance(spec_from_hint(Quacks), AnySpec)
