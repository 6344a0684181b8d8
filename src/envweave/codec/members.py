"""The members of a union whose values have fields: kinds of actions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from envweave.codec.branches import Dictionary, Either, Model, Record
from envweave.codec.leaves import Choice
from envweave.codec.spec import AgentsSpec, Spec
from envweave.codec.structs import Struct


def members_of(spec: Spec) -> dict[str, Spec]:
    """Return the members of a union by name, if at least one has fields; else nothing.

    `None` is no member of its own.
    """
    if not isinstance(spec, Either):
        return {}
    options = [
        one for one in spec.options if not (isinstance(one, Choice) and one.values == [None])
    ]
    if not any(_has_fields(option) for option in options):
        return {}
    members: dict[str, Spec] = {}
    for option in options:
        name = _name(option)
        members[name if name not in members else f"{name} {len(members) + 1}"] = option
    return members


def _has_fields(spec: Spec) -> bool:
    return isinstance(spec, Record | Model | Struct) or (
        isinstance(spec, Dictionary) and spec.fields is not None
    )


def _name(spec: Spec) -> str:
    if isinstance(spec, Record | Model | Struct):
        return spec.cls.__name__
    return spec.name if isinstance(spec, Dictionary) else type(spec).__name__.lower()


def draw_each_member(spec: Spec, rng: np.random.Generator) -> Iterator[tuple[str, Any]]:
    """Yield a name and a value for every member of every union in a spec, so that each is seen.

    Of a spec for several agents it yields nothing: each agent's is asked for by itself.

    Raises:
        SpecError: A member cannot be drawn.
    """
    if isinstance(spec, AgentsSpec):
        return
    for name, member in members_of(spec).items():
        inside = list(draw_each_member(member, rng))
        yield from [(f"{name}.{part}", value) for part, value in inside] or [
            (name, member.sample(rng))
        ]
    if not isinstance(spec, Record | Model | Struct):
        return
    for field, one in spec.fields.items():
        for name, value in draw_each_member(one, rng):
            drawn = spec.sample(rng)
            plain = {other: getattr(drawn, other) for other in spec.fields}
            yield f"{field}={name}", spec.read({**plain, field: value})
