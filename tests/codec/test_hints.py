"""From type hints to specs: what each hint takes, refuses and turns into what."""

from __future__ import annotations

import collections
import enum
import math
import typing
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import InitVar, dataclass, field
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Protocol,
    Self,
    TypedDict,
    TypeVar,
)

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

import envweave as ew
from envweave.codec import AnySpec, Bounds, spec_from_hint
from envweave.errors import DefinitionError, SpecError

T = TypeVar("T")
Whole = TypeVar("Whole", bound=int)
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
def test_what_loses_nothing_is_converted(hint, value, read):
    converted = spec_from_hint(hint).check(value)

    assert converted == read
    assert type(converted) is type(read)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (int, 1.0, "action: 1.0 is not an int"),
        (int, True, "action: True is not an int"),
        (int, np.True_, "action: np.True_ is not an int"),
        (int, "1", "action: '1' is not an int"),
        (int, None, "action: None is not an int"),
        (float, True, "action: True is not a number"),
        (float, "1", "action: '1' is not a number"),
        (float, 1j, "action: 1j is not a number"),
        (bool, 1, "action: 1 is not a bool"),
        (bool, np.int8(1), "action: np.int8(1) is not a bool"),
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
        (set[int], [1, 1], "action: [1, 1] is not a set: an item comes twice"),
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
def test_what_does_not_fit_is_refused_by_path(hint, value, message):
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
def test_bounds_of_an_int_include_what_they_say(mark, fits, beyond):
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
def test_bounds_of_a_float_include_what_they_say_and_never_nan(mark, fits, beyond):
    spec = spec_from_hint(Annotated[float, mark])

    assert [spec.contains(value) for value in fits] == [True] * len(fits)
    assert [spec.contains(value) for value in [*beyond, math.nan, np.float32("nan")]] == [False] * (
        len(beyond) + 2
    )


def test_nan_is_a_float_where_nothing_is_said_of_bounds():
    assert math.isnan(spec_from_hint(float).check(math.nan))


def test_marks_of_several_makers_narrow_each_other():
    @dataclass(frozen=True)
    class Ge:  # as in annotated_types
        ge: float

    @dataclass(frozen=True)
    class Field:  # as in pydantic
        metadata: list[Any]

    hint = Annotated[int, Bounds(0, 9), Ge(3), Field([Ge(4)]), msgspec.Meta(le=20), "a note"]

    assert repr(spec_from_hint(hint)) == "Integer(4, 9)"


def test_bounds_around_a_union_are_those_of_its_numbers():
    spec = spec_from_hint(Annotated[float | None, Bounds(0, 1)])

    assert [spec.contains(value) for value in (0.5, None, 2.0)] == [True, True, False]


def test_bounds_within_a_new_type_count():
    assert repr(spec_from_hint(Gear)) == "Integer(1, 5)"
    assert repr(spec_from_hint(Annotated[Gear, Bounds(3, 9)])) == "Integer(3, 5)"


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        (Annotated[int, Bounds(5, 3)], "No number is between 5 and 3"),
        (Annotated[float, Bounds(math.nan)], "No number is at least nan"),
        (Annotated[float, Bounds(math.inf)], "No number is at least inf"),
        (Annotated[str, Bounds(0, 5)], "Bounds say nothing about <class 'str'>"),
        (Annotated[bool, Bounds(0, 1)], "Bounds say nothing about <class 'bool'>"),
        (Annotated[list[int], Bounds(0, 1)], r"Bounds say nothing about list\[int\]"),
        (Annotated[str | None, Bounds(0, 1)], "Bounds say nothing about"),
        (Annotated[int, Bounds(0, 1, shape=(3,))], "neither shape nor dtype"),
        (Annotated[np.ndarray, Bounds(dtype="flaot32")], "'flaot32' is no numpy dtype"),
        ("int", "'int' is a text"),
    ],
)
def test_hints_that_make_no_sense_are_refused_where_they_are_read(hint, message):
    with pytest.raises(DefinitionError, match=message):
        spec_from_hint(hint)


# Arrays


