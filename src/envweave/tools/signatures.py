"""The signature and docstring of a tool as code sees them in `help(tool)`.

Code has only Python's own names. So a dataclass is described as the dict that is passed for it,
and a default that is not a literal as `...`.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Iterable
from typing import Any, final

import numpy as np

from envweave.codec import to_plain
from envweave.tools.arguments import EMPTY, Argument, Arguments, Parameter, is_usable

_LONGEST_DEFAULT = 120
_INDENT = "    "


@final
class _Text:
    """A hint or a default whose `repr` is this text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def shown_signature(arguments: Arguments) -> inspect.Signature:
    """Return the signature that code sees. Its text can be parsed."""
    if not arguments.known:
        return inspect.Signature(
            [
                Parameter("args", Parameter.VAR_POSITIONAL),
                Parameter("kwargs", Parameter.VAR_KEYWORD),
            ]
        )
    parameters = [_parameter(one) for one in arguments.each if is_usable(one.name)]
    if arguments.odd and not any(one.kind is Parameter.VAR_KEYWORD for one in parameters):
        parameters.append(Parameter("kwargs", Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters, return_annotation=_annotation(arguments.returns))


def docstring_of(text: str, arguments: Iterable[Argument]) -> str:
    """Return a docstring for a tool without one: its description and its arguments."""
    lines = [line for one in arguments for line in _describe_argument(one)]
    return "\n".join([text.strip(), "", "Args:", *lines] if lines else [text.strip()]).strip()


def types_part(arguments: Arguments) -> str:
    """Return a section that describes the classes in the hints; empty if there are none."""
    found: dict[str, str] = {}
    for hint in (*(one.hint for one in arguments.each), arguments.returns):
        _explain(hint, found)
    lines = [f"{_INDENT}{name}: {text}" for name, text in found.items()]
    return "\n".join(["Types:", *lines]) if lines else ""


def format_hint(hint: Any) -> str:
    """Return a hint as text, without module names."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is None or hint is type(None):
        return "None"
    if hint is Ellipsis:
        return "..."
    if origin is typing.Annotated:
        return format_hint(parts[0])
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(format_hint(part) for part in parts))
    if origin is typing.Literal:
        return f"Literal[{', '.join(_literal(part) for part in parts)}]"
    if origin is np.ndarray or isinstance(hint, typing.TypeVar):
        return "ndarray" if origin is np.ndarray else hint.__name__
    if isinstance(origin, type) and parts and not any(isinstance(part, list) for part in parts):
        return f"{origin.__name__}[{', '.join(map(format_hint, parts))}]"
    if isinstance(hint, type):
        return hint.__name__
    return inspect.formatannotation(hint).rpartition(".")[2]


def _parameter(argument: Argument) -> Parameter:
    default = argument.default
    return Parameter(
        argument.name,
        argument.kind,
        default=EMPTY if default is EMPTY else _Text(_literal(default)),
        annotation=_annotation(argument.hint),
    )


def _annotation(hint: Any) -> Any:
    if hint is EMPTY:
        return EMPTY
    text = format_hint(hint)
    return _Text(text) if _parses(text) else EMPTY


def _literal(value: Any) -> str:
    if isinstance(value, enum.Enum) or dataclasses.is_dataclass(value):
        value = to_plain(value)
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - an author's __repr__ may do anything
        return "..."
    return text if len(text) <= _LONGEST_DEFAULT and _parses(text) else "..."


def _parses(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _describe_argument(argument: Argument) -> list[str]:
    if is_usable(argument.name):
        text = argument.description
        if not text:
            return []
        return [f"{_INDENT}{argument.name}: {' '.join(text.split())}"]
    hint = "" if argument.hint is EMPTY else f" ({format_hint(argument.hint)})"
    text = " ".join([*argument.description.split(), f"Pass it as **{{{argument.name!r}: ...}}."])
    return [f"{_INDENT}{argument.name}{hint}: {text}"]


def _explain(hint: Any, found: dict[str, str]) -> None:
    """Describe the classes of a hint, and those of their fields."""
    for part in typing.get_args(hint):
        _explain(part, found)
    if not isinstance(hint, type) or hint.__name__ in found:
        return
    if issubclass(hint, enum.Enum):
        found[hint.__name__] = f"one of {', '.join(_literal(one) for one in hint)}"
    elif dataclasses.is_dataclass(hint) or typing.is_typeddict(hint) or _is_named_tuple(hint):
        found[hint.__name__] = ""  # it may contain itself
        fields = _fields(hint)
        kind = "tuple" if _is_named_tuple(hint) else "dict"
        listed = ", ".join(_field(*one) for one in fields) or "nothing"
        found[hint.__name__] = f"a {kind} of {listed}"
        for _, inner, _ in fields:
            _explain(inner, found)


def _is_named_tuple(hint: type) -> bool:
    return issubclass(hint, tuple) and hasattr(hint, "_field_defaults")


def _fields(record: Any) -> list[tuple[str, Any, Any]]:
    try:
        hints = typing.get_type_hints(record, include_extras=True)
    except Exception:  # noqa: BLE001 - evaluating an author's annotations may do anything
        return []
    if dataclasses.is_dataclass(record):
        return [
            (one.name, hints.get(one.name, EMPTY), _default(one))
            for one in dataclasses.fields(record)
            if one.init
        ]
    if _is_named_tuple(record):
        defaults = record._field_defaults
        return [(one, hints.get(one, EMPTY), defaults.get(one, EMPTY)) for one in record._fields]
    return [
        (name, _bare(hint), EMPTY if name in record.__required_keys__ else ...)
        for name, hint in hints.items()
    ]


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return EMPTY if field.default_factory is dataclasses.MISSING else ...


def _bare(hint: Any) -> Any:
    wrapped = typing.get_origin(hint) in (typing.Required, typing.NotRequired)
    return typing.get_args(hint)[0] if wrapped else hint


def _field(name: str, hint: Any, default: Any) -> str:
    shown = name if hint is EMPTY else f"{name}: {format_hint(hint)}"
    if default is EMPTY:
        return shown
    return f"{shown} = {'...' if default is ... else _literal(default)}"
