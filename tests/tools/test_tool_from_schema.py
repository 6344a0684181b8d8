from collections.abc import Mapping
from typing import Any

import pytest

from envweave.errors import OptionError
from envweave.tools import Tool

SEARCH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "limit": {"type": "integer"},
        "words": {"type": "string", "description": "What to\nlook for."},
        "order": {"enum": ["up", "down"], "default": "up", "description": "Which first."},
    },
    "required": ["words"],
}


def given_back(**arguments: Any) -> dict[str, Any]:
    return arguments


def make(parameters: Mapping[str, Any] | None) -> Tool:
    return Tool(name="search", function=given_back, description="Find.", parameters=parameters)


def called(tool: Tool, *args: Any, **kwargs: Any) -> Any:
    return tool.made_for(lambda _: None)(*args, **kwargs)


def test_required_arguments_come_first_and_defaults_are_shown() -> None:
    tool = make(SEARCH)

    assert tool.signature == (
        "(words: str, limit: int | None = None, order: Literal['up', 'down'] = 'up')"
    )
    assert tool.docstring.splitlines() == [
        "Find.",
        "",
        "Args:",
        "    words: What to look for.",
        "    order: Which first.",
    ]


def test_a_given_schema_is_passed_to_the_model_unchanged() -> None:
    tool = make(SEARCH)

    described = tool.schema()["function"]["parameters"]
    described["properties"].clear()

    assert tool.parameters == SEARCH


def test_only_what_was_given_is_passed_on_and_by_name() -> None:
    tool = make(SEARCH)

    assert called(tool, "war") == {"words": "war"}
    assert called(tool, "war", 3) == {"words": "war", "limit": 3}
    assert called(tool, order="down", words="war") == {"words": "war", "order": "down"}


def test_none_for_an_optional_argument_that_cannot_be_null_means_that_it_is_not_given() -> None:
    nullable = {"type": ["integer", "null"]}
    tool = make({"properties": {"limit": {"type": "integer"}, "page": nullable}})

    assert called(tool, limit=None, page=None) == {"page": None}


def test_invalid_python_names_are_passed_as_keywords() -> None:
    properties = {"from": {"type": "string"}, "user-id": {"type": "integer"}, "to": {}}
    tool = make({"properties": properties, "required": ["user-id"]})

    assert tool.signature == "(to: Any = None, **kwargs)"
    assert tool.docstring.splitlines()[2:] == [
        "Args:",
        "    user-id (int): Pass it as **{'user-id': ...}.",
        "    from (str | None): Pass it as **{'from': ...}.",
    ]
    assert called(tool, **{"user-id": 3, "from": "me"}) == {"user-id": 3, "from": "me"}
    assert called(tool, 1, **{"user-id": 3, "from": None}) == {"to": 1, "user-id": 3}
    with pytest.raises(TypeError, match="missing a required argument: 'user-id'"):
        called(tool, to=1)
    with pytest.raises(TypeError, match="argument user-id: 'x' is not an int"):
        called(tool, **{"user-id": "x"})
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'form'. Did you mean 'from'"):
        called(tool, **{"user-id": 3, "form": "me"})


def test_additional_names_are_accepted_if_the_schema_allows_them() -> None:
    tool = make({"properties": {"others": {}}, "additionalProperties": {"type": "integer"}})

    assert tool.signature == "(others: Any = None, **others_: int)"
    assert called(tool, depth=3) == {"depth": 3}
    with pytest.raises(TypeError, match="argument depth: 'x' is not an int"):
        called(tool, depth="x")
    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        called(make(SEARCH), "war", depth=3)


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "string"}, "str"),
        ({"type": "number"}, "int | float"),
        ({"type": "boolean"}, "bool"),
        ({"type": "null"}, "None"),
        ({"type": "array"}, "list"),
        ({"type": "array", "items": {"type": "integer"}}, "list[int]"),
        ({"type": "array", "prefixItems": [{}], "items": False}, "list"),
        ({"type": "object"}, "dict"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "dict[str, int]"),
        ({"type": "object", "properties": {"a": {}}}, "dict"),
        ({"type": ["string", "null"]}, "str | None"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "str | int"),
        ({"anyOf": [{"type": "string"}, {}]}, "Any"),
        ({"allOf": [{"$ref": "#/$defs/a~1b"}]}, "Literal[1, None]"),
        ({"const": "x"}, "Literal['x']"),
        ({"enum": [1.5, "x"]}, "Any"),
        ({"enum": []}, "Any"),
        ({"$ref": "#/$defs/loop"}, "Any"),
        ({"$ref": "https://example.org/x"}, "Any"),
        ({"type": "strnig"}, "Any"),
        ({"type": 3, "enum": 4}, "Any"),
        (True, "Any"),
    ],
)
def test_a_schema_is_shown_as_the_nearest_hint(schema: Any, shown: str) -> None:
    definitions = {"a/b": {"enum": [1, None]}, "loop": {"$ref": "#/$defs/loop"}}

    tool = make({"properties": {"x": schema}, "required": ["x"], "$defs": definitions})

    assert tool.signature == f"(x: {shown})"


def test_a_tool_without_a_schema_takes_nothing() -> None:
    tool = make(None)

    assert (tool.signature, tool.docstring) == ("()", "Find.")
    with pytest.raises(TypeError, match="too many positional arguments"):
        called(tool, 1)


@pytest.mark.parametrize("schema", [{"type": "string"}, ["words"], "words"])
def test_a_schema_of_no_object_is_refused(schema: Any) -> None:
    with pytest.raises(OptionError, match="must be the JSON Schema of an object"):
        make(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": ["x"], "required": "x"},
        {"properties": {"x": 3}, "required": ["x", "y", 4]},
        {"properties": {"x": {"description": 3}}, "required": None, "additionalProperties": "no"},
    ],
)
def test_meaningless_parts_of_a_schema_are_ignored(schema: Any) -> None:
    assert make(schema).signature in ("()", "(x: Any)", "(x: Any = None)")
