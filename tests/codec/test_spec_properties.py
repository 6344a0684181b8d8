"""What holds for every spec: samples fit, plain data comes back, and the schema agrees."""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict, Union

import numpy as np
import numpy.typing as npt
import pytest
from comparison import same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import envweave as ew
from envweave.codec import Bounds, Spec, spec_from_hint, to_plain
from envweave.errors import SpecError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Heading(enum.Enum):
    UP = (0, 1)
    DOWN = (0, -1)


class Point(NamedTuple):
    x: int
    y: Annotated[float, Bounds(0, 1)] = 0.5


class Config(TypedDict):
    name: str
    size: NotRequired[int]


@dataclass
class Tree:
    value: int
    left: Tree | None = None
    children: list[Tree] = field(default_factory=list)


def bounded_int(low: int, width: int) -> Any:
    return Annotated[int, Bounds(low, low + width)]


def bounded_array(dtype: str, shape: tuple[int, ...], ends: tuple[int, int]) -> Any:
    return Annotated[np.ndarray, Bounds(min(ends), max(ends), shape=shape, dtype=dtype)]


def open_array(dtype: str, shape: tuple[int, ...]) -> Any:
    return Annotated[np.ndarray, Bounds(shape=shape, dtype=dtype)]


def union(options: list[Any]) -> Any:
    return Union[tuple(options)]  # noqa: UP007 - of as many as there are


def record(hints: list[Any], base: type, frozen: bool) -> type:
    frozen = frozen and base is object
    fields = [(f"field_{i}", hint) for i, hint in enumerate(hints)]
    return dataclasses.make_dataclass("Made", fields, bases=(base,), frozen=frozen)


numbers = st.integers(-(10**6), 10**6)
dtypes = st.sampled_from(
    ["int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64", "bool"]
)
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
small = st.tuples(st.integers(0, 100), st.integers(0, 100))
leaves = (
    st.sampled_from(
        [int, float, bool, str, None, Colour, Heading, Literal[1, "a", True], Point, Config, Tree]
    )
    | st.builds(bounded_int, st.integers(-(2**70), 2**70), st.integers(0, 2**70))
    | st.builds(
        lambda low, width: Annotated[float, Bounds(low, low + width)], numbers, numbers.map(abs)
    )
    | st.builds(bounded_array, dtypes.filter(lambda dtype: dtype != "bool"), shapes, small)
    | st.builds(open_array, dtypes, shapes)
    | st.sampled_from([npt.NDArray[np.int8], npt.NDArray[np.float32]])
    | st.just(bytes)
)
# Options that JSON keeps apart: what a value was must be seen in its plain form.
options = st.lists(
    st.sampled_from([None, bool, int, float, str, list[int], Tree]), min_size=1, max_size=4
)


def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        inner.map(lambda hint: list[hint])  # type: ignore[valid-type]
        | inner.map(lambda hint: tuple[hint, ...])  # type: ignore[valid-type]
        | inner.map(lambda hint: dict[str, hint])  # type: ignore[valid-type]
        | st.sampled_from([int, str, Colour]).map(lambda hint: set[hint])  # type: ignore[valid-type]
        | st.lists(inner, max_size=3).map(lambda hints: tuple[tuple(hints)])  # type: ignore[misc]
        | st.builds(
            record,
            st.lists(inner, max_size=4),
            st.sampled_from([object, ew.Action, ew.Observation]),
            st.booleans(),
        )
        | options.map(union)
    )


specs = st.recursive(leaves, grown, max_leaves=6).map(spec_from_hint)
seeds = st.integers(0, 2**32)
quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.sampled_from(
        [
            *(np.float32(1), np.int8(-1), np.True_, np.zeros(2), np.array(3), np.array(["a"])),
            *(object(), int, {1}, frozenset(), 10**400, 1j),
            *(Colour.RED, Point(1, 2), Tree(1), Tree("a")),  # type: ignore[arg-type]
        ]
    )
)
keys = st.sampled_from(["field_0", "field_1", "value", "left", "name", "x", "metadata", "1"])
junk = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys | st.integers(0, 2), inner, max_size=3)
    ),
    max_leaves=8,
)


@quick
@given(specs, seeds)
def test_every_sample_fits_as_it_is(spec: Spec, seed: int):
    drawn = spec.sample(np.random.default_rng(seed))

    assert same(spec.check(drawn), drawn)


@quick
@given(specs, seeds)
def test_the_same_seed_draws_the_same(spec: Spec, seed: int):
    one, other = (spec.sample(np.random.default_rng(seed)) for _ in range(2))

    assert same(one, other)


