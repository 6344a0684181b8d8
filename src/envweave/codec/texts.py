"""Random texts: of a length, that match a pattern, or in one of JSON Schema's formats."""

from __future__ import annotations

import datetime
import re
import string
import uuid
from collections.abc import Callable
from re import _constants, _parser  # type: ignore[attr-defined] # as `re` itself reads a pattern
from typing import Any, final

import numpy as np

from envweave.errors import SpecError

_LETTERS = string.ascii_letters + string.digits + " "
_PRINTABLE = [chr(code) for code in range(32, 127)]
_WIDTH = 16
_REPEATS = 4
MAX_DRAWN = 10_000
"""How long a text may be that is drawn."""

_EPOCH = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)


def _moment(rng: np.random.Generator) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(seconds=int(rng.integers(10**9)))


FORMATS: dict[str, Callable[[np.random.Generator], str]] = {
    "date": lambda rng: _moment(rng).date().isoformat(),
    "date-time": lambda rng: _moment(rng).isoformat(),
    "time": lambda rng: _moment(rng).timetz().isoformat(),
    "duration": lambda rng: f"PT{int(rng.integers(3600))}S",
    "uuid": lambda rng: str(uuid.UUID(bytes=rng.bytes(16), version=4)),
    "email": lambda rng: f"name{int(rng.integers(1000))}@example.com",
    "uri": lambda rng: f"https://example.com/{int(rng.integers(1000))}",
    "ipv4": lambda rng: ".".join(str(int(part)) for part in rng.integers(1, 255, size=4)),
}
"""The formats that can be drawn, by the name that JSON Schema has for them."""


def draw_text(rng: np.random.Generator, low: int = 0, high: int | None = None) -> str:
    """Draw letters, digits and blanks: up to 16, or as few more as `low` asks for."""
    most = max(low, _WIDTH) if high is None else min(high, max(low, _WIDTH))
    length = int(rng.integers(low, most + 1))
    return "".join(_LETTERS[i] for i in rng.integers(len(_LETTERS), size=length))


def draw_match(pattern: str, rng: np.random.Generator) -> str:
    """Draw a text in which the pattern is found, and nothing before or after the match.

    Raises:
        SpecError: The pattern is none, asks for what is not drawn, such as a look ahead, or for
            more than `MAX_DRAWN` letters.
    """
    try:
        return _Drawing(rng).all_of(_parser.parse(pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise SpecError(f"{pattern!r} is not a pattern that Python reads: {error}.") from None


def can_draw(pattern: str) -> bool:
    """Whether `draw_match` can draw a text for this pattern."""
    try:
        draw_match(pattern, np.random.default_rng(0))
    except SpecError:
        return False
    return True


@final
class _Drawing:
    """Draws one text, part by part."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._left = MAX_DRAWN

    def all_of(self, parts: Any, times: int = 1) -> str:
        drawn = []
        for _ in range(times):
            self._left -= 1
            if self._left < 0:
                raise SpecError(f"A pattern asks for more than {MAX_DRAWN} letters.")
            drawn += [self._draw(*part) for part in parts]
        return "".join(drawn)

    def _draw(self, kind: Any, details: Any) -> str:
        match str(kind):
            case "LITERAL":
                return chr(details)
            case "NOT_LITERAL":
                return self._one([one for one in _PRINTABLE if ord(one) != details])
            case "ANY":
                return self._one(_PRINTABLE)
            case "AT":
                return ""  # the beginning or the end, where the match is all there is
            case "IN":
                return self._one(_members(details))
            case "BRANCH":
                return self.all_of(details[1][int(self._rng.integers(len(details[1])))])
            case "SUBPATTERN":
                return self.all_of(details[3])
            case "MAX_REPEAT" | "MIN_REPEAT":
                low, high, repeated = details
                most = low + _REPEATS if high is _constants.MAXREPEAT else min(high, low + _REPEATS)
                return self.all_of(repeated, int(self._rng.integers(low, most + 1)))
        raise SpecError(f"A pattern with {str(kind).lower()} in it cannot be drawn.")

    def _one(self, letters: list[str]) -> str:
        if not letters:
            raise SpecError("A pattern asks for a letter of a set that has none.")
        return letters[int(self._rng.integers(len(letters)))]


def _members(parts: Any) -> list[str]:
    wanted = [one for one in parts if str(one[0]) != "NEGATE"]
    found = [one for one in _PRINTABLE if any(_is_member(one, *part) for part in wanted)]
    if len(wanted) < len(parts):
        return [one for one in _PRINTABLE if one not in found]
    # What lies beyond ASCII is drawn only if there is nothing else.
    return found or [chr(details) for kind, details in wanted if str(kind) == "LITERAL"]


def _is_member(letter: str, kind: Any, details: Any) -> bool:
    match str(kind):
        case "LITERAL":
            return bool(ord(letter) == details)
        case "RANGE":
            return bool(details[0] <= ord(letter) <= details[1])
        case "CATEGORY":
            return re.fullmatch(_CATEGORIES[str(details)], letter) is not None
    return False


_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}
