"""The arguments of a tool that comes with a JSON Schema: type hints, and a place for each.

The schema comes from a stranger. What it says that no hint can say is left to whoever answers the
call; what cannot be meant says nothing.
"""

from __future__ import annotations

import functools
import operator
import types
import typing
from collections.abc import Mapping
from typing import Any

from envweave.tools.arguments import EMPTY, Argument, Arguments, Parameter, is_usable
from envweave.tools.schemas import checked_by_hint

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
    """Return what a tool takes whose arguments a schema describes.

    Those that are required come first, and then the others, in the schema's order. A name that
    Python could not use can be given by `**` alone.
    """
    properties = _mapping(schema.get("properties"))
    required = _listed(schema.get("required"))
    arguments = [
        _argument(str(name), _mapping(one), schema, is_required=name in required)
        for name, one in properties.items()
    ]
    # In a signature what has a default comes later, and what goes by keyword last.
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
    """The type hint nearest to a schema; `Any` where there is none."""
    schema = _mapping(schema)
    if depth > _DEEPEST:
        return Any
    if "$ref" in schema:
        return _hint(_referred(schema["$ref"], root), root, depth + 1)
    if "const" in schema:
        return _choice([schema["const"]])
    if "enum" in schema:
        return _choice(_listed(schema["enum"]))
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return _union([_hint(one, root, depth + 1) for one in _listed(schema[word])])
    every = _listed(schema.get("allOf"))
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


def _referred(reference: Any, root: Mapping[str, Any]) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return {}
    found: Any = root
    for step in reference[2:].split("/"):
        found = _mapping(found).get(step.replace("~1", "/").replace("~0", "~"))
    return found


def _free(wanted: str, taken: Mapping[str, Any]) -> str:
    while wanted in taken:
        wanted += "_"
    return wanted


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
