"""Answers that are compared: as data, as numbers, as text."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from codeact_environments import graded

from envweave.codeact import ExactMatch, Grade, NumericMatch, RegexMatch
from envweave.errors import OptionError, TaskError

RIGHT, WRONG = Grade(1.0, passed=True), Grade(0.0, passed=False)


@pytest.mark.parametrize(
    ("expected", "answer"),
    [
        ("Paris", "Paris"),
        (42, 42.0),
        ([1, (2, 3)], (1, [2, 3])),
        ({"a": {1, 2}}, {"a": {2, 1}}),
        (None, None),
        (b"x", b"x"),
        (np.arange(3), [0, 1, 2]),
    ],
)
def test_the_expected_answer_passes(expected: Any, answer: Any) -> None:
    assert graded(ExactMatch(expected), answer) == RIGHT


@pytest.mark.parametrize(
    ("expected", "answer"),
    [("Paris", "paris"), (42, "42"), (1, True), ([1, 2], [1]), (42, None), ("", None)],
)
def test_a_different_answer_does_not_pass(expected: Any, answer: Any) -> None:
    assert graded(ExactMatch(expected), answer) == WRONG


@pytest.mark.parametrize("grader", [ExactMatch(None), NumericMatch(0), RegexMatch(".*")])
def test_a_missing_answer_does_not_pass(grader: Any) -> None:
    grade = graded(grader, None, answered=False)

    assert (grade.score, grade.passed) == (0.0, False)


@pytest.mark.parametrize(
    ("expected", "answer"),
    [
        (42, 42),
        (42, 42.0000001),
        (42, "The answer is 42."),
        ("#### 1,234", 1234),
        (0.1 + 0.2, 0.3),
        (10**12 + 0.5, 10**12 + 0.5001),
        (42, np.float64(42)),
        (10**400, 10**400),
    ],
)
def test_a_number_near_enough_passes(expected: Any, answer: Any) -> None:
    assert graded(NumericMatch(expected), answer) == RIGHT


@pytest.mark.parametrize(
    ("expected", "answer"),
    [
        (42, 43),
        (42, 42.001),
        (10**12, 10**12 + 1),
        (1, True),
        (42, [42]),
        (42, math.nan),
        (42, math.inf),
        (42, 10**400),
        (10**400, 42.0),
        (42, "42 or 43"),
        (42, "forty-two"),
        (42, b"42"),
    ],
)
def test_a_number_too_far_off_does_not(expected: Any, answer: Any) -> None:
    assert graded(NumericMatch(expected), answer) == WRONG


def test_tolerances_can_be_chosen() -> None:
    assert graded(NumericMatch(100, absolute=2), 102) == RIGHT
    assert graded(NumericMatch(100.0, relative=0.05), 104.9) == RIGHT
    assert graded(NumericMatch(100.0, relative=0.05), 105.1) == WRONG


def test_text_counts_as_a_number_only_if_accepted() -> None:
    assert graded(NumericMatch(42, accept_text=False), "42") == WRONG


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3 apples, so 42", 42),
        ("1,234,567", 1234567),
        ("$1,234.50 each", 1234.5),
        ("-$5", -5),
        ("$-5", -5),
        ("5%", 5),
        ("3/4", 0.75),
        ("-3 / 4", -0.75),
        ("1.5e-3", 0.0015),
        ("\u22127", -7),
        ("x = -7", -7),
        ("from 10-20", 20),
        (".5", 0.5),
        (r"\boxed{42}", 42),
        ("**42**", 42),
        ("1, 2", 2),
        ("H2O", None),
        ("version 1.2.3", 1.2),
        ("5/0", None),
        ("1e999", None),
        ("9" * 301, None),
        ("", None),
    ],
)
def test_the_last_number_of_a_text_is_its_answer(text: str, number: float | None) -> None:
    exact = {"relative": 0.0, "absolute": 0.0}

    if number is None:
        with pytest.raises(OptionError, match="number"):
            NumericMatch(text)
    else:
        assert graded(NumericMatch(text, **exact), number) == RIGHT
        assert graded(NumericMatch(number, **exact), text) == RIGHT


def test_only_the_end_of_a_long_text_is_searched() -> None:
    assert graded(NumericMatch(7), "7 " + "x" * 10_000) == WRONG
    assert graded(NumericMatch(7), "x" * 10_000 + " 7") == RIGHT
    assert graded(NumericMatch(0), "1" + "0" * 10_000) == WRONG
    with pytest.raises(OptionError, match="number"):
        NumericMatch("1" + "0" * 10_000)


@pytest.mark.parametrize(
    ("grader", "answer", "passed"),
    [
        (RegexMatch(r"\d+ apples"), "12 apples", True),
        (RegexMatch(r"\d+ apples"), "about 12 apples", False),
        (RegexMatch(r"\d+ apples", full=False), "about 12 apples", True),
        (RegexMatch(re.compile("yes", re.IGNORECASE)), "YES", True),
        (RegexMatch("é"), "é", True),
        (RegexMatch("42"), 42, False),
        (RegexMatch(".*", longest=3), "long", False),
    ],
)
def test_matching_text_passes(grader: RegexMatch, answer: Any, passed: bool) -> None:
    grade = graded(grader, answer)

    assert (grade.score, grade.passed) == (float(passed), passed)


def test_a_pattern_that_takes_too_long_times_out() -> None:
    grade = graded(RegexMatch("(a+)+b", timeout_s=0.2), "a" * 1000)

    assert grade == Grade(0.0, passed=False, details={"why": "took too long to match"})


@pytest.mark.parametrize(
    ("grader", "private", "answer"),
    [
        (ExactMatch(from_task="answer"), {"answer": [1, 2]}, [1, 2]),
        (NumericMatch(from_task="answer"), {"answer": "so 72 in all\n#### 72"}, "72"),
        (RegexMatch(from_task="pattern"), {"pattern": "a+"}, "aaa"),
    ],
)
def test_the_expected_answer_may_come_from_the_task(
    grader: Any, private: dict[str, Any], answer: Any
) -> None:
    assert graded(grader, answer, private=private) == RIGHT


@pytest.mark.parametrize(
    ("private", "message"),
    [
        (None, "the episode has no task"),
        ({"hint": "?"}, "the private part of task 't' has no such key. Put it there: Task(…, priv"),
        ({"answer": "none"}, "private['answer'] of task 't' must be a number"),
    ],
)
def test_a_task_without_an_expected_answer_is_an_environment_error(
    private: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(TaskError, match=re.escape(message)) as refused:
        graded(NumericMatch(from_task="answer"), 1, private=private)

    assert "hint" not in str(refused.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ExactMatch(), "and got neither"),
        (lambda: ExactMatch(1, from_task="answer"), "and got both"),
        (lambda: ExactMatch(from_task=1), "from_task must be a string"),
        (
            lambda: ExactMatch(object()),
            "ExactMatch: expected: answers cannot be compared with a object",
        ),
        (lambda: NumericMatch("none"), "must be a number"),
        (lambda: NumericMatch(math.nan), "must be a number"),
        (lambda: NumericMatch(True), "must be a number"),
        (lambda: NumericMatch(1, absolute=-1), "absolute=-1"),
        (lambda: RegexMatch("("), "is not a valid pattern"),
        (lambda: RegexMatch(b"x"), "must be a pattern for text, got one for bytes"),
        (lambda: RegexMatch(5), "is not a valid pattern"),
        (lambda: RegexMatch("x", longest=0), "longest=0"),
        (lambda: RegexMatch("x", timeout_s=0), "timeout_s=0"),
    ],
)
def test_a_grader_that_cannot_grade_is_refused(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("score", [-0.1, 1.1, math.nan, math.inf])
def test_a_grade_is_from_0_to_1(score: float) -> None:
    with pytest.raises(OptionError, match="from 0 to 1"):
        Grade(score, passed=False)


def test_the_expected_value_is_not_in_a_repr() -> None:
    graders = [
        ExactMatch("swordfish"),
        NumericMatch(31337),
        RegexMatch("swordfish"),
        ExactMatch(from_task="answer"),
    ]

    assert "swordfish" not in repr(graders)
    assert "31337" not in repr(graders)
    assert "from_task='answer'" in repr(graders)
