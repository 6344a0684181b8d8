"""Graders that compare the answer with an expected value: as data, numbers or text."""

from __future__ import annotations

import asyncio
import json
import math
import re
import signal
import subprocess
import sys
from typing import Any, NamedTuple, final

from envweave.codeact.grading.base import NOT_GIVEN, Attempt, Expected, Grade, Grader, GradingError
from envweave.codeact.grading.comparison import check_tolerance, is_same, read_expected
from envweave.errors import OptionError
from envweave.types import Task

_PROCESS_S = 60.0
"""Wall-clock limit of the process, generous for a busy machine."""

# Limits CPU time, not wall-clock time: a busy machine must not fail an answer.
_CHILD = """
import json, re, signal, sys
pattern, flags, text, full, seconds = json.load(sys.stdin)
search = re.compile(pattern, flags)
signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
print("yes" if (search.fullmatch if full else search.search)(text) else "no")
"""


def matches(pattern: str, flags: int, text: str, *, full: bool, timeout_s: float) -> bool | None:
    """Return whether a text matches, or `None` if the match exceeds its time limit.

    Blocks.

    Raises:
        GradingError: The process could not be started, or did not answer.
    """
    request = json.dumps([pattern, flags, text, full, timeout_s])
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            [sys.executable, "-I", "-S", "-c", _CHILD],
            input=request,
            capture_output=True,
            text=True,
            timeout=math.ceil(timeout_s) + _PROCESS_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GradingError(f"A pattern could not be matched: {type(error).__name__}.") from error
    if done.returncode == -signal.SIGVTALRM:
        return None
    if done.returncode != 0:
        raise GradingError(f"A pattern could not be matched: status {done.returncode}.")
    return done.stdout.strip() == "yes"


LONGEST_TEXT = 10_000
"""How many characters of a text are searched: the last ones."""

_LONGEST_INT = 300  # digits, so that it can be converted to a float

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_UNSIGNED = rf"(?:{_DIGITS}(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_NUMBER = re.compile(
    rf"""
    (?P<sign>(?<![\w.)\]])[-+\u2212])?    # the minus of a difference is not a sign
    (?:[$€£¥]\ ?(?P<inner>[-\u2212])?)?
    (?<![\w./])
    (?P<above>{_UNSIGNED})
    (?:\ ?/\ ?(?P<below>{_UNSIGNED})(?![\w./]))?
    """,
    re.VERBOSE,
)


def last_number(text: str) -> int | float | None:
    """Return the last number in a text, or `None` if there is none.

    `1,234.5` is read with its commas, `1e-3` with its exponent, `3/4` as a quotient. Currency and
    percent signs are ignored: `$5` and `5%` are 5. Digits within words, as in `x2`, do not count.

    >>> last_number("She had 3 apples and paid $1,234.50 for them.")
    1234.5
    >>> last_number("The answer is 42.")
    42
    """
    tail = text[-LONGEST_TEXT:]
    found = None
    for found in _NUMBER.finditer(tail):  # noqa: B007 - only the last one is used
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


@final
class ExactMatch(Grader):
    """Passes an answer that equals the expected one: plain data, compared on the host.

    See `envweave.codeact.grading.comparison.is_same`: 2 and 2.0 are equal, and so are a list and a
    tuple of equal items; `True` and 1 are not, nor 42 and `"42"`. An object of the agent's own
    class has no plain form, and equals nothing.

    Args:
        expected: The answer.
        from_task: Instead, its key in the task's private part.

    Raises:
        OptionError: Neither or both are given, or it is not plain data.
    """

    def __init__(self, expected: Any = NOT_GIVEN, *, from_task: str | None = None) -> None:
        self._expected = Expected("ExactMatch", "expected", expected, from_task, read_expected)

    def __repr__(self) -> str:
        return f"<ExactMatch: expected {self._expected!r}>"

    def check_task(self, task: Task) -> None:
        """Refuse a task that shows its answer."""
        self._expected.check(task)

    async def grade(self, attempt: Attempt) -> Grade:
        """Compare the answer."""
        expected = self._expected.of(attempt.task)
        return _grade(passed=attempt.answered and is_same(attempt.answer, expected))


