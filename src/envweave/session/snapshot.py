"""Private copies of values that an author could still write to."""

from __future__ import annotations

import copy
import dataclasses
import sys
from typing import Any

import numpy as np

from envweave.codec import Spec, spec_from_hint
from envweave.codec.containers import UnionSpec, shown_fields
from envweave.codec.records import DataclassSpec
from envweave.codec.scalars import BoolSpec, EnumSpec, FloatSpec, IntSpec, StrSpec
from envweave.errors import BadReturnError, DefinitionError
from envweave.types import State

IMMUTABLE: frozenset[type] = frozenset((str, bytes, int, float, bool, complex, type(None)))

# Properties of classes, computed once per class.
_FLAT: dict[Any, bool] = dict.fromkeys(IMMUTABLE, True)
_NAMES: dict[Any, tuple[str, ...]] = {}
_PLAIN: dict[Any, bool] = {}


def snapshot(value: Any) -> Any:
    """Return a copy of an observation that no later call can change.

    Raises:
        BadReturnError: It holds something that cannot be copied.
    """
    try:
        return _copy(value)
    except RecursionError:
        raise BadReturnError(
            f"An observation of type {type(value).__name__} holds itself, or is nested too deep."
        ) from None


def _copy(value: Any) -> Any:
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    if kind is np.ndarray:
        return value.copy()
    if kind is dict:
        return {key: _copy(one) for key, one in value.items()}
    if kind is list:
        return [_copy(one) for one in value]
    if kind is tuple:
        return tuple([_copy(one) for one in value])
    if dataclasses.is_dataclass(value):
        copied = _shallow_copy(value, kind)
        for name in _field_names(kind):
            one = getattr(value, name, None)
            if type(one) not in IMMUTABLE:
                object.__setattr__(copied, name, _copy(one))  # works for frozen dataclasses too
        return copied
    try:
        return copy.deepcopy(value)
    except RecursionError:
        raise
    except Exception as error:
        raise BadReturnError(
            f"An observation of type {kind.__name__} cannot be copied ({error}). Observations "
            "are data: arrays, text, dataclasses, dicts, lists."
        ) from error


def _shallow_copy(value: Any, cls: Any) -> Any:
    """Like `copy.copy`, in a third of the time for classes without copy hooks."""
    plain = _PLAIN.get(cls)
    if plain is None:
        plain = _PLAIN[cls] = copies_plainly(cls)
    if not plain:
        return copy.copy(value)
    copied = object.__new__(cls)
    copied.__dict__.update(value.__dict__)
    return copied


def copies_plainly(cls: Any) -> bool:
    """Whether a copy or a pickle of an object is its `__dict__`, and runs no code of the class."""
    own = ("__copy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__slots__")
    return not any(name in vars(base) for base in cls.__mro__[:-1] for name in own)


def _field_names(cls: Any) -> tuple[str, ...]:
    names = _NAMES.get(cls)
    if names is None:
        names = _NAMES[cls] = tuple(field.name for field in dataclasses.fields(cls))
    return names


def snapshot_info(info: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of an info: a new dict with a copy of the action mask."""
    kept = info.copy()
    if "action_mask" in kept:
        kept["action_mask"] = snapshot(kept["action_mask"])
    return kept


def snapshot_state(state: Any, episode_id: str | None, step_count: int) -> State:
    """Return a copy of an author's state, with missing fields filled in."""
    kept: State = snapshot(state)
    if isinstance(kept, State) and kept.episode_id is None:
        object.__setattr__(kept, "episode_id", episode_id)
        object.__setattr__(kept, "step_count", kept.step_count or step_count)
    return kept


def _references(outcome: Any) -> int:
    observation = outcome
    return sys.getrefcount(observation)


UNSHARED_REFCOUNT = _references(object())
"""The reference count of an argument under two local names that nothing else refers to.

Nothing else can then write to the object.
"""


def is_shallow_immutable(cls: Any) -> bool:
    """Whether an object of this class holds only immutable values.

    True for numbers, strings, and dataclasses of those. `metadata` is checked separately.
    """
    known = _FLAT.get(cls)
    if known is None:
        known = _FLAT[cls] = _has_immutable_fields(cls)
    return known


def _has_immutable_fields(cls: Any) -> bool:
    if not dataclasses.is_dataclass(cls):
        return False
    try:
        spec = spec_from_hint(cls)
    except DefinitionError:
        return False
    return isinstance(spec, DataclassSpec) and all(map(_is_immutable, shown_fields(spec).values()))


def _is_immutable(spec: Spec) -> bool:
    if isinstance(spec, UnionSpec):
        return all(map(_is_immutable, spec.options))
    return isinstance(spec, BoolSpec | EnumSpec | IntSpec | FloatSpec | StrSpec)