def test_an_array_hint_says_dtype_shape_and_bounds():
    plain = spec_from_hint(np.ndarray)
    typed = spec_from_hint(npt.NDArray[np.float32])
    family = spec_from_hint(npt.NDArray[np.floating[Any]])
    bounded = spec_from_hint(
        Annotated[npt.NDArray[np.int8], Bounds(0.5, 2, shape=(3,)), msgspec.Meta(lt=2)]
    )

    assert repr(plain) == "Array(None, None, None, None)"
    assert repr(typed) == "Array(None, float32, None, None)"
    assert repr(family) == "Array(None, None, None, None)"
    assert repr(bounded) == "Array((3,), int8, 1, 1)"


def test_an_array_above_zero_excludes_zero_in_its_own_dtype():
    spec = spec_from_hint(Annotated[npt.NDArray[np.float32], msgspec.Meta(gt=0)])

    assert not spec.contains(np.zeros(2, np.float32))
    assert spec.contains(np.full(2, 1e-40, np.float32))


# Dataclasses


@dataclass
class Inner(ew.Action):
    delta: int
    colour: Colour = Colour.RED


@dataclass
class Outer(ew.Action):
    inner: Inner
    many: list[Inner] = field(default_factory=list)
    maybe: Inner | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    speed: float
    CLASS_WIDE: ClassVar[int] = 3
    mode: Final[int] = 1


@dataclass
class Derived:
    a: int
    total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.total = self.a * 2


@dataclass
class Scaled:
    value: float
    scale: InitVar[float]
    shift: InitVar[float] = 0.0

    def __post_init__(self, scale: float, shift: float) -> None:
        self.value = self.value * scale + shift


@dataclass
class Even:
    n: int
    seen: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seen = [*self.seen, self.n]
        if self.n % 2:
            raise ValueError(f"{self.n} is odd")


@dataclass
class Careless:
    n: Annotated[int, Bounds(0, 9)] = 0

    def __post_init__(self) -> None:
        len(self.n)  # type: ignore[arg-type]


@dataclass
class Nothing:
    pass


@dataclass
class Loosely:
    n: int = None  # type: ignore[assignment]
    speed: float = 1


@dataclass
class Chain:
    value: int
    next: Chain | None = None
    others: list[Chain] = field(default_factory=list)


@dataclass
class Ours:
    next: Self | None = None


@dataclass
class Ping:
    pong: Pong | None = None


@dataclass
class Pong:
    ping: Ping | None = None


@dataclass
class Box(Generic[T]):
    item: T
    items: list[T] = field(default_factory=list)


@dataclass
class IntBox(Box[int]):
    pass


@dataclass
class ListBox(Box[list[T]]):
    first: T | None = None


@dataclass
class WholeBox(Generic[Whole]):
    item: Whole


@dataclass
class Unreadable:
    value: Missing  # type: ignore[name-defined]  # noqa: F821


def test_a_dict_becomes_the_dataclass_all_the_way_down():
    given = {"inner": {"delta": 1}, "many": [{"delta": 2, "colour": "blue"}], "maybe": None}

    read = spec_from_hint(Outer).check(given)

    assert read == Outer(Inner(1), [Inner(2, Colour.BLUE)], None)
    assert given["inner"] == {"delta": 1}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"inner": {"dleta": 1}},
            "action.inner.dleta: unknown field. Did you mean 'delta'?",
        ),
        (
            {"inner": {"delta": 1}, "many": [{"delta": 1}, {"dleta": 1}]},
            "action.many[1].dleta: unknown field. Did you mean 'delta'?",
        ),
        (
            {"inner": {"delta": 1}, "maybe": {"dleta": 1}},
            "action.maybe.dleta: unknown field. Did you mean 'delta'?",
        ),
        ({"inner": {}}, "action.inner.delta: this field is missing"),
        ({}, "action.inner: this field is missing"),
        ({"inner": {"delta": "a"}}, "action.inner.delta: 'a' is not an int"),
        (Outer(Inner("a")), "action.inner.delta: 'a' is not an int"),  # type: ignore[arg-type]
        (Outer({"dleta": 1}), "action.inner.dleta: unknown field. Did you mean 'delta'?"),  # type: ignore[arg-type]
        (
            {"zzz": 1, "inner": {}},
            "action.zzz: unknown field. Known: inner, many, maybe, metadata.",
        ),
        ({1: 2}, "action.1: unknown field. Known: inner, many, maybe, metadata."),
        (
            3,
            "action: int 3 is neither Outer nor a dict of its fields "
            "(inner, many, maybe, metadata)",
        ),
    ],
)
def test_what_is_wrong_in_a_nested_dataclass_is_named_by_its_full_path(value, message):
    assert refusal(Outer, value) == message


