"""JSON Schemas of tools: from type hints of a function, and back to the arguments of a tool."""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import types
import typing
from collections.abc import Mapping
from typing import Any

from envweave.codec import AnySpec, Spec, spec_from_hint, to_plain
from envweave.codec.containers import can_be_plain
from envweave.codec.spec import gathered
from envweave.errors import DefinitionError
from envweave.tools.arguments import EMPTY, Argument, Arguments, Parameter, is_usable

_TYPES = {str: "string", int: "integer", bool: "boolean"}


def checked_by_hint(argument: Argument) -> Argument:
    """Return an argument with the spec and the schema of its type hint.

    A hint that no plain data can satisfy leaves it without both.
    """
    if argument.hint is EMPTY:
        return argument
    try:
        spec = spec_from_hint(argument.hint)
    except (DefinitionError, RecursionError):
        return dataclasses.replace(argument, hint=EMPTY)
    hint = argument.hint
    if argument.default is None and not spec.contains(None):
        hint = typing.Optional[hint]  # noqa: UP045 - the hint is a value
        spec = spec_from_hint(hint)
    if isinstance(spec, AnySpec) or not can_be_plain(spec):
        return dataclasses.replace(argument, hint=hint)
    return dataclasses.replace(argument, hint=hint, spec=spec, schema=_schema(spec))


def object_schema(arguments: Arguments) -> dict[str, Any]:
    """Return the JSON Schema of the object with all arguments of a call."""
    if not arguments.known:
        return {"type": "object", "properties": {}, "additionalProperties": True}
    properties: dict[str, Any] = {}
    required: list[str] = []
    others: Any = False
    for one in arguments.each:
        if one.kind is Parameter.VAR_KEYWORD:
            others = dict(one.schema) or True
        elif one.kind is not Parameter.VAR_POSITIONAL:
            properties[one.name] = _property(one)
            required += [one.name] if one.is_required else []
    return gathered(
        {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": others,
        }
    )


def _schema(spec: Spec) -> dict[str, Any]:
    schema: dict[str, Any] = _with_types(spec.json_schema())
    try:
        json.dumps(schema)
    except (TypeError, ValueError):  # a choice of bytes, say
        return {}
    return schema


def _with_types(schema: Any) -> Any:
    """Add the type of a choice, which some models need though its values imply it."""
    if isinstance(schema, list):
        return [_with_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    values = schema.get("enum")
    if not isinstance(values, list):
        return {keyword: _with_types(one) for keyword, one in schema.items()}
    kinds = {_TYPES.get(type(value)) for value in values}
    if values == [None]:
        return {"type": "null"}
    return schema if len(kinds) > 1 or None in kinds else {"type": kinds.pop(), **schema}


def _property(argument: Argument) -> dict[str, Any]:
    schema = dict(argument.schema)
    if argument.description:
        schema["description"] = argument.description
    if not argument.is_required and _has_json(argument):
        schema["default"] = to_plain(argument.default)
    return schema


def _has_json(argument: Argument) -> bool:
    """Whether the default matches its own hint, and can be written as JSON."""
    if argument.spec is not None and not argument.spec.contains(argument.default):
        return False
    plain = to_plain(argument.default)
    if isinstance(plain, str) and not isinstance(argument.default, str):
        return plain != repr(argument.default)
    try:
        json.dumps(plain, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


_DEEPEST = 12
_CHOICES = (str, int, bool, type(None))
_SIMPLE: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": int | float,  # a float alone would make a float of every int
    "boolean": bool,
    "null": type(None),
    "object": dict,
}


def arguments_from_schema(tool: str, schema: Mapping[str, Any]) -> Arguments:
    """Return the arguments that a schema describes.

    Required ones come first, then the others, in the schema's order. An argument whose name is not
    an identifier can only be passed by `**`.
    """
    properties = _as_mapping(schema.get("properties"))
    required = _as_list(schema.get("required"))
    arguments = [
        _argument(str(name), _as_mapping(one), schema, is_required=name in required)
        for name, one in properties.items()
    ]
    # In a signature arguments with a default come later, and keyword-only ones last.
    arguments.sort(key=lambda one: (one.kind, not one.is_required))
    others = schema.get("additionalProperties", False)
    if others is True or isinstance(others, Mapping):
        arguments.append(
            checked_by_hint(
                Argument(
                    name=_free("others", properties),
                    kind=Parameter.VAR_KEYWORD,
                    hint=_hint(others, schema, 0),
                )
            )
        )
    return Arguments(tool, arguments)


def _argument(
    name: str, schema: Mapping[str, Any], root: Mapping[str, Any], *, is_required: bool
) -> Argument:
    hint = _hint(schema, root, 0)
    default = EMPTY if is_required else schema.get("default")
    takes_none = hint is Any or hint is type(None) or type(None) in typing.get_args(hint)
    none_is_absent = default is None and not takes_none
    text = schema.get("description")
    return checked_by_hint(
        Argument(
            name=name,
            kind=Parameter.POSITIONAL_OR_KEYWORD if is_usable(name) else Parameter.KEYWORD_ONLY,
            hint=typing.Optional[hint] if none_is_absent else hint,  # noqa: UP045 - a value
            default=default,
            description=text if isinstance(text, str) else "",
            none_is_absent=none_is_absent,
        )
    )


def _hint(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    """Return the type hint closest to a schema; `Any` if there is none."""
    schema = _as_mapping(schema)
    if depth > _DEEPEST:
        return Any
    if "$ref" in schema:
        return _hint(_resolve_reference(schema["$ref"], root), root, depth + 1)
    if "const" in schema:
        return _choice([schema["const"]])
    if "enum" in schema:
        return _choice(_as_list(schema["enum"]))
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            return _union([_hint(one, root, depth + 1) for one in _as_list(schema[keyword])])
    every = _as_list(schema.get("allOf"))
    if len(every) == 1:
        return _hint(every[0], root, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union([_hint({**schema, "type": one}, root, depth + 1) for one in kind])
    if kind == "array":
        item = _hint(schema.get("items"), root, depth + 1)
        return list if item is Any or "prefixItems" in schema else types.GenericAlias(list, (item,))
    if kind == "object" and "properties" not in schema:
        item = _hint(schema.get("additionalProperties"), root, depth + 1)
        return dict if item is Any else types.GenericAlias(dict, (str, item))
    return _SIMPLE.get(kind, Any) if isinstance(kind, str) else Any


def _union(hints: list[Any]) -> Any:
    if not hints or Any in hints:
        return Any
    return functools.reduce(operator.or_, hints)


def _choice(values: list[Any]) -> Any:
    if not values or not all(type(one) in _CHOICES for one in values):
        return Any
    return typing.Literal[tuple(values)]


def _resolve_reference(reference: Any, root: Mapping[str, Any]) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return {}
    found: Any = root
    for step in reference[2:].split("/"):
        found = _as_mapping(found).get(step.replace("~1", "/").replace("~0", "~"))
    return found


def _free(name: str, taken: Mapping[str, Any]) -> str:
    while name in taken:
        name += "_"
    return name


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
