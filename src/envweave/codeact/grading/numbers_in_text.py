"""Finds the number that a text comes to: its last."""

from __future__ import annotations

import math
import re

LONGEST_TEXT = 10_000
"""How many characters of a text are looked at: the last ones."""

_LONGEST_INT = 300  # digits, so that each has its place among the floats

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_UNSIGNED = rf"(?:{_DIGITS}(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_NUMBER = re.compile(
    rf"""
    (?P<sign>(?<![\w.)\]])[-+\u2212])?    # of a difference the minus is no sign
    (?:[$€£¥]\ ?(?P<inner>[-\u2212])?)?
    (?<![\w./])
    (?P<above>{_UNSIGNED})
    (?:\ ?/\ ?(?P<below>{_UNSIGNED})(?![\w./]))?
    """,
    re.VERBOSE,
)


def last_number(text: str) -> int | float | None:
    """Return the last number in a text, or `None` if there is none.

    `1,234.5` is read with its commas, `1e-3` with its exponent, `3/4` as a quotient. A sign of a
    currency and a percent sign are passed over: `$5` and `5%` are 5. Digits within words, as in
    `x2`, are none.

    >>> last_number("She had 3 apples and paid $1,234.50 for them.")
    1234.5
    >>> last_number("The answer is 42.")
    42
    """
    tail = text[-LONGEST_TEXT:]
    found = None
    for found in _NUMBER.finditer(tail):  # noqa: B007 - the last one is what is wanted
        pass
    if found is None or (found.start() == 0 and len(text) > len(tail)):  # cut in the middle
        return None
    value = _read(found["above"])
    if value is not None and found["below"] is not None:
        below = _read(found["below"])
        value = value / below if below else None
    if value is None or not math.isfinite(value):
        return None
    is_negative = (found["sign"] in ("-", "\u2212")) != (found["inner"] is not None)
    return -value if is_negative else value


def _read(digits: str) -> int | float | None:
    digits = digits.replace(",", "")
    if not digits.isdecimal():
        return float(digits)
    return int(digits) if len(digits) <= _LONGEST_INT else None
