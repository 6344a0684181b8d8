"""Specs one by one: bounds, arrays, samples, schemas, and the words of a refusal."""

from __future__ import annotations

import abc
import datetime
import math
import pickle
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from envweave.codec import AgentsSpec, AnySpec, Bounds, spec_from_hint
from envweave.codec.containers import DictSpec, ListSpec, TupleSpec, UnionSpec
from envweave.codec.scalars import (
    ArraySpec,
    BoolSpec,
    EnumSpec,
    FloatSpec,
    InstanceSpec,
    IntSpec,
    StrSpec,
)
from envweave.errors import DefinitionError, SpecError


@dataclass
class Ordered:
    """Refuses three samples of four."""

    low: Annotated[int, Bounds(0, 9)]
    high: Annotated[int, Bounds(0, 9)]

    def __post_init__(self) -> None:
        if self.low * 2 > self.high:
            raise ValueError("too low")


@dataclass
class Never:
    n: int

    def __post_init__(self) -> None:
        raise ValueError("never enough")


@dataclass
class Stamped:
    n: int
    extra: Any = None
    at: datetime.date = datetime.date(2000, 1, 1)
    maybe: Any | None = None
    notes: dict[str, Any] = field(default_factory=lambda: {"a": 1})


@dataclass
class Tree:
    value: int
    left: Tree | None
    children: list[Tree]
    pair: tuple[Tree, Tree] | None = None


@dataclass
class Endless:
    inside: Endless


@dataclass
class Marker:
    pass


class Abstract(abc.ABC):
    @abc.abstractmethod
    def needed(self) -> None: ...


# Samples


SAMPLED = [
    IntSpec(),
    IntSpec(5, 5),
    IntSpec(low=-3),
    IntSpec(high=10**30),
    IntSpec(-(2**63), 2**63 - 1),
    IntSpec(0, 2**64),
    IntSpec(-(10**400), 10**400),
    FloatSpec(),
    FloatSpec(0.25, 0.25),
    FloatSpec(low=1e300),
    FloatSpec(high=-5),
    FloatSpec(-math.inf, 3),
    FloatSpec(-1.7e308, 1.7e308),
    BoolSpec(),
    StrSpec(),
    StrSpec(binary=True),
    EnumSpec(["a", 1, None]),
    ArraySpec(),
    ArraySpec((2, 3)),
    ArraySpec((), "float32", 0.1, 0.1),
    ArraySpec((), "int64"),
    ArraySpec((), "bool"),
    ArraySpec((4, 4, 3), "uint8"),
    ArraySpec((3,), "uint8", high=0),
    ArraySpec((3,), "uint8", low=255),
    ArraySpec((3,), "uint8", -5, 300),
    ArraySpec((3,), "int8", low=127),
    ArraySpec((3,), "int8", high=-128),
    ArraySpec((3,), "int16", 0.5, 1.5),
    ArraySpec((3,), "int64", -(2**63), 2**63 - 1),
    ArraySpec((3,), "uint64", 0, 2**64 - 1),
    ArraySpec((3,), "uint64", low=2**64 - 1),
    ArraySpec((2,), "int64", np.array([0, -(2**63)]), np.array([0, 2**63 - 1])),
    ArraySpec((2,), "uint64", np.array([0, 5]), np.array([np.inf, 5.0])),
    ArraySpec((2,), ">i4", 0, 5),
    ArraySpec((2,), "float32", np.array([-np.inf, 0.0]), np.array([np.inf, 0.1])),
    ArraySpec((2,), "float64", -1.7e308, 1.7e308),
    ArraySpec((2,), "bool"),
    ArraySpec((9,), "bool", 1, 1),
    ArraySpec((2,), "bool", np.array([0, 1]), 1),
    ArraySpec((0, 3), "int8"),
    ArraySpec((2,), "complex128"),
    ListSpec(IntSpec(0, 9)),
    ListSpec(IntSpec(0, 2), kind=set),
    ListSpec(AnySpec()),
    TupleSpec([IntSpec(), StrSpec()]),
    DictSpec(),
    DictSpec(fields={"a": IntSpec(), "b": AnySpec()}, optional=["b"]),
    UnionSpec([IntSpec(), AnySpec(), EnumSpec([None])]),
    InstanceSpec(Marker),
    AgentsSpec({"a": IntSpec(0, 3), "b": BoolSpec()}),
    spec_from_hint(Ordered),
    spec_from_hint(Stamped),
    spec_from_hint(Tree),
]


