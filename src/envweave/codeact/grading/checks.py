"""What a test says of a value, decided on the host."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, final

import numpy as np

from envweave.codeact.answers import is_same, read_expected
from envweave.errors import OptionError

Kind = Literal[
    "equal",
    "unequal",
    "among",
    "not among",
    "holding",
    "not holding",
    "true",
    "close",
    "closer",
    "printed",
]

_MOST_ITEMS = 100_000
"""How many items of an answer are looked through."""


@final
@dataclass(frozen=True, slots=True)
class Check:
    """What must be true of a value. Its `repr` does not tell what is expected.

    Attributes:
        kind: How the value must stand to what is expected.
        expected: What is expected: plain data.
        absolute: How far numbers may be apart.
        relative: How far, as a part of the larger number; for `"close"`.

    Raises:
        OptionError: No value can be so.
    """

    kind: Kind
    expected: Any = field(repr=False)
    absolute: float = 0.0
    relative: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "expected", read_expected(self.expected, "expected"))
        if self.kind in ("among", "not among") and not isinstance(
            self.expected, str | list | tuple | set | frozenset | dict
        ):
            raise OptionError("`in` needs text, a list, a tuple, a set or a dict to look in.")

    def holds(self, value: Any) -> bool:
        """Say whether it is true of plain data. It never raises."""
        return _DECIDE[self.kind](self, value)


def _is_equal(check: Check, value: Any) -> bool:
    return is_same(value, check.expected, absolute=check.absolute)


def _is_among(check: Check, value: Any) -> bool:
    if isinstance(check.expected, str):
        return isinstance(value, str) and value in check.expected
    return any(is_same(value, one) for one in check.expected)


def _holds(check: Check, value: Any) -> bool:
    if isinstance(value, str):
        return isinstance(check.expected, str) and check.expected in value
    return _can_hold(value) and any(is_same(one, check.expected) for one in value)


def _lacks(check: Check, value: Any) -> bool:
    return _can_hold(value) and not _holds(check, value)


def _can_hold(value: Any) -> bool:
    if not isinstance(value, str | list | tuple | set | frozenset | dict):
        return False
    return isinstance(value, str) or len(value) <= _MOST_ITEMS


def _is_true(check: Check, value: Any) -> bool:
    if isinstance(value, np.ndarray):  # which is neither
        return False
    return bool(value) is check.expected


def _is_close(check: Check, value: Any) -> bool:
    if type(value) not in (int, float):
        return False
    try:
        return math.isclose(value, check.expected, rel_tol=check.relative, abs_tol=check.absolute)
    except OverflowError:  # an int beyond all floats
        return bool(value == check.expected)


def _is_closer(check: Check, value: Any) -> bool:
    if type(value) not in (int, float):
        return False
    try:
        return bool(abs(value - check.expected) < check.absolute)
    except OverflowError:
        return False


def _is_printed(check: Check, value: Any) -> bool:
    return isinstance(value, str) and _lines(value) == _lines(check.expected)


def _lines(text: str) -> list[str]:
    """Return the lines of a text, without the blanks that nobody sees."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


_DECIDE: dict[Kind, Callable[[Check, Any], bool]] = {
    "equal": _is_equal,
    "unequal": lambda check, value: not _is_equal(check, value),
    "among": _is_among,
    "not among": lambda check, value: not _is_among(check, value),
    "holding": _holds,
    "not holding": _lacks,
    "true": _is_true,
    "close": _is_close,
    "closer": _is_closer,
    "printed": _is_printed,
}
