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
from envweave.codec.containers import Dictionary, Either, Fixed, Listing
from envweave.codec.scalars import Array, Boolean, Choice, Instance, Integer, Real, Text
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
    Integer(),
    Integer(5, 5),
    Integer(low=-3),
    Integer(high=10**30),
    Integer(-(2**63), 2**63 - 1),
    Integer(0, 2**64),
    Integer(-(10**400), 10**400),
    Real(),
    Real(0.25, 0.25),
    Real(low=1e300),
    Real(high=-5),
    Real(-math.inf, 3),
    Real(-1.7e308, 1.7e308),
    Boolean(),
    Text(),
    Text(binary=True),
    Choice(["a", 1, None]),
    Array(),
    Array((2, 3)),
    Array((), "float32", 0.1, 0.1),
    Array((), "int64"),
    Array((), "bool"),
    Array((4, 4, 3), "uint8"),
    Array((3,), "uint8", high=0),
    Array((3,), "uint8", low=255),
    Array((3,), "uint8", -5, 300),
    Array((3,), "int8", low=127),
    Array((3,), "int8", high=-128),
    Array((3,), "int16", 0.5, 1.5),
    Array((3,), "int64", -(2**63), 2**63 - 1),
    Array((3,), "uint64", 0, 2**64 - 1),
    Array((3,), "uint64", low=2**64 - 1),
    Array((2,), "int64", np.array([0, -(2**63)]), np.array([0, 2**63 - 1])),
    Array((2,), "uint64", np.array([0, 5]), np.array([np.inf, 5.0])),
    Array((2,), ">i4", 0, 5),
    Array((2,), "float32", np.array([-np.inf, 0.0]), np.array([np.inf, 0.1])),
    Array((2,), "float64", -1.7e308, 1.7e308),
    Array((2,), "bool"),
    Array((9,), "bool", 1, 1),
    Array((2,), "bool", np.array([0, 1]), 1),
    Array((0, 3), "int8"),
    Array((2,), "complex128"),
    Listing(Integer(0, 9)),
    Listing(Integer(0, 2), kind=set),
    Listing(AnySpec()),
    Fixed([Integer(), Text()]),
    Dictionary(),
    Dictionary(fields={"a": Integer(), "b": AnySpec()}, optional=["b"]),
    Either([Integer(), AnySpec(), Choice([None])]),
    Instance(Marker),
    AgentsSpec({"a": Integer(0, 3), "b": Boolean()}),
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


@pytest.mark.parametrize("spec", [Array((), "int8"), Array((), "float32"), Array((), "bool")])
def test_a_sample_without_dimensions_is_still_an_array(spec):
    drawn = spec.sample(np.random.default_rng(0))

    assert (type(drawn), drawn.shape, drawn.dtype) == (np.ndarray, (), spec.dtype)


def test_samples_reach_both_ends_of_the_bounds():
    rng = np.random.default_rng(0)

    assert {Integer(-1, 1).sample(rng) for _ in range(100)} == {-1, 0, 1}
    assert set(np.unique(Array((1000,), "uint8", 254, 255).sample(rng))) == {254, 255}
    assert set(np.unique(Array((10_000,), "int8").sample(rng))) == set(range(-128, 128))
    assert {Integer(2**70, 2**70 + 1).sample(rng) for _ in range(50)} == {2**70, 2**70 + 1}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (AnySpec(), "Annotate the action parameter"),
        (Fixed([AnySpec()]), "untyped spec"),
        (Instance(datetime.date), "A date cannot be sampled: it cannot be made without"),
        (spec_from_hint(Never), r"Never refused 100 samples, the last with: ValueError: never eno"),
        (spec_from_hint(Endless), "Endless holds another Endless without end"),
    ],
)
def test_what_cannot_be_sampled_says_why(spec, message):
    with pytest.raises(SpecError, match=message):
        spec.sample(np.random.default_rng(0))


