"""Conversion between specs and Gymnasium spaces."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from envweave.codec.containers import DataclassSpec, DictSpec, ListSpec, TupleSpec
from envweave.codec.pydantic_models import PydanticSpec, carries_outcome
from envweave.codec.scalars import ArraySpec, IntSpec, StrSpec
from envweave.codec.spec import Spec
from envweave.errors import MissingExtraError, SpecError
from envweave.types import Action, Observation

NOT_SHOWN = frozenset({"metadata", "reward", "done", "truncated"})
"""The base fields of `Action` and `Observation`, which are not part of a space."""


def gymnasium_module() -> ModuleType:
    """Import and return Gymnasium.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import gymnasium
    except ImportError:
        raise MissingExtraError.for_extra("Gymnasium is not installed.", "gym") from None
    return gymnasium


def shown_fields(record: DataclassSpec | PydanticSpec) -> dict[str, Spec]:
    """Return the author's own fields of a class, without those of the base classes."""
    if not issubclass(record.cls, Action | Observation) and not carries_outcome(record.cls):
        return dict(record.fields)
    return {name: spec for name, spec in record.fields.items() if name not in NOT_SHOWN}


def to_space(spec: Spec) -> Any:
    """Return the Gymnasium space of the values that `spec` allows.

    A choice and a bool become `Discrete` by index, a bounded int `Discrete` with a start, other
    numbers a `Box` of one item. Arrays become `MultiBinary` (bools, and int8 of 0 and 1),
    `MultiDiscrete` (int64 with both bounds) or `Box`. A list becomes a `Sequence`, a union
    `OneOf`. A dataclass becomes a `Dict` of the author's own fields, also where it has only one;
    but an `Action` of one field becomes that field's space, since few trainers act with a `Dict`.

    Raises:
        MissingExtraError: Gymnasium is not installed.
        SpecError: Gymnasium has no space for a part of it, which is named.
    """
    gymnasium_module()
    from envweave.codec.gymnasium_spaces import bridge

    return bridge(spec).space


def from_space(space: Any) -> Spec:
    """Return the spec of a Gymnasium space's values.

    Values of a float `Box` may lie beyond its bounds, as in Gymnasium, where the environment
    clips them. A space with no exact spec gets one that samples and checks with the space
    itself.

    Raises:
        MissingExtraError: Gymnasium is not installed.
        SpecError: It is not a Gymnasium space.
    """
    spaces = gymnasium_module().spaces
    from envweave.codec.gymnasium_spaces import AnyText, SizedSequence, SpaceSpec, SpecText

    match space:
        case spaces.Discrete():
            start = int(space.start)
            return IntSpec(start, start + int(space.n) - 1)
        case spaces.Box():
            low = space.low if space.bounded_below.any() else None
            high = space.high if space.bounded_above.any() else None
            return ArraySpec(space.shape, space.dtype, low, high, clips=space.dtype.kind == "f")
        case spaces.MultiBinary():
            return ArraySpec(space.shape, space.dtype, 0, 1)
        case spaces.MultiDiscrete():
            return ArraySpec(space.shape, space.dtype, space.start, space.start + (space.nvec - 1))
        case AnyText():
            return StrSpec()
        case SpecText():
            return space.spec
        case SizedSequence():
            return ListSpec(from_space(space.feature_space), kind=tuple, length=space.length)
        case spaces.Dict():
            return DictSpec(fields={key: from_space(one) for key, one in space.spaces.items()})
        case spaces.Tuple():
            return TupleSpec(from_space(one) for one in space.spaces)
        case spaces.Space():
            return SpaceSpec(space)
    raise SpecError(f"{space!r} is not a Gymnasium space.")