def test_an_instance_that_fits_is_passed_on_itself():
    action = Outer(Inner(1), [Inner(2)])

    assert spec_from_hint(Outer).check(action) is action


def test_an_instance_is_never_written_to():
    action = Frozen(speed=np.float32(2))  # type: ignore[arg-type]

    read = spec_from_hint(Frozen).check(action)

    assert (read, type(read.speed), type(action.speed)) == (Frozen(speed=2.0), float, np.float32)


def test_an_instance_of_a_subclass_is_taken_as_it_is():
    @dataclass
    class Finer(Inner):
        extra: str = "a"

    action = Finer(1, extra="b")

    assert spec_from_hint(Inner).check(action) is action


def test_a_subclass_stays_one_when_a_field_is_converted():
    @dataclass
    class Finer(Inner):
        extra: str = "a"

    read = spec_from_hint(Inner).check(Finer(np.int64(1), extra="b"))  # type: ignore[arg-type]

    assert read == Finer(1, extra="b")


def test_a_field_that_was_deleted_is_missing():
    action = Inner(1)
    del action.delta

    assert refusal(Inner, action) == "action.delta: this field is missing"


def test_class_variables_are_no_fields():
    assert refusal(Frozen, {"speed": 1, "CLASS_WIDE": 3}).startswith("action.CLASS_WIDE: unknown")
    assert refusal(Frozen, {"speed": 1, "mode": "a"}) == "action.mode: 'a' is not an int"


def test_a_dataclass_without_fields_takes_an_empty_dict():
    spec = spec_from_hint(Nothing)

    assert spec.check({}) == spec.check(Nothing()) == Nothing()
    assert refusal(Nothing, {"a": 1}) == "action.a: unknown field. It has none."


def test_what_only_the_constructor_takes_is_taken_from_a_dict():
    spec = spec_from_hint(Scaled)

    assert spec.check({"value": 2, "scale": 3}) == Scaled(2, 3)
    assert spec.check(Scaled(2, 3)) == Scaled(6, 1)
    assert refusal(Scaled, {"value": 2}) == "action.scale: this field is missing"
    assert refusal(Scaled, {"value": 2, "scale": "a"}) == "action.scale: 'a' is not a number"
    assert refusal(Scaled, {"value": 2, "scael": 1}).endswith("Did you mean 'scale'?")


def test_converting_an_instance_does_not_make_it_anew():
    """`Scaled` could not be: its `scale` is not kept."""
    action = Scaled(1, 2)
    action.value = 5  # an int for a float

    assert spec_from_hint(Scaled).check(action) == Scaled(5.0, 1)


def test_what_the_constructor_does_not_take_may_still_come_back_from_plain_data():
    spec = spec_from_hint(Derived)

    assert spec.check({"a": 2}).total == 4
    assert spec.check({"a": 2, "total": 4}) == Derived(2)
    assert refusal(Derived, {"a": 2, "total": "x"}) == "action.total: 'x' is not an int"


@pytest.mark.parametrize(
    ("hint", "value", "start"),
    [
        (Even, {"n": 3}, "action: Even refuses it: ValueError: 3 is odd"),
        (list[Even], [{"n": 2}, {"n": 3}], "action[1]: Even refuses it: ValueError: 3 is odd"),
        (Careless, {"n": 3}, "action: Careless refuses it: TypeError: object of type 'int' has"),
        (Careless, {}, "action: Careless refuses it: TypeError: object of type 'int' has"),
    ],
)
def test_what_a_post_init_raises_is_the_reason_of_the_refusal(hint, value, start):
    message = refusal(hint, value)

    assert message.startswith(start)
    assert "test_hints.py:" in message


def test_a_post_init_meets_checked_values_and_runs_once():
    spec = spec_from_hint(Even)

    assert spec.check({"n": np.int64(2)}).seen == [2]
    assert refusal(Even, {"n": "2"}) == "action.n: '2' is not an int"
    assert spec.check(Even(2)).seen == [2]