def test_a_field_that_cannot_be_sampled_keeps_its_default():
    drawn = spec_from_hint(Stamped).sample(np.random.default_rng(0))

    assert (drawn.at, drawn.extra, drawn.notes) == (datetime.date(2000, 1, 1), None, {"a": 1})


def test_a_sample_of_a_dataclass_within_itself_comes_to_an_end():
    drawn = spec_from_hint(Tree).sample(np.random.default_rng(0))

    assert (drawn.left, drawn.children, drawn.pair) == (None, [], None)


def test_whether_a_spec_can_be_sampled_is_known_without_trying():
    hopeless = [spec_from_hint(Endless), AnySpec(), Instance(datetime.date), Instance(Abstract)]

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
        lambda: Integer(3, 2),
        lambda: Real(1.0, 0.5),
        lambda: Real(low=math.nan),
        lambda: Real(high=-math.inf),
        lambda: Array((2,), "int8", 3, 2),
        lambda: Array((2,), "int8", np.array([0, 3]), np.array([1, 2])),
        lambda: Array((2,), "uint8", low=256),
        lambda: Array((2,), "bool", high=-1),
        lambda: Choice([]),
        lambda: Array(dtype="nonsense"),
    ],
)
def test_a_spec_that_nothing_fits_cannot_be_made(define):
    with pytest.raises(DefinitionError):
        define()


# Several agents


def test_an_agent_is_looked_up_by_name():
    spec = AgentsSpec({"left": Integer(0, 1), "right": Integer(0, 2)})

    assert spec["right"] is spec.agents["right"]
    assert spec.check({"left": np.int8(1)}) == {"left": 1}
    with pytest.raises(SpecError, match=r"There is no agent 'rihgt'. Did you mean 'right'\?"):
        spec["rihgt"]
    with pytest.raises(SpecError, match=r"^actions: there is no agent 'up'; known: left, right$"):
        spec.check({"up": 1}, "actions")
    with pytest.raises(SpecError, match=r"^actions\['left'\]: 5 is not between 0 and 1$"):
        spec.check({"left": 5}, "actions")
    with pytest.raises(SpecError, match=r"^actions: 3 is no dict keyed by agent id$"):
        spec.check(3, "actions")


# JSON Schema


@pytest.mark.parametrize(
    ("spec", "schema"),
    [
        (Integer(0, 10**400), {"type": "integer", "minimum": 0, "maximum": 10**400}),
        (Integer(low=1), {"type": "integer", "minimum": 1}),
        (Real(-math.inf, 1), {"type": "number", "maximum": 1}),
        (Boolean(), {"type": "boolean"}),
        (Text(), {"type": "string"}),
        (Text(binary=True), {"type": "string", "contentEncoding": "base64"}),
        (spec_from_hint(Literal[1, "a", None]), {"enum": [1, "a", None]}),
        (Listing(Integer(), kind=tuple), {"type": "array", "items": {"type": "integer"}}),
        (
            Listing(Text(), kind=set),
            {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        ),
        (Fixed([]), {"type": "array", "maxItems": 0}),
        (
            Fixed([Integer(), Text()]),
            {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "items": False,
                "minItems": 2,
            },
        ),
        (
            Dictionary(Real(), key=Integer()),
            {
                "type": "object",
                "additionalProperties": {"type": "number"},
                "propertyNames": {"pattern": "^-?[0-9]+$"},
            },
        ),
        (
            Dictionary(fields={"a": Text(), "b": Text()}, optional=["b"]),
            {
                "type": "object",
                "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                "required": ["a"],
                "additionalProperties": False,
            },
        ),
        (
            Array((2, 1), "uint8", 0, 5),
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
        (Array(), {"type": "array"}),
        (AnySpec(), {}),
        (Instance(datetime.date), {"title": "date"}),
    ],
)
def test_a_spec_describes_itself_as_json_schema(spec, schema):
    assert spec.json_schema() == schema


def test_a_dataclass_within_itself_is_defined_once_at_the_root():
    spec = AgentsSpec({"a": Listing(spec_from_hint(Tree)), "b": spec_from_hint(Tree)})

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
