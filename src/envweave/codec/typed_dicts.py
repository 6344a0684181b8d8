"""`TypedDict`s, of `typing` and of `typing_extensions`: which keys they have, and need."""

from __future__ import annotations

import sys
import typing
from typing import Any

from envweave.codec.type_arguments import field_hints

_QUALIFIERS = (typing.ClassVar, typing.Final, typing.Required, typing.NotRequired)


def is_typed_dict(hint: Any) -> bool:
    """Whether it is the class of a `TypedDict`."""
    if typing.is_typeddict(hint):
        return True
    # The one of `typing_extensions` is another, and exists only where that was imported.
    extensions = sys.modules.get("typing_extensions")
    return extensions is not None and bool(extensions.is_typeddict(hint))


def is_qualifier(origin: Any) -> bool:
    """Whether it stands around a type and says nothing of it: `Final`, `NotRequired`, …."""
    return origin in _QUALIFIERS or getattr(origin, "_name", None) == "ReadOnly"


def typed_dict_hints(cls: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Return the hints of its keys, for `cls[arguments]` where it is generic."""
    return field_hints(cls, arguments)


def is_required(cls: Any, name: str, hint: Any) -> bool:
    """Whether a key must be there. `NotRequired` may stand within another qualifier."""
    while is_qualifier(origin := typing.get_origin(hint)) or origin is typing.Annotated:
        if origin in (typing.Required, typing.NotRequired):
            return bool(origin is typing.Required)
        hint = typing.get_args(hint)[0]
    return name in cls.__required_keys__
