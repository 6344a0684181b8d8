import enum
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from envweave.codec import Bounds
from envweave.errors import OptionError
from envweave.tools import Tool


@dataclass
class Place:
    name: str
    height_m: float = 0.0
    tags: list[str] = field(default_factory=list)


ROME = Place("Rome")


class Unit(enum.Enum):
    CELSIUS = "celsius"
    KELVIN = "kelvin"


class Options(TypedDict, total=False):
    days: int


def forecast(city: str, days: int = 1, *, unit: Unit = Unit.CELSIUS) -> str:
    """Say what the weather will be.

    It may be wrong.

    Args:
        city: Where.
        days: How far ahead.
    """
    return f"{city} {days} {unit}"


def test_a_tool_describes_its_function_to_a_model() -> None:
    tool = Tool.of(forecast)

    assert tool.schema() == {
        "type": "function",
        "function": {
            "name": "forecast",
            "description": "Say what the weather will be.\n\nIt may be wrong.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Where."},
                    "days": {"type": "integer", "description": "How far ahead.", "default": 1},
                    "unit": {
                        "type": "string",
                        "enum": ["celsius", "kelvin"],
                        "default": "celsius",
                    },
                },
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }


def test_a_tool_shows_code_its_signature_and_its_docstring() -> None:
    tool = Tool.of(forecast)

    assert tool.signature == "(city: str, days: int = 1, *, unit: Unit = 'celsius') -> str"
    assert tool.docstring.splitlines() == [
        "Say what the weather will be.",
        "",
        "It may be wrong.",
        "",
        "Args:",
        "    city: Where.",
        "    days: How far ahead.",
        "",
        "Types:",
        "    Unit: one of 'celsius', 'kelvin'",
    ]


def test_a_given_name_and_description_replace_the_functions() -> None:
    tool = Tool.of(forecast, name="weather", description="Guess.")

    assert (tool.name, tool.description) == ("weather", "Guess.")
    assert tool.docstring.startswith("Guess.\n\nArgs:\n    city: Where.\n")


def test_a_class_is_described_as_the_dict_that_code_passes() -> None:
    def visit(place: Place, options: Options) -> list[Place]:
        return [place] * options.get("days", 0)

    tool = Tool.of(visit)

    assert tool.signature == "(place: Place, options: Options) -> list[Place]"
    assert tool.docstring.splitlines() == [
        "Types:",
        "    Place: a dict of name: str, height_m: float = 0.0, tags: list[str] = ...",
        "    Options: a dict of days: int = ...",
    ]


class Span(NamedTuple):
    start: int
    stop: int = 9


T = TypeVar("T")


def test_hints_of_every_kind_are_shown_readably() -> None:
    def work(
        span: Span,
        table: npt.NDArray[np.float64],
        rows: "Iterable[tuple[int, ...]] | None" = None,
        thing: T = None,  # type: ignore[assignment] # what is tested
        key: Literal[b"x", 1] = 1,
        then: Callable[[int], str] = str,
    ) -> dict[str, Any]: ...

    tool = Tool.of(work)

    assert tool.signature == (
        "(span: Span, table: ndarray, rows: Iterable[tuple[int, ...]] | None = None, "
        "thing: T = None, key: Literal[b'x', 1] = 1, then: Callable[[int], str] = ...)"
        " -> dict[str, Any]"
    )
    assert tool.docstring == "Types:\n    Span: a tuple of start: int, stop: int = 9"
    assert tool.parameters["properties"]["key"] == {"default": 1}


def test_a_recursive_class_is_described_once() -> None:
    tool = Tool.of(count_nodes)

    assert tool.docstring == "Types:\n    Node: a dict of name: str, children: list[Node] = ..."
    assert "$defs" in tool.parameters


@dataclass
class Node:
    name: str
    children: "list[Node]" = field(default_factory=list)


def count_nodes(root: Node) -> int:
    return 1 + sum(map(count_nodes, root.children))


def test_bounds_choices_and_optional_arguments_are_in_the_schema() -> None:
    def tune(
        level: Annotated[int, Bounds(0, 9)],
        mode: Literal["fast", "exact"],
        seed: int | None = None,
        late: int = None,  # noqa: RUF013 - as many write it
    ) -> None: ...

    maybe = {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}
    assert Tool.of(tune).parameters["properties"] == {
        "level": {"type": "integer", "minimum": 0, "maximum": 9},
        "mode": {"type": "string", "enum": ["fast", "exact"]},
        "seed": maybe,
        "late": maybe,
    }


