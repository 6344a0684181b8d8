"""Regular expressions: checking strings against one, and sampling strings that match.

Sampling walks the expression as parsed by Python's own parser, and draws a string part by part.
Lookarounds and conditions cannot be sampled that way.
"""

from __future__ import annotations

import datetime
import math
import re
import string
import uuid
from collections.abc import Callable
from re import _constants as sre  # type: ignore[attr-defined] # no other way to a parsed one
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, final

import numpy as np

from envweave.errors import DefinitionError

_LETTERS = string.ascii_letters + string.digits + "_- ,.:/"
_PRINTABLE = "".join(chr(code) for code in range(32, 127))
_REACH = 8  # the most repetitions drawn for an unbounded repeat
_MAX_PARTS = 40_000
_ENDLESS = 1e4  # the assumed repetitions of an unbounded repeat, to estimate the search time
_FEW_WAYS = 1e6
_CLASSES: dict[Any, Callable[[str], bool]] = {
    sre.CATEGORY_DIGIT: str.isdigit,
    sre.CATEGORY_NOT_DIGIT: lambda one: not one.isdigit(),
    sre.CATEGORY_SPACE: str.isspace,
    sre.CATEGORY_NOT_SPACE: lambda one: not one.isspace(),
    sre.CATEGORY_WORD: lambda one: one.isalnum() or one == "_",
    sre.CATEGORY_NOT_WORD: lambda one: not (one.isalnum() or one == "_"),
}


class UndrawableError(Exception):
    """The expression has a part that cannot be sampled. Never leaves the codec."""


@final
class Pattern:
    """A regular expression that a string must contain; `^` and `$` anchor it.

    Attributes:
        text: The expression.
        is_simple: Whether searching for it is fast for any string: it has at most one unbounded
            repeat, and no repeated part has alternatives.
        can_sample: Whether matching strings can be drawn.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise DefinitionError(f"pattern must be a str, got {text!r}.")
        self.text = text
        try:
            self._compiled = re.compile(text)
            self._parsed = parser.parse(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise DefinitionError(
                f"pattern={text!r} is not a regular expression: {error}."
            ) from None
        self.is_simple = _ways(self._parsed, repeated=False) <= _FEW_WAYS
        try:
            self.draw(np.random.default_rng(0))
            self.can_sample = True
        except UndrawableError:
            self.can_sample = False

    def is_in(self, value: str) -> bool:
        """Whether a string contains it."""
        return self._compiled.search(value) is not None

    def draw(self, rng: np.random.Generator) -> str:
        """Draw a string that should contain it; word boundaries may not hold.

        Raises:
            UndrawableError: It has a part that cannot be drawn.
        """
        return _Draw(rng).parts(self._parsed)


@final
class _Draw:
    """Draws one string."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._left = _MAX_PARTS
        self._groups: dict[int, str] = {}

    def parts(self, parts: Any) -> str:
        return "".join(self._part(kind, value) for kind, value in parts)

    def _part(self, kind: Any, value: Any) -> str:
        self._count()
        if kind is sre.LITERAL:
            return chr(value)
        if kind is sre.NOT_LITERAL:
            return self._one_of([one for one in _PRINTABLE if ord(one) != value])
        if kind is sre.ANY:
            return self._one_of(_LETTERS)
        if kind is sre.IN:
            return self._member(value)
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            return self._repeated(*value)
        if kind is sre.BRANCH:
            return self.parts(value[1][int(self._rng.integers(len(value[1])))])
        if kind is sre.SUBPATTERN:
            group, *_, inside = value
            drawn = self.parts(inside)
            if group is not None:
                self._groups[group] = drawn
            return drawn
        if kind is sre.ATOMIC_GROUP:
            return self.parts(value)
        if kind is sre.GROUPREF:
            return self._groups.get(value, "")
        if kind is sre.AT:
            return ""
        raise UndrawableError(str(kind))

    def _repeated(self, low: int, high: Any, inside: Any) -> str:
        most = low + _REACH if high is sre.MAXREPEAT else min(high, low + _REACH)
        count = int(self._rng.integers(low, most, endpoint=True))
        # Repeats of nothing count too: a pattern may come from a server.
        return "".join(self._repetition(inside) for _ in range(count))

    def _repetition(self, inside: Any) -> str:
        self._count()
        return self.parts(inside)

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise UndrawableError("too long")

    def _member(self, choices: Any) -> str:
        kinds = [kind for kind, _ in choices]
        if sre.NEGATE not in kinds:
            kind, value = choices[int(self._rng.integers(len(choices)))]
            if kind is sre.LITERAL:
                return chr(value)
            if kind is sre.RANGE:
                return chr(int(self._rng.integers(value[0], value[1], endpoint=True)))
        return self._one_of([one for one in _PRINTABLE if _is_member(one, choices)])

    def _one_of(self, letters: Any) -> str:
        if not letters:
            raise UndrawableError("a set of letters without any that can be printed")
        return str(letters[int(self._rng.integers(len(letters)))])


def _is_member(letter: str, choices: Any) -> bool:
    negated = bool(choices) and choices[0][0] is sre.NEGATE
    for kind, value in choices:
        if kind is sre.LITERAL and ord(letter) == value:
            return not negated
        if kind is sre.RANGE and value[0] <= ord(letter) <= value[1]:
            return not negated
        if kind is sre.CATEGORY and _CLASSES[value](letter):
            return not negated
    return negated


def _ways(parts: Any, *, repeated: bool) -> float:
    """Estimate in how many ways a search may match these parts."""
    ways = 1.0
    for kind, value in parts:
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            low, high, inside = value
            count = _ENDLESS if high is sre.MAXREPEAT else high - low + 1
            if (repeated and count > 1) or _ways(inside, repeated=True) > 1:
                return math.inf
            ways *= count
        elif kind is sre.SUBPATTERN:
            ways *= _ways(value[-1], repeated=repeated)
        elif kind is sre.BRANCH:
            ways *= math.inf if repeated else sum(_ways(one, repeated=False) for one in value[1])
        elif kind not in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN, sre.AT):
            return math.inf
    return ways


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
"""The formats that can be sampled, by their JSON Schema name."""
