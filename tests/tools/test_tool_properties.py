"""What holds for every function with simple hints: its schema and its checks agree."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envweave.codec import Bounds, to_plain
from envweave.tools import Tool

NAMES = ["a", "b", "c", "d"]
PARAMETER = inspect.Parameter


@dataclass
class Point:
    x: float
    y: int | None = None


LEAVES = [int, float, bool, str, None, Point, Literal["x", "y"], Annotated[int, Bounds(-2, 2)]]


def hints(leaves: list[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.sampled_from(leaves),
        lambda inner: (
            inner.map(lambda hint: list[hint])  # type: ignore[valid-type] # hints are drawn
            | inner.map(lambda hint: dict[str, hint])  # type: ignore[valid-type]
            | st.tuples(inner, inner).map(lambda pair: tuple[pair[0], pair[1]])  # type: ignore[misc]
            | inner.map(lambda hint: Optional[hint])  # noqa: UP045 - hints are drawn
        ),
        max_leaves=3,
    )


# JSON cannot tell 1.0 from 1, and a float has no room for every int.
NUMBERS = st.integers(-5, 5) | st.floats(-5, 5).filter(lambda number: not number.is_integer())
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.sampled_from(["x", "y", "z", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["x", "y", "z"]), inner, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def functions(draw: st.DrawFn, leaves: tuple[Any, ...] = (*LEAVES, Any)) -> Any:
    """A function with up to four arguments, each with a hint, some with a default."""
    names = NAMES[: draw(st.integers(0, len(NAMES)))]
    kinds = sorted(
        draw(
            st.lists(
                st.sampled_from([PARAMETER.POSITIONAL_OR_KEYWORD, PARAMETER.KEYWORD_ONLY]),
                min_size=len(names),
                max_size=len(names),
            )
        )
    )
    required = draw(st.integers(0, len(names)))
    parameters = [
        PARAMETER(
            name,
            kind,
            annotation=draw(hints(list(leaves))),
            default=PARAMETER.empty if index < required else draw(st.none() | VALUES),
        )
        for index, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]

    def function(**_arguments: Any) -> None: ...

    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


ARGUMENTS = st.dictionaries(st.sampled_from([*NAMES, "e"]), VALUES, max_size=4)


def fits(tool: Tool, arguments: dict[str, Any]) -> bool:
    try:
        tool.arguments.read_named(arguments)
    except TypeError:
        return False
    return True


def is_valid(tool: Tool, arguments: dict[str, Any]) -> bool:
    return bool(jsonschema.Draft202012Validator(tool.parameters).is_valid(arguments))


@pytest.mark.slow  # many generated values
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(functions(), ARGUMENTS)
def test_the_schema_accepts_exactly_what_the_function_takes(
    function: Any, arguments: dict[str, Any]
) -> None:
    tool = Tool.of(function)

    jsonschema.Draft202012Validator.check_schema(tool.parameters)
    assert is_valid(tool, arguments) == fits(tool, arguments)


@pytest.mark.slow  # many generated values
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(functions(tuple(LEAVES)), st.integers(0, 2**32))
def test_values_that_fit_each_hint_fit_the_function(function: Any, seed: int) -> None:
    tool = Tool.of(function)
    rng = np.random.default_rng(seed)
    arguments = {
        one.name: None if one.spec is None else to_plain(one.spec.sample(rng))
        for one in tool.arguments.each
    }

    assert fits(tool, arguments)
    assert is_valid(tool, arguments)


@pytest.mark.slow  # many generated values
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(functions(), ARGUMENTS)
def test_a_tool_from_a_schema_accepts_what_the_schema_accepts(
    function: Any, arguments: dict[str, Any]
) -> None:
    schema = Tool.of(function).parameters

    tool = Tool(name="tool", function=lambda **given: given, parameters=schema)

    if is_valid(tool, arguments):
        assert fits(tool, arguments)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(functions())
def test_the_signature_that_code_sees_can_be_parsed(function: Any) -> None:
    tool = Tool.of(function)

    compile(f"def tool{tool.signature}: ...".replace("Point", "dict"), "a tool", "exec")