@pytest.mark.parametrize("spec", SAMPLED, ids=repr)
def test_every_sample_fits(spec):
    rng = np.random.default_rng(0)

    for _ in range(30):
        drawn = spec.sample(rng)
        spec.check(drawn)


@pytest.mark.parametrize("spec", SAMPLED, ids=repr)
def test_the_same_generator_state_draws_the_same(spec):
    def draw() -> list[str]:
        rng = np.random.default_rng(7)
        return [repr(spec.sample(rng)) for _ in range(5)]

    assert draw() == draw()


@pytest.mark.parametrize(
    "spec", [ArraySpec((), "int8"), ArraySpec((), "float32"), ArraySpec((), "bool")]
)
def test_a_sample_without_dimensions_is_still_an_array(spec):
    drawn = spec.sample(np.random.default_rng(0))

    assert (type(drawn), drawn.shape, drawn.dtype) == (np.ndarray, (), spec.dtype)


def test_samples_reach_both_ends_of_the_bounds():
    rng = np.random.default_rng(0)

    assert {IntSpec(-1, 1).sample(rng) for _ in range(100)} == {-1, 0, 1}
    assert set(np.unique(ArraySpec((1000,), "uint8", 254, 255).sample(rng))) == {254, 255}
    assert set(np.unique(ArraySpec((10_000,), "int8").sample(rng))) == set(range(-128, 128))
    assert {IntSpec(2**70, 2**70 + 1).sample(rng) for _ in range(50)} == {2**70, 2**70 + 1}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (AnySpec(), "Annotate the action parameter"),
        (TupleSpec([AnySpec()]), "untyped spec"),
        (InstanceSpec(datetime.date), "A date cannot be sampled: it cannot be made without"),
        (
            spec_from_hint(Never),
            r"Never refused 100 samples; the last error was: ValueError: never eno",
        ),
        (spec_from_hint(Endless), "Endless contains another Endless endlessly"),
    ],
)
def test_a_spec_that_cannot_be_sampled_gives_the_reason(spec, message):
    with pytest.raises(SpecError, match=message):
        spec.sample(np.random.default_rng(0))


def test_a_field_that_cannot_be_sampled_keeps_its_default():
    drawn = spec_from_hint(Stamped).sample(np.random.default_rng(0))

    assert (drawn.at, drawn.extra, drawn.notes) == (datetime.date(2000, 1, 1), None, {"a": 1})


def test_a_sample_of_a_dataclass_within_itself_comes_to_an_end():
    drawn = spec_from_hint(Tree).sample(np.random.default_rng(0))

    assert (drawn.left, drawn.children, drawn.pair) == (None, [], None)


def test_whether_a_spec_can_be_sampled_is_known_without_trying():
    hopeless = [
        spec_from_hint(Endless),
        AnySpec(),
        InstanceSpec(datetime.date),
        InstanceSpec(Abstract),
    ]

    assert [spec for spec in SAMPLED if not spec.can_sample] == []
    assert [spec for spec in hopeless if spec.can_sample] == []


@pytest.mark.parametrize("spec", SAMPLED, ids=repr)
def test_a_spec_can_go_to_another_process(spec):
    twin = pickle.loads(pickle.dumps(spec))

    drawn, same = (one.sample(np.random.default_rng(0)) for one in (spec, twin))
    assert repr(twin) == repr(spec)
    assert repr(same) == repr(drawn)


# Definitions that allow nothing


