"""The arguments of a plain function, from its signature, its hints and its docstring."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

from envweave.tools.arguments import EMPTY, Argument, Arguments
from envweave.tools.docstrings import Documentation
from envweave.tools.schemas import checked_by_hint


def arguments_of(
    tool: str, function: Callable[..., Any], documentation: Documentation
) -> Arguments:
    """Return what a function takes.

    An argument whose hint cannot be evaluated is taken as it comes.
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
    """Whether what it returns must be awaited."""
    function = _inmost(function)
    if inspect.isroutine(function) or inspect.isclass(function):
        return inspect.iscoroutinefunction(function)
    return inspect.iscoroutinefunction(type(function).__call__)


def own_docstring(function: Callable[..., Any]) -> str:
    """Return the docstring that a function's author wrote, or nothing.

    That of a `partial` is the function's inside it, never that of `partial` itself.
    """
    function = _inmost(function)
    if not inspect.isroutine(function) and not inspect.isclass(function):
        called = type(function).__call__
        own = type(function).__doc__ if called.__doc__ is None else called.__doc__
        return inspect.cleandoc(own or "")
    return inspect.getdoc(function) or ""


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    wanted: dict[str, Any] = {}
    if sys.version_info >= (3, 14):  # where annotations are evaluated only now
        import annotationlib

        wanted["annotation_format"] = annotationlib.Format.FORWARDREF
    try:
        return inspect.signature(function, **wanted)
    except (TypeError, ValueError):  # some functions written in C have none
        return None


def _inmost(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _names_around(function: Callable[..., Any]) -> dict[str, Any]:
    """The names that the hints of a function may use: those of the module that it stands in."""
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
