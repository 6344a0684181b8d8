"""Dataclasses as hints: from dicts and instances, nested, recursive and generic."""

from __future__ import annotations

import enum
from dataclasses import InitVar, dataclass, field
from typing import Annotated, Any, ClassVar, Final, Generic, Self, TypeVar

import numpy as np
import pytest

import envweave as ew
from envweave.codec import Bounds, spec_from_hint
from envweave.errors import DefinitionError, SpecError

T = TypeVar("T")
Whole = TypeVar("Whole", bound=int)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


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


def refusal(hint: Any, value: Any) -> str:
    with pytest.raises(SpecError) as caught:
        spec_from_hint(hint).check(value, "action")
    return str(caught.value)


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
def test_an_error_in_a_nested_dataclass_has_its_full_path(value, message):
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


def test_class_variables_are_not_fields():
    assert refusal(Frozen, {"speed": 1, "CLASS_WIDE": 3}).startswith("action.CLASS_WIDE: unknown")
    assert refusal(Frozen, {"speed": 1, "mode": "a"}) == "action.mode: 'a' is not an int"


def test_a_dataclass_without_fields_takes_an_empty_dict():
    spec = spec_from_hint(Nothing)

    assert spec.check({}) == spec.check(Nothing()) == Nothing()
    assert refusal(Nothing, {"a": 1}) == "action.a: unknown field. It has none."


def test_init_only_fields_are_read_from_a_dict():
    spec = spec_from_hint(Scaled)

    assert spec.check({"value": 2, "scale": 3}) == Scaled(2, 3)
    assert spec.check(Scaled(2, 3)) == Scaled(6, 1)
    assert refusal(Scaled, {"value": 2}) == "action.scale: this field is missing"
    assert refusal(Scaled, {"value": 2, "scale": "a"}) == "action.scale: 'a' is not a number"
    assert refusal(Scaled, {"value": 2, "scael": 1}).endswith("Did you mean 'scale'?")


def test_converting_an_instance_does_not_call_its_constructor():
    """`Scaled` could not be: its `scale` is not kept."""
    action = Scaled(1, 2)
    action.value = 5  # an int for a float

    assert spec_from_hint(Scaled).check(action) == Scaled(5.0, 1)


def test_derived_fields_may_come_back_from_plain_data():
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
def test_an_error_of_post_init_is_the_reason_of_the_refusal(hint, value, start):
    message = refusal(hint, value)

    assert message.startswith(start)
    assert "test_records.py:" in message


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


def test_a_dict_that_never_ends_is_refused():
    given: dict[str, Any] = {"value": 1}
    given["next"] = given

    message = refusal(Chain, given)

    assert message.startswith("action.next.next.next")
    assert ": nested too deeply, or contains itself" in message


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


def test_the_likeliest_dataclass_of_a_union_is_named():
    hint = Inner | Frozen | None

    assert spec_from_hint(hint).check({"speed": 1}) == Frozen(speed=1.0)
    assert spec_from_hint(hint).check(Frozen(speed=1.0)) == Frozen(speed=1.0)
    assert refusal(hint, {"delta": 1, "colou": "red"}).startswith("action.colou: unknown field.")
    assert refusal(hint, {"speed": "a"}) == "action.speed: 'a' is not a number"
    assert refusal(hint, {"spede": 1}).count("; or ") == 2


def test_hints_that_cannot_be_evaluated_are_refused_with_what_to_do():
    with pytest.raises(DefinitionError, match=r"type hints of Unreadable .*'Missing'.*top level"):
        spec_from_hint(Unreadable)


def test_specs_have_readable_reprs():
    spec = spec_from_hint(Inner)

    assert repr(spec).startswith(
        "DataclassSpec(Inner, {'delta': IntSpec(None, None), 'colour': EnumSpec("
    )
    assert repr(spec_from_hint(Chain)).count("RecursiveSpec(Chain)") == 2