@pytest.mark.parametrize(
    "define",
    [
        lambda: IntSpec(3, 2),
        lambda: FloatSpec(1.0, 0.5),
        lambda: FloatSpec(low=math.nan),
        lambda: FloatSpec(high=-math.inf),
        lambda: ArraySpec((2,), "int8", 3, 2),
        lambda: ArraySpec((2,), "int8", np.array([0, 3]), np.array([1, 2])),
        lambda: ArraySpec((2,), "uint8", low=256),
        lambda: ArraySpec((2,), "bool", high=-1),
        lambda: EnumSpec([]),
        lambda: ArraySpec(dtype="nonsense"),
    ],
)
def test_a_spec_that_nothing_fits_cannot_be_made(define):
    with pytest.raises(DefinitionError):
        define()


# Several agents


def test_an_agent_is_looked_up_by_name():
    spec = AgentsSpec({"left": IntSpec(0, 1), "right": IntSpec(0, 2)})

    assert spec["right"] is spec.agents["right"]
    assert spec.check({"left": np.int8(1)}) == {"left": 1}
    with pytest.raises(SpecError, match=r"There is no agent 'rihgt'. Did you mean 'right'\?"):
        spec["rihgt"]
    with pytest.raises(SpecError, match=r"^actions: there is no agent 'up'; known: left, right$"):
        spec.check({"up": 1}, "actions")
    with pytest.raises(SpecError, match=r"^actions\['left'\]: 5 is not between 0 and 1$"):
        spec.check({"left": 5}, "actions")
    with pytest.raises(SpecError, match=r"^actions: 3 is not a dict keyed by agent id$"):
        spec.check(3, "actions")


# JSON Schema


@pytest.mark.parametrize(
    ("spec", "schema"),
    [
        (IntSpec(0, 10**400), {"type": "integer", "minimum": 0, "maximum": 10**400}),
        (IntSpec(low=1), {"type": "integer", "minimum": 1}),
        (FloatSpec(-math.inf, 1), {"type": "number", "maximum": 1}),
        (BoolSpec(), {"type": "boolean"}),
        (StrSpec(), {"type": "string"}),
        (StrSpec(binary=True), {"type": "string", "contentEncoding": "base64"}),
        (spec_from_hint(Literal[1, "a", None]), {"enum": [1, "a", None]}),
        (ListSpec(IntSpec(), kind=tuple), {"type": "array", "items": {"type": "integer"}}),
        (
            ListSpec(StrSpec(), kind=set),
            {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        ),
        (TupleSpec([]), {"type": "array", "maxItems": 0}),
        (
            TupleSpec([IntSpec(), StrSpec()]),
            {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "items": False,
                "minItems": 2,
            },
        ),
        (
            DictSpec(FloatSpec(), key=IntSpec()),
            {
                "type": "object",
                "additionalProperties": {"type": "number"},
                "propertyNames": {"pattern": "^-?[0-9]+$"},
            },
        ),
        (
            DictSpec(fields={"a": StrSpec(), "b": StrSpec()}, optional=["b"]),
            {
                "type": "object",
                "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                "required": ["a"],
                "additionalProperties": False,
            },
        ),
        (
            ArraySpec((2, 1), "uint8", 0, 5),
            {
                "type": "array",
                "minItems": 2,
                "maxItems": 2,
                "items": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 1,
                    "items": {"type": "integer", "minimum": 0, "maximum": 5},
                },
            },
        ),
        (ArraySpec(), {"type": "array"}),
        (AnySpec(), {}),
        (InstanceSpec(datetime.date), {"title": "date"}),
    ],
)
def test_a_spec_describes_itself_as_json_schema(spec, schema):
    assert spec.json_schema() == schema


def test_a_dataclass_within_itself_is_defined_once_at_the_root():
    spec = AgentsSpec({"a": ListSpec(spec_from_hint(Tree)), "b": spec_from_hint(Tree)})

    schema = spec.json_schema()

    (name,) = schema["$defs"]
    assert name.endswith(".Tree")
    assert schema["properties"]["a"]["items"] == {"$ref": f"#/$defs/{name}"}
    assert schema["properties"]["b"] == {"$ref": f"#/$defs/{name}"}
    assert schema["$defs"][name]["properties"]["children"] == {
        "type": "array",
        "items": {"$ref": f"#/$defs/{name}"},
    }
    assert schema["$defs"][name]["required"] == ["value", "left", "children"]
