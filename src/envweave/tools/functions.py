"""The arguments of a plain function, from its signature, its hints and its docstring."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from envweave.tools.arguments import EMPTY, Argument, Arguments
from envweave.tools.json_schema import checked_by_hint

_GOOGLE = re.compile(r"(?:Args|Arguments|Parameters|Keyword Args|Keyword Arguments|Params):\s*$")
_GOOGLE_ENTRY = re.compile(
    r"(?P<names>\*{0,2}\w+)\s*(?:\((?P<type>.*?)\))?\s*:(?:\s+(?P<text>.*))?$"
)
_NUMPY = re.compile(r"(?:Other )?Parameters\s*$")
_NUMPY_ENTRY = re.compile(r"(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")
_RULE = re.compile(r"-{3,}\s*$")
_REST = re.compile(
    r":(?:param|parameter|arg|argument|key|keyword)\s+(?P<names>[^:]+):\s*(?P<text>.*)$"
)
_REST_TYPE = re.compile(r":(?:type|rtype)\b[^:]*:")


@dataclass(frozen=True, slots=True)
class Documentation:
    """A parsed docstring.

    Attributes:
        text: The docstring without the section on arguments.
        arguments: The description of each argument, by name, on one line.
    """

    text: str = ""
    arguments: dict[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The first paragraph, on one line."""
        return _joined(self.text.split("\n\n", 1)[0].splitlines())


def read_docstring(docstring: str | None) -> Documentation:
    """Parse a docstring in Google, NumPy or reST style; any other is all text."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    kept: list[str] = []
    arguments: dict[str, str] = {}
    at = 0
    while at < len(lines):
        found, end = _section_at(lines, at)
        if end == at:
            kept.append(lines[at])
            at += 1
        else:
            arguments |= found
            at = end
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    return Documentation(text, arguments)


def _section_at(lines: list[str], at: int) -> tuple[dict[str, str], int]:
    """Return the arguments that the section at this line describes, and the line after it."""
    line = lines[at]
    if _GOOGLE.match(line):
        end = _end_of_indented(lines, at + 1)
        entries = _google(lines[at + 1 : end])
        return (entries, end) if entries else ({}, at)
    if _NUMPY.match(line) and at + 1 < len(lines) and _RULE.match(lines[at + 1]):
        end = _end_of_numpy(lines, at + 2)
        return _numpy(lines[at + 2 : end]), end
    if _REST_TYPE.match(line):
        return {}, _end_of_indented(lines, at + 1, blank_ends=True)
    if rest := _REST.match(line):
        end = _end_of_indented(lines, at + 1, blank_ends=True)
        name = rest["names"].split()[-1].lstrip("*")
        return {name: _joined([rest["text"], *lines[at + 1 : end]])}, end
    return {}, at


def _google(lines: list[str]) -> dict[str, str]:
    body = inspect.cleandoc("\n".join(["", *lines])).splitlines()
    return _entries(body, _GOOGLE_ENTRY)


def _numpy(lines: list[str]) -> dict[str, str]:
    return _entries(lines, _NUMPY_ENTRY)


def _entries(lines: list[str], pattern: re.Pattern[str]) -> dict[str, str]:
    """Return the text after the colon of each entry, and the indented lines below it."""
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in lines:
        entry = None if line.startswith((" ", "\t")) else pattern.match(line)
        if entry is not None:
            names = [one.strip().lstrip("*") for one in entry["names"].split(",")]
            text = entry.groupdict().get("text") or ""
            found |= {name: [text] for name in names}
        else:
            for name in names:
                found[name].append(line)
    return {name: _joined(text) for name, text in found.items()}


def _end_of_indented(lines: list[str], at: int, *, blank_ends: bool = False) -> int:
    end = at
    while end < len(lines) and (
        lines[end].startswith((" ", "\t")) or (not lines[end].strip() and not blank_ends)
    ):
        end += 1
    return end


def _end_of_numpy(lines: list[str], at: int) -> int:
    """Return the line of the next underlined heading, or the end."""
    for end in range(at, len(lines) - 1):
        if _RULE.match(lines[end + 1]) and lines[end].strip():
            return end
    return len(lines)


def _joined(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def arguments_of(
    tool: str, function: Callable[..., Any], documentation: Documentation
) -> Arguments:
    """Return the arguments of a function.

    An argument whose hint cannot be evaluated is not checked.
    """
    signature = _signature(function)
    if signature is None:
        return Arguments(tool, (), known=False)
    names = _names_around(function)
    arguments = [
        Argument(
            name=one.name,
            kind=one.kind,
            hint=_evaluated(one.annotation, names),
            default=one.default,
            description=documentation.arguments.get(one.name, ""),
        )
        for one in signature.parameters.values()
    ]
    return Arguments(
        tool,
        map(checked_by_hint, arguments),
        returns=_evaluated(signature.return_annotation, names),
    )


def is_async(function: Callable[..., Any]) -> bool:
    """Whether its result must be awaited."""
    function = _inmost(function)
    if inspect.isroutine(function) or inspect.isclass(function):
        return inspect.iscoroutinefunction(function)
    return inspect.iscoroutinefunction(type(function).__call__)


def own_docstring(function: Callable[..., Any]) -> str:
    """Return the docstring of a function, or an empty string.

    For a `partial` it is that of the inner function, never that of `partial` itself.
    """
    function = _inmost(function)
    if not inspect.isroutine(function) and not inspect.isclass(function):
        called = type(function).__call__
        own = type(function).__doc__ if called.__doc__ is None else called.__doc__
        return inspect.cleandoc(own or "")
    return inspect.getdoc(function) or ""


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    options: dict[str, Any] = {}
    if sys.version_info >= (3, 14):  # annotations are evaluated lazily
        import annotationlib

        options["annotation_format"] = annotationlib.Format.FORWARDREF
    try:
        return inspect.signature(function, **options)
    except (TypeError, ValueError):  # some functions written in C have none
        return None


def _inmost(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _names_around(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the names that the hints of a function may use: the globals of its module."""
    function = _inmost(function)
    if inspect.isclass(function):
        function = function.__init__
    elif not inspect.isroutine(function):
        function = type(function).__call__
    function = inspect.unwrap(function)
    found: dict[str, Any] = getattr(function, "__globals__", {})
    return found


def _evaluated(annotation: Any, names: dict[str, Any]) -> Any:
    if annotation is EMPTY:
        return EMPTY
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, names, include_extras=True)["it"]
    except Exception:  # noqa: BLE001 - evaluating an author's annotations may do anything
        return EMPTY
