"""`once`: a property that is worked out when somebody first looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, final

T = TypeVar("T")


@final
class once(Generic[T]):  # noqa: N801 - reads as `property` does
    """`functools.cached_property` without its lock, which batches have no use for.

    In Python 3.11 the lock is half of what a column of a batch costs, and a batch has six.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    def __get__(self, owner: Any, cls: type | None = None) -> T:
        if owner is None:
            return self  # type: ignore[return-value] # the property itself, for `help()`
        value = owner.__dict__[self._name] = self._make(owner)
        return value