def test_a_hint_that_cannot_be_evaluated_leaves_only_its_argument_without_a_schema() -> None:
    def store(book: "Missing", times: int) -> None: ...  # type: ignore[name-defined] # noqa: F821

    tool = Tool.of(store)

    assert tool.parameters["properties"] == {"book": {}, "times": {"type": "integer"}}
    assert tool.signature == "(book, times: int) -> None"


@pytest.mark.parametrize("hint", [Path, list[Path], Callable[[int], int], complex, Any, object])
def test_a_hint_that_plain_data_cannot_fulfil_checks_nothing(hint: Any) -> None:
    def keep(thing: Any) -> Any:
        return thing

    keep.__annotations__["thing"] = hint
    tool = Tool.of(keep)

    assert tool.parameters["properties"] == {"thing": {}}
    assert tool.arguments.read(["as it is"], {}) == (["as it is"], {})


def test_a_default_that_is_not_a_literal_is_left_out() -> None:
    nobody = object()

    def find(owner: Any = nobody, where: Any = ROME, far: float = float("inf")) -> None: ...

    tool = Tool.of(find)

    signature = "(owner: Any = ..., where: Any = {'name': 'Rome', 'height_m': 0.0, 'tags': []}, "
    assert tool.signature == f"{signature}far: float = inf) -> None"
    assert {name: one.get("default") for name, one in tool.parameters["properties"].items()} == {
        "owner": None,
        "where": {"name": "Rome", "height_m": 0.0, "tags": []},
        "far": None,
    }


def test_any_number_of_arguments_is_described_as_far_as_json_can() -> None:
    def log(level: str, *parts: str, **fields: int) -> None: ...

    assert Tool.of(log).parameters == {
        "type": "object",
        "properties": {"level": {"type": "string"}},
        "required": ["level"],
        "additionalProperties": {"type": "integer"},
    }


def test_a_function_without_a_signature_takes_anything() -> None:
    tool = Tool.of(max)

    assert tool.signature == "(*args, **kwargs)"
    assert tool.parameters["additionalProperties"] is True
    assert tool.arguments.read([1, 2], {"default": 3}) == ([1, 2], {"default": 3})


class Counter:
    """Counts."""

    def __init__(self, start: int) -> None:
        self.value = start

    def add(self, much: int) -> int:
        """Add to it."""
        self.value += much
        return self.value

    async def __call__(self, much: int) -> int:
        return self.add(much)


def test_methods_partials_and_callable_objects_are_tools() -> None:
    counter = Counter(1)
    async_add = functools.partial(counter, much=2)

    tools = [
        Tool.of(counter.add),
        Tool.of(functools.partial(forecast, "Rome"), "rome"),
        Tool.of(counter, "counter"),
        Tool.of(async_add, "two_more"),
    ]

    assert [(tool.signature, tool.is_async, tool.description) for tool in tools] == [
        ("(much: int) -> int", False, "Add to it."),
        ("(days: int = 1, *, unit: Unit = 'celsius') -> str", False, tools[1].description),
        ("(much: int) -> int", True, "Counts."),
        ("(*, much: int = 2) -> int", True, "Counts."),
    ]


@pytest.mark.parametrize(
    "name", ["", "two words", "class", "1st", "a-b", "__import__", "ToolError"]
)
def test_a_name_that_code_cannot_use_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="Invalid tool name"):
        Tool.of(forecast, name)


@pytest.mark.parametrize("nameless", [lambda: 1, functools.partial(forecast, "Rome"), Counter(0)])
def test_a_function_without_a_name_needs_one(nameless: Any) -> None:
    with pytest.raises(OptionError, match=r"Pass one: register\('name', function\)"):
        Tool.of(nameless)


def test_a_value_that_is_not_callable_is_refused() -> None:
    with pytest.raises(
        OptionError, match=r"The tool 'pi' must be a function or another callable, got 3.14"
    ):
        Tool.of(3.14, "pi")  # type: ignore[arg-type] # what is tested


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "3"])
def test_an_invalid_limit_is_refused(limit: Any) -> None:
    with pytest.raises(
        OptionError, match=f"The tool 'forecast': max_calls must be .*got {limit!r}"
    ):
        Tool.of(forecast, max_calls=limit)
