"""The hints of a class's fields, evaluated, with its type variables filled in."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import Any

from envweave.errors import DefinitionError


def field_hints(cls: type, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Return the hints of a class by field, for `cls[arguments]` where it is generic.

    Raises:
        DefinitionError: They cannot be evaluated.
    """
    hints = _evaluated(cls)
    filled = _filled(cls, arguments)
    for name in hints:
        owner = next((base for base in cls.__mro__ if name in inspect.get_annotations(base)), cls)
        hints[name] = substitute(hints[name], filled.get(owner, {}))
    return hints


def _evaluated(cls: type) -> dict[str, Any]:
    try:
        try:
            return typing.get_type_hints(cls, include_extras=True)
        except NameError as error:
            # A class within a function may still name itself.
            if error.name != cls.__name__:
                raise
            return typing.get_type_hints(cls, None, {cls.__name__: cls}, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise DefinitionError(
            f"The type hints of {cls.__qualname__} cannot be read: {error}. "
            "Define the class at the top level of a module, or import the name it uses there."
        ) from error


def _filled(cls: Any, arguments: tuple[Any, ...]) -> dict[Any, dict[Any, Any]]:
    """What stands for each type variable, by the class that uses it."""
    own = dict(zip(getattr(cls, "__parameters__", ()), arguments, strict=False))
    filled = {cls: own}
    for base in getattr(cls, "__orig_bases__", ()):
        origin = typing.get_origin(base)
        if isinstance(origin, type) and origin is not typing.Generic:
            given = tuple(substitute(one, own) for one in typing.get_args(base))
            filled = {**_filled(origin, given), **filled}
    for base in cls.__bases__:
        if base not in filled:
            filled = {**_filled(base, ()), **filled}
    return filled


def substitute(hint: Any, filled: Mapping[Any, Any]) -> Any:
    """Return the hint with its type variables filled in, as far as they are known."""
    if isinstance(hint, typing.TypeVar):
        return filled.get(hint, hint)
    variables = () if isinstance(hint, type) else getattr(hint, "__parameters__", ())
    if not variables or not filled:
        return hint
    return hint[tuple(filled.get(one, one) for one in variables)]