def test_a_refused_action_leaves_the_episode_unharmed():
    class Evens(ew.Environment):
        action_spec = spec_from_hint(Even)

        def reset(self) -> tuple[int, dict[str, Any]]:
            return 0, {}

        def step(self, action):
            return action.n, 1.0, False, False, {}

    with ew.make(Evens()) as env:
        env.reset()
        with pytest.raises(ew.errors.ActionError, match=r"^action: Even refuses it: ValueError"):
            env.step({"n": 3})

        assert env.step({"n": 4}).step_index == 1


def test_a_default_of_none_may_be_given_and_other_defaults_are_converted():
    spec = spec_from_hint(Loosely)

    assert spec.check({}) == spec.check(Loosely()) == Loosely(None, 1.0)  # type: ignore[arg-type]
    assert type(spec.check({}).speed) is float
    assert spec.check({"n": None}).n is None


def test_a_dataclass_within_itself_is_read_to_every_depth():
    given = {"value": 1, "next": {"value": 2, "next": {"value": 3}}, "others": [{"value": 4}]}

    read = spec_from_hint(Chain).check(given)

    assert read == Chain(1, Chain(2, Chain(3)), [Chain(4)])
    assert refusal(Chain, {"value": 1, "next": {"value": 2, "nxet": None}}) == (
        "action.next.nxet: unknown field. Did you mean 'next'?"
    )


def test_recursion_by_self_by_turns_and_within_a_function_is_read_too():
    @dataclass
    class Local:
        next: Local | None = None

    assert spec_from_hint(Ours).check({"next": {"next": {}}}) == Ours(Ours(Ours()))
    assert spec_from_hint(Ping).check({"pong": {"ping": {}}}) == Ping(Pong(Ping()))
    assert spec_from_hint(Local).check({"next": {}}) == Local(Local())


def test_type_variables_are_filled_in():
    assert refusal(Box[int], {"item": "a"}) == "action.item: 'a' is not an int"
    assert refusal(Box[int], {"item": 1, "items": ["a"]}) == "action.items[0]: 'a' is not an int"
    assert refusal(IntBox, {"item": "a"}) == "action.item: 'a' is not an int"
    assert refusal(ListBox[int], {"item": 1}) == "action.item: 1 is not a list"
    assert refusal(ListBox[int], {"item": ["a"]}) == "action.item[0]: 'a' is not an int"
    assert "action.first: 'a' is not an int" in refusal(ListBox[int], {"item": [], "first": "a"})
    assert refusal(WholeBox, {"item": "a"}) == "action.item: 'a' is not an int"
    assert spec_from_hint(Box).check({"item": "a"}) == Box("a")
    assert spec_from_hint(Box[Box[int]]).check({"item": {"item": 1}}) == Box(Box(1))


def test_in_a_union_of_dataclasses_the_one_that_was_meant_is_named():
    hint = Inner | Frozen | None

    assert spec_from_hint(hint).check({"speed": 1}) == Frozen(speed=1.0)
    assert spec_from_hint(hint).check(Frozen(speed=1.0)) == Frozen(speed=1.0)
    assert refusal(hint, {"delta": 1, "colou": "red"}).startswith("action.colou: unknown field.")
    assert refusal(hint, {"speed": "a"}) == "action.speed: 'a' is not a number"
    assert refusal(hint, {"spede": 1}).count("; or ") == 2


def test_hints_that_cannot_be_evaluated_are_refused_with_what_to_do():
    with pytest.raises(DefinitionError, match=r"type hints of Unreadable .*'Missing'.*top level"):
        spec_from_hint(Unreadable)


def test_an_unknown_class_takes_its_instances():
    opaque = Opaque(1)

    assert spec_from_hint(Opaque).check(opaque) is opaque
    assert isinstance(spec_from_hint(Quacks), AnySpec)


def test_specs_say_what_they_are():
    spec = spec_from_hint(Inner)

    assert repr(spec).startswith("Record(Inner, {'delta': Integer(None, None), 'colour': Choice(")
    assert repr(spec_from_hint(Chain)).count("Recursion(Chain)") == 2