@quick
@given(specs, seeds)
def test_plain_data_comes_back_as_what_it_was(spec: Spec, seed: int):
    drawn = spec.sample(np.random.default_rng(seed))

    assert same(spec.check(to_plain(drawn)), drawn)


@quick
@given(specs, seeds)
def test_json_comes_back_as_what_it_was_and_agrees_with_the_schema(spec: Spec, seed: int):
    drawn = spec.sample(np.random.default_rng(seed))

    wire = json.loads(
        json.dumps(to_plain(drawn), default=lambda one: base64.b64encode(one).decode())
    )

    assert faults(json.loads(json.dumps(spec.json_schema())), wire) == []
    assert same(spec.check(wire), drawn)


@pytest.mark.slow  # many generated values
@quick
@given(specs, junk)
def test_whatever_comes_is_read_or_refused_and_reading_twice_changes_nothing(
    spec: Spec, value: Any
):
    try:
        read = spec.check(value, "action")
    except SpecError as refused:
        words = str(refused)
    else:
        words = ""

    assert words.startswith("action") if words else same(spec.check(read), read)
    assert spec.contains(value) is not bool(words)


@pytest.mark.slow  # many generated values
@quick
@given(specs)
def test_the_schema_is_valid_json_schema(spec: Spec):
    jsonschema = pytest.importorskip("jsonschema", reason="a second opinion, where it is installed")

    jsonschema.Draft202012Validator.check_schema(spec.json_schema())


@quick
@given(specs, seeds)
def test_another_validator_takes_every_sample(spec: Spec, seed: int):
    jsonschema = pytest.importorskip("jsonschema", reason="a second opinion, where it is installed")
    drawn = spec.sample(np.random.default_rng(seed))
    wire = json.loads(
        json.dumps(to_plain(drawn), default=lambda one: base64.b64encode(one).decode())
    )

    jsonschema.Draft202012Validator(spec.json_schema()).validate(wire)


# A small validator, of exactly the keywords that specs use

TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": int | float,
    "boolean": bool,
}
NOTES = {"title", "description", "contentEncoding", "$defs"}


def faults(schema: Any, value: Any, root: dict[str, Any] | None = None) -> list[str]:
    """Return what is wrong with a JSON value, after draft 2020-12."""
    root = schema if root is None else root
    found: list[str] = []
    for keyword, says in schema.items() if isinstance(schema, dict) else [("false", schema)]:
        match keyword:
            case "type":
                is_bool = isinstance(value, bool) and says != "boolean"
                fits = isinstance(value, TYPES[says]) and not is_bool
            case "enum":
                fits = any(type(one) is type(value) and one == value for one in says)
            case "minimum":
                fits = value >= says
            case "maximum":
                fits = value <= says
            case "minItems":
                fits = len(value) >= says
            case "maxItems":
                fits = len(value) <= says
            case "uniqueItems":
                fits = len({json.dumps(one) for one in value}) == len(value)
            case "required":
                fits = set(says) <= set(value)
            case "properties":
                fits = not any(
                    faults(one, value[name], root) for name, one in says.items() if name in value
                )
            case "additionalProperties":
                others = [value[name] for name in value if name not in schema.get("properties", {})]
                fits = not any(faults(says, one, root) for one in others)
            case "prefixItems":
                fits = not any(
                    faults(one, item, root) for one, item in zip(says, value, strict=False)
                )
            case "items":
                rest = value[len(schema.get("prefixItems", ())) :]
                fits = not any(faults(says, one, root) for one in rest)
            case "propertyNames":
                fits = not any(faults(says, name, root) for name in value)
            case "pattern":
                fits = re.search(says, value) is not None
            case "anyOf":
                fits = any(not faults(one, value, root) for one in says)
            case "$ref":
                fits = not faults(root["$defs"][says.removeprefix("#/$defs/")], value, root)
            case "false":
                fits = schema is not False
            case _:
                fits = keyword in NOTES
        if not fits:
            found.append(f"{value!r} against {keyword}: {says!r}")
        if keyword == "type" and not fits:
            break
    return found


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Annotated[int, Bounds(0, 5)], 6),
        (int, True),
        (float, "1"),
        (Literal["a"], "b"),
        (list[int], [1, "a"]),
        (tuple[int, int], [1]),
        (tuple[int, int], [1, 2, 3]),
        (set[int], [1, 1]),
        (dict[int, int], {"a": 1}),
        (Config, {"size": 1}),
        (Tree, {"value": 1, "left": {"value": "a"}}),
        (Tree, {"value": 1, "lfet": None}),
        (int | None, "a"),
    ],
)
def test_a_value_that_a_spec_refuses_its_schema_refuses_too(hint: Any, value: Any):
    spec = spec_from_hint(hint)

    assert not spec.contains(value)
    assert faults(spec.json_schema(), value) != []
