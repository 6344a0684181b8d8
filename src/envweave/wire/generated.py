"""Dataclasses made from JSON Schema, for a caller that does not have the author's own."""

from __future__ import annotations

import copy
import dataclasses
import functools
import keyword
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

from envweave.types import Action, Observation, State

MAX_FIELDS = 1000
"""How many fields a class may have; beyond, a dict does."""

UNKNOWN: Any = object()
"""Stands for a default that no schema tells."""

_PLAIN = (type(None), bool, int, float, str, bytes)


@final
@dataclass(frozen=True, slots=True)
class Member:
    """One field of a class that is to be made.

    Attributes:
        needed: Whether the constructor insists on it.
        default: What it is otherwise; `UNKNOWN` where only the author's class knows.
        derived: Whether the author's class works it out, so that no constructor takes it.
    """

    needed: bool
    default: Any = UNKNOWN
    derived: bool = False


def are_names(names: list[Any]) -> bool:
    """Whether a dataclass can have fields of these names.

    Python writes them into the source of an `__init__`, so that nothing else may pass.
    """
    return len(names) <= MAX_FIELDS and all(
        isinstance(name, str)
        and name.isidentifier()
        and not keyword.iskeyword(name)
        and not name.startswith("__")
        and unicodedata.normalize("NFKC", name) == name
        for name in names
    )


def base_for(role: type | None, names: Mapping[str, Any]) -> type | None:
    """Return the class to derive from: `role`, if the fields that it has are all there."""
    if role is None or not {field.name for field in dataclasses.fields(role)} <= names.keys():
        return None
    return role


def is_field(cls: type, name: str) -> bool:
    """Whether a class has a field of this name."""
    return any(field.name == name for field in dataclasses.fields(cls))


def is_all_of(cls: type, names: Mapping[str, Any]) -> bool:
    """Whether a class has exactly these fields."""
    return names.keys() == {field.name for field in dataclasses.fields(cls)}


def make_class(
    title: str, members: Mapping[str, Member], base: type | None, revive: Callable[..., Any]
) -> type:
    """Return a dataclass with these fields, derived from `base`.

    `revive` makes an instance again where it was pickled: it is called with the fields.
    """
    inherited = set() if base is None else {field.name for field in dataclasses.fields(base)}
    own, has_default = [], False
    for name, member in members.items():
        if name in inherited:
            continue
        own.append((name, Any, _field(member, kw_only=has_default)))
        has_default = has_default or not member.needed
    left_out = tuple(
        name
        for name, member in members.items()
        if not member.needed and member.default is UNKNOWN and name not in inherited
    )

    def post_init(self: Any) -> None:
        # Not sent then, so that the author's class puts in what it would.
        for name in left_out:
            if self.__dict__.get(name) is None:
                self.__dict__.pop(name, None)

    def reduce(self: Any) -> Any:
        return revive, (dict(self.__dict__),)

    def shallow_copy(self: Any) -> Any:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    namespace: dict[str, Any] = {"__reduce__": reduce, "__copy__": shallow_copy}
    namespace["__doc__"] = f"{title}, as the server describes it."
    if left_out:
        namespace["__post_init__"] = post_init
    name = title if title.isidentifier() and not keyword.iskeyword(title) else "Record"
    made = dataclasses.make_dataclass(
        name, own, bases=() if base is None else (base,), namespace=namespace
    )
    made.__module__ = __name__
    return made


def _field(member: Member, *, kw_only: bool) -> Any:
    if member.needed:
        return dataclasses.field(kw_only=kw_only)
    if member.default is UNKNOWN:
        return dataclasses.field(default=None, init=not member.derived)
    if isinstance(member.default, _PLAIN):
        return dataclasses.field(default=member.default, init=not member.derived)
    return dataclasses.field(
        default_factory=functools.partial(copy.deepcopy, member.default), init=not member.derived
    )


ROLES: dict[str, type] = {"action": Action, "observation": Observation, "state": State}
"""What a class may stand for, by name."""