@final
class NumericMatch(Grader):
    """Passes a number that is close enough to the expected one.

    Integers may differ by `absolute`; other numbers by the larger of both tolerances.

    Args:
        expected: The number, or text whose last number it is, as in many datasets.
        from_task: Instead, its key in the task's private part.
        absolute: The absolute tolerance.
        relative: The tolerance as a fraction of the expected number.
        accept_text: Whether text counts as the last number in it, as in "The answer is 42." See
            `last_number`.

    Raises:
        OptionError: Neither or both are given, it is not a number, or a tolerance is invalid.
    """

    def __init__(
        self,
        expected: Any = NOT_GIVEN,
        *,
        from_task: str | None = None,
        absolute: float = 1e-6,
        relative: float = 1e-9,
        accept_text: bool = True,
    ) -> None:
        for name, given in (("absolute", absolute), ("relative", relative)):
            try:
                check_tolerance(name, given)
            except OptionError as error:
                raise OptionError(f"NumericMatch: {error}") from None
        self._expected = Expected("NumericMatch", "expected", expected, from_task, _read_number)
        self._absolute = absolute
        self._relative = relative
        self._accept_text = accept_text

    def __repr__(self) -> str:
        return f"<NumericMatch: expected {self._expected!r}>"

    def check_task(self, task: Task) -> None:
        """Refuse a task that shows its answer."""
        self._expected.check(task)

    async def grade(self, attempt: Attempt) -> Grade:
        """Compare the answer."""
        expected = self._expected.of(attempt.task)
        answer = attempt.answer
        if self._accept_text and type(answer) is str:
            answer = last_number(answer)
        return _grade(
            passed=attempt.answered
            and is_same(
                answer,
                expected,
                relative=self._relative,
                absolute=self._absolute,
                exact_integers=True,
            )
        )


class _Pattern(NamedTuple):
    text: str
    flags: int


@final
class RegexMatch(Grader):
    """Passes text that matches a pattern. Other values do not pass.

    Args:
        pattern: The pattern: text, or the result of `re.compile`.
        from_task: Instead, its key in the task's private part.
        full: Whether the whole text must match, rather than some part of it.
        longest: The most characters of an answer; a longer one does not match.
        timeout_s: How much CPU time a match may take; a slower one fails. On some text a pattern
            like `(a+)+b` takes practically forever.

    Raises:
        OptionError: Neither or both are given, it is not a pattern, or a limit is invalid.
    """

    def __init__(
        self,
        pattern: Any = NOT_GIVEN,
        *,
        from_task: str | None = None,
        full: bool = True,
        longest: int = 10_000,
        timeout_s: float = 1.0,
    ) -> None:
        if isinstance(longest, bool) or not isinstance(longest, int) or longest < 1:
            raise OptionError(f"RegexMatch(longest={longest!r}): longest must be at least 1.")
        if isinstance(timeout_s, bool) or not 0 < timeout_s < math.inf:
            raise OptionError(f"RegexMatch(timeout_s={timeout_s!r}): timeout_s must be above 0.")
        self._pattern = Expected("RegexMatch", "pattern", pattern, from_task, _read_pattern)
        self._full = full
        self._longest = longest
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"<RegexMatch: pattern {self._pattern!r}>"

    def check_task(self, task: Task) -> None:
        """Refuse a task that shows its pattern."""
        self._pattern.check(task)

    async def grade(self, attempt: Attempt) -> Grade:
        """Match the answer."""
        pattern = self._pattern.of(attempt.task)
        answer = attempt.answer
        if not attempt.answered or type(answer) is not str:
            return _grade(passed=False, why="no text")
        if len(answer) > self._longest:
            return _grade(passed=False, why="too long")
        found = await asyncio.to_thread(
            matches,
            pattern.text,
            pattern.flags,
            answer,
            full=self._full,
            timeout_s=self._timeout_s,
        )
        if found is None:
            return _grade(passed=False, why="took too long to match")
        return _grade(passed=found)


def _grade(*, passed: bool, why: str = "") -> Grade:
    return Grade(float(passed), passed, {"why": why} if why else {})


def _read_number(value: Any, name: str) -> int | float:
    number = last_number(value) if isinstance(value, str) else read_expected(value, name)
    if isinstance(number, bool) or not isinstance(number, int | float) or number != number:
        raise OptionError(f"{name} must be a number, or text that contains one.")
    return number


def _read_pattern(value: Any, name: str) -> _Pattern:
    try:
        pattern = re.compile(value)
    except (re.error, TypeError, OverflowError, RecursionError) as error:
        raise OptionError(f"{name} is not a valid pattern: {type(error).__name__}.") from None
    if not isinstance(pattern.pattern, str):
        raise OptionError(f"{name} must be a pattern for text, got one for bytes.")
    return _Pattern(pattern.pattern, pattern.flags & ~re.DEBUG)
