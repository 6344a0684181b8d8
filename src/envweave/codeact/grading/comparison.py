"""Compares an agent's answer with the expected value: on the host, as plain data.

An answer is untrusted. No method of it is ever called: an object whose class is not plain data is
not even compared. The work is bounded by the size of the expected value, whatever the answer is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from envweave.errors import OptionError

DEEPEST = 64
"""How deep lists, dicts and sets may nest. Anything deeper equals nothing."""

_LONGEST_NUMBER = 1000
_FLOAT_BITS = 1024  # an int with more bits is larger than every float
_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_NUMPY_NUMBERS = frozenset(np.sctypeDict.values())
_KINDS: dict[type, str] = {
    type(None): "none",
    bool: "bool",
    int: "number",
    float: "number",
    complex: "complex",
    str: "text",
    bytes: "bytes",
    list: "list",
    tuple: "list",
    np.ndarray: "list",
    set: "set",
    frozenset: "set",
    dict: "dict",
}


class _NotComparableError(Exception):
    """A part is not plain data, or nested too deep."""


class _Closeness(NamedTuple):
    """How far two numbers may be apart."""

    relative: float
    absolute: float
    exact_integers: bool


def is_same(
    answer: Any,
    expected: Any,
    *,
    relative: float = 0.0,
    absolute: float = 0.0,
    exact_integers: bool = False,
) -> bool:
    """Whether an answer is the expected one. Never raises, whatever the answer is.

    Numbers are the same if they are equal, or no further apart than the larger tolerance. A bool
    is not a number: `True` is not 1. Text is not the number that it spells, `[42]` is not 42, and
    a complex number is not a real one. NaN equals only an expected NaN. Lists, tuples and arrays
    are the same if they have the same items in the same order, and the same shape; sets and
    frozensets if they have the same items; dicts if they have the same values for the same keys.
    An array without dimensions is the number in it.

    Args:
        answer: The result of the code.
        expected: See `read_expected`.
        relative: A tolerance, as a fraction of the expected number.
        absolute: An absolute tolerance.
        exact_integers: Whether only `absolute` applies to two integers.

    Raises:
        OptionError: No answer can equal the expected value; or a tolerance is not a number >= 0.
    """
    for name, given in (("relative", relative), ("absolute", absolute)):
        check_tolerance(name, given)
    close = _Closeness(float(relative), float(absolute), exact_integers)
    checked = read_expected(expected, "expected")
    try:
        return _same(answer, checked, close, 0)
    except (_NotComparableError, RecursionError):
        return False


def read_expected(value: Any, name: str = "expected_answer") -> Any:
    """Return a copy of an expected value, in builtin types.

    Numbers of numpy become Python's; an instance of a subclass becomes one of its base class.

    Raises:
        OptionError: No answer can be the same: it is not plain data, or nested too deep. The
            message does not quote it.
    """
    try:
        return _copy(value, 0)
    except _NotComparableError as error:
        raise OptionError(
            f"{name}: answers cannot be compared with {error}. Use None, numbers, text, bytes, "
            f"arrays of numbers, or lists, tuples, sets and dicts of those, at most {DEEPEST} deep."
        ) from None


def read_number(text: str) -> int | float | None:
    """Return the number that a text consists of, apart from blanks; or `None`.

    >>> read_number(" -1.5e3 "), read_number("42"), read_number("42 apples")
    (-1500.0, 42, None)
    """
    if len(text) > _LONGEST_NUMBER:
        return None
    digits = text.strip()
    if _NUMBER.fullmatch(digits) is None:
        return None
    number = float(digits)
    if digits.lstrip("+-").isdigit():
        return int(digits)
    return number if math.isfinite(number) else None


def check_tolerance(name: str, given: Any) -> None:
    """Check a tolerance.

    Raises:
        OptionError: It is not a number >= 0.
    """
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not 0 <= given < math.inf:
        raise OptionError(f"{name}={given!r}: a tolerance must be a number >= 0.")


def _same(answer: Any, expected: Any, close: _Closeness, depth: int) -> bool:
    answer, expected = _as_python(answer), _as_python(expected)
    kind = _KINDS[type(expected)]
    if _KINDS.get(type(answer)) != kind or depth > DEEPEST:
        return False
    if kind == "number":
        return _same_number(answer, expected, close)
    if kind == "complex":
        return _same_complex(answer, expected, close)
    if kind == "list":
        return _same_lists(answer, expected, close, depth)
    if kind == "set":
        return _same_sets(answer, expected, close, depth)
    if kind == "dict":
        return _same_dicts(answer, expected, close, depth)
    return bool(answer == expected)


def _same_number(answer: float, expected: float, close: _Closeness) -> bool:
    if answer == expected:
        return True
    if isinstance(answer, int) and isinstance(expected, int):
        apart = abs(answer - expected)
        if apart <= close.absolute:
            return True
        return not close.exact_integers and _is_part(apart, close.relative, expected)
    if answer != answer or expected != expected:
        return answer != answer and expected != expected
    if not _is_finite(answer) or not _is_finite(expected):
        return False
    return _are_close(Fraction(answer), Fraction(expected), close)


def _is_part(apart: int, relative: float, expected: int) -> bool:
    """Whether `apart` is at most that fraction of `expected`, however large both are."""
    above, below = relative.as_integer_ratio()
    return apart * below <= above * abs(expected)


def _is_finite(number: float) -> bool:
    """Whether a number is within the range of floats."""
    if isinstance(number, int):
        return number.bit_length() <= _FLOAT_BITS
    return math.isfinite(number)


def _are_close(answer: Fraction, expected: Fraction, close: _Closeness) -> bool:
    """Compare exactly: float arithmetic with a large int would round the difference away."""
    allowed = max(Fraction(close.relative) * abs(expected), Fraction(close.absolute))
    return abs(answer - expected) <= allowed


def _same_complex(answer: complex, expected: complex, close: _Closeness) -> bool:
    if answer == expected:
        return True
    apart, size = abs(answer - expected), abs(expected)
    if not math.isfinite(apart) or not math.isfinite(size):
        return False
    return apart <= max(close.relative * size, close.absolute)


def _same_lists(answer: Any, expected: Any, close: _Closeness, depth: int) -> bool:
    if len(answer) != len(expected):
        return False
    arrays = [one for one in (answer, expected) if isinstance(one, np.ndarray)]
    if any(array.dtype.kind not in "biufc" for array in arrays):
        return False
    if len(arrays) == 2:
        if answer.shape != expected.shape:
            return False
        if answer.dtype == expected.dtype and np.array_equal(answer, expected):
            return True
    return all(
        _same(one, other, close, depth + 1)
        for one, other in zip(_items(answer), _items(expected), strict=True)
    )


def _items(sequence: Any) -> Iterable[Any]:
    """Return the items of a list; for an array with several dimensions, its subarrays."""
    if isinstance(sequence, np.ndarray) and sequence.ndim == 1:
        return sequence.tolist()  # type: ignore[no-any-return]
    return sequence  # type: ignore[no-any-return]


def _same_sets(answer: Any, expected: Any, close: _Closeness, depth: int) -> bool:
    if len(answer) != len(expected):
        return False
    given, wanted = _split_set(answer, depth), _split_set(expected, depth)
    if given.others != wanted.others or len(given.numbers) != len(wanted.numbers):
        return False
    # Sorted, so that each number meets its nearest counterpart.
    return all(map(_same_number, given.numbers, wanted.numbers, [close] * len(wanted.numbers)))


class _SetItems(NamedTuple):
    """The items of a set: its numbers, sorted, and comparison keys of all others."""

    numbers: list[float]
    others: set[Any]


def _split_set(items: Any, depth: int) -> _SetItems:
    numbers, others = [], set()
    for item in map(_as_python, items):
        if _KINDS.get(type(item)) == "number" and item == item:
            numbers.append(item)
        else:
            others.add(_key(item, depth + 1))
    return _SetItems(sorted(numbers), others)


def _same_dicts(answer: Any, expected: Any, close: _Closeness, depth: int) -> bool:
    if len(answer) != len(expected):
        return False
    given = {_key(key, depth + 1): value for key, value in answer.items()}
    wanted = {_key(key, depth + 1): value for key, value in expected.items()}
    return given.keys() == wanted.keys() and all(
        _same(given[key], value, close, depth + 1) for key, value in wanted.items()
    )


def _key(item: Any, depth: int) -> Any:
    """Return a hashable key, equal for two items exactly if they are the same."""
    if depth > DEEPEST:
        raise _NotComparableError("a value that is nested too deep")
    item = _as_python(item)
    kind = _KINDS.get(type(item))
    if kind == "list":
        return kind, tuple(_key(one, depth + 1) for one in item)
    if kind == "set":
        return kind, frozenset(_key(one, depth + 1) for one in item)
    if kind is None or kind == "dict":
        raise _NotComparableError(f"a {type(item).__name__}")
    return (kind, item) if item == item else (kind, "nan")


def _as_python(value: Any) -> Any:
    """Convert a number of numpy, or an array without dimensions, to a number of Python."""
    kind = type(value)
    if kind in _NUMPY_NUMBERS or (kind is np.ndarray and value.ndim == 0):
        return value.item()
    return value


def _copy(value: Any, depth: int) -> Any:
    if depth > DEEPEST:
        raise _NotComparableError("a value that is nested too deep, or contains itself")
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            raise _NotComparableError(f"an array of {value.dtype}")
        wide = {"g": "f8", "G": "c16"}.get(value.dtype.char, value.dtype)  # Python has no wider
        return np.array(value, dtype=wide, copy=True, subok=False)
    if isinstance(value, np.longdouble):
        value = float(value)
    if isinstance(value, np.generic):
        value = value.item()
    for base in type(value).__mro__:
        if base is list or base is tuple or base is set or base is frozenset:
            return base(_copy(one, depth + 1) for one in value)
        if base is dict:
            return {_copy(key, depth + 1): _copy(one, depth + 1) for key, one in value.items()}
        if base is bool or base is type(None):
            return value
        if base in _KINDS:
            return base(value)
    raise _NotComparableError(f"a {type(value).__name__}")
