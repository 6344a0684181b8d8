"""What tools return, as the data that an agent sees."""

from __future__ import annotations

import dataclasses
import enum
import inspect
from typing import Any

_LEAVES = frozenset([str, int, float, bool, bytes, type(None)])


def as_data(value: Any) -> Any:
    """Return a value with dicts in the place of dataclasses, and values in that of enum members.

    Everything else stays as it is.

    Raises:
        TypeError: It is a coroutine that nobody awaited.
    """
    if type(value) in _LEAVES:
        return value
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError("it returned a coroutine. Register the `async` function itself.")
    try:
        return _converted(value)
    except RecursionError:  # it holds itself; whoever takes it says so
        return value


def _converted(value: Any) -> Any:
    kind = type(value)
    if kind in _LEAVES:
        return value
    if kind in (list, set, frozenset):
        return kind([_converted(one) for one in value]) if _has_more(value) else value
    if kind is tuple:
        return tuple([_converted(one) for one in value]) if _has_more(value) else value
    if kind is dict:
        if not _has_more(value.values()) and not _has_more(value):
            return value
        return {_converted(key): _converted(one) for key, one in value.items()}
    if isinstance(value, enum.Enum):
        return _converted(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {one.name: _converted(getattr(value, one.name)) for one in fields}
    return value


def _has_more(values: Any) -> bool:
    """Whether any of them is more than a number or a text."""
    return not _LEAVES.issuperset(map(type, values))
