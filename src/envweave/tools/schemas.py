"""JSON Schema for the arguments of a function, from their type hints."""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Any

from envweave.codec import AnySpec, Spec, spec_from_hint, to_plain
from envweave.codec.branches import Dictionary, Either, Fixed, Listing, Model, Record
from envweave.codec.leaves import Instance
from envweave.codec.spec import gathered
from envweave.errors import DefinitionError
from envweave.tools.arguments import EMPTY, Argument, Arguments, Parameter

_TYPES = {str: "string", int: "integer", bool: "boolean"}


def checked_by_hint(argument: Argument) -> Argument:
    """Return an argument with the schema and the check that its hint asks for.

    A hint that says nothing which plain data could fulfil leaves it without both.
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
    if isinstance(spec, AnySpec) or not _can_be_plain(spec):
        return dataclasses.replace(argument, hint=hint)
    return dataclasses.replace(argument, hint=hint, spec=spec, schema=_schema(spec))


def object_schema(arguments: Arguments) -> dict[str, Any]:
    """Return the JSON Schema of the object that names all arguments of a call."""
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
    """Say the type of a choice, too. Some models want it, though its values say it already."""
    if isinstance(schema, list):
        return [_with_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    values = schema.get("enum")
    if not isinstance(values, list):
        return {word: _with_types(one) for word, one in schema.items()}
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
    """Whether the default fits its own hint, and JSON has a word for it."""
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


def _can_be_plain(spec: Spec) -> bool:
    """Whether plain data can fit: nobody can write down an object of an unknown class."""
    match spec:
        case Instance():
            return False
        case Listing(item=item):
            return _can_be_plain(item)
        case Fixed(items=items):
            return all(map(_can_be_plain, items))
        case Dictionary(fields=None, item=item):
            return _can_be_plain(item)
        case Dictionary(fields=fields) if fields is not None:
            needed = [one for name, one in fields.items() if name not in spec.optional]
            return all(map(_can_be_plain, needed))
        case Either(options=options):
            return any(map(_can_be_plain, options))
        case Record() | Model():
            taken = {**spec.fields, **spec.init_only}
            needed = [one for name, one in taken.items() if name not in spec.optional]
            return all(map(_can_be_plain, needed))
        case _:
            return True
