"""Asserts are split: what runs with the agent's code, and what stays on the host."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from envweave.codeact.grading.test_cases import read_asserts
from envweave.errors import OptionError


@pytest.mark.parametrize(
    ("text", "sent", "right", "wrong"),
    [
        ("assert f(1) == 2", "f(1)", [2, 2.0], [3, "2", None, True, [2]]),
        ("assert 2 == f(1)", "f(1)", [2], [3]),
        ("assert f(1) == [1, (2,)], 'why'", "f(1)", [[1, [2]]], [[1], [[1, 2]]]),
        ("assert f(1) != 2", "f(1)", [3, "2"], [2]),
        ("assert f(1) is None", "f(1)", [None], [0, False]),
        ("assert f(1) is not None", "f(1)", [0, "x"], [None]),
        ("assert f(1) is True", "f(1)", [True], [1, "yes"]),
        ("assert f(1)", "f(1)", [1, True, [0], "x"], [0, None, "", [], np.ones(3)]),
        ("assert not f(1)", "f(1)", [0, None, [], ""], [1, "x", np.zeros(3)]),
        ("assert f(1) in [1, 2]", "f(1)", [1, 2.0], [3, [1], True, None]),
        ("assert f(1) in 'abc'", "f(1)", ["a", "bc"], ["d", 1]),
        ("assert f(1) not in {1, 2}", "f(1)", [3], [1]),
        ("assert 3 in f(1)", "f(1)", [[1, 3], {3}, {3: 0}], [[1], 3, "3"]),
        ("assert 'b' in f(1)", "f(1)", ["abc", ["b"]], ["xyz", 5]),
        ("assert 3 not in f(1)", "f(1)", [[1]], [[3], 5]),
        ("assert abs(f(1) - 2) < 0.5", "f(1)", [2, 2.4, 1.6], [2.5, 1.5, 3, "2", None, 10**400]),
        ("assert abs(f(1) - 2) <= 0.5", "f(1)", [2.5, 1.5], [2.6, 10**400]),
        ("assert abs(2 - f(1)) < 1e-6", "f(1)", [2.0], [2.1]),
        ("assert math.isclose(f(1), 2.0)", "f(1)", [2, 2.0], [2.1, "2", 10**400]),
        ("assert math.isclose(2, f(1), rel_tol=0.1)", "f(1)", [2.1], [2.5]),
        ("assert isclose(f(1), 0, abs_tol=0.1)", "f(1)", [0.05], [0.2, float("nan")]),
        ("assert set(f(1)) == set((4, 5))", "set(f(1))", [{4, 5}], [{4}, [4, 5]]),
        ("assert sorted(f(1)) == [1, 2]", "sorted(f(1))", [[1, 2]], [[2, 1]]),
        ("assert f(1) == float('inf')", "f(1)", [float("inf")], [1e308]),
        ("assert f(1) == -2.5e3", "f(1)", [-2500], [2500]),
        ("assert f(lambda x: x == 1) == 2", "f(lambda x: x == 1)", [2], [1]),
        ("assert len(f(1)) == 2", "len(f(1))", [2], [1]),
    ],
)
def test_an_assert_is_parsed_as_a_test_case(
    text: str, sent: str, right: list[Any], wrong: list[Any]
) -> None:
    (asserted,) = read_asserts(text)

    assert asserted.expression == sent
    assert [asserted.check.holds(value) for value in right] == [True] * len(right)
    assert [asserted.check.holds(value) for value in wrong] == [False] * len(wrong)


def test_a_text_may_have_several() -> None:
    asserts = read_asserts("# doubles\nassert f(1) == 2\n\nassert f(2) == 4\n")

    assert [one.expression for one in asserts] == ["f(1)", "f(2)"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("assert f(1) == g(1)", "line 1: neither side is a literal"),
        ("assert f(1) == 1 == g(1)", "compares more than once"),
        ("assert f(1) > 1", "Gt is not a supported comparison"),
        ("assert f(1) == 1 and f(2) == 2", "Write an assert for each"),
        ("assert all(f(n) == n for n in [1])", "compares within an expression"),
        ("assert (f(1) == 1) == True", "compares within an expression"),
        ("assert isinstance(f(1), int)", "isinstance() would run in the agent's session"),
        ("assert not any(f(1))", "any() would run in the agent's session"),
        ("assert callable(f) is True", "callable() would run in the agent's session"),
        ("assert f(1) is 5", "`is` is for None, True and False"),
        ("assert f(1) in 5", "`in` needs text, a list"),
        ("assert f(1) == ...", "answers cannot be compared with"),
        ("assert abs(f(1)) < 1", "abs() must be of a difference"),
        ("assert abs(f(1) - g(1)) < 1", "neither side is a literal"),
        ("assert abs(f(1) - 2) < x", "neither side is a literal"),
        ("assert abs(f(1) - 'a') < 1", "must be numbers"),
        ("assert abs(f(1) - 2) < -1", "a tolerance must be a number >= 0"),
        ("assert math.isclose(f(1))", "isclose() takes two numbers"),
        ("assert math.isclose(f(1), 2, strict=1)", "isclose() takes two numbers"),
        ("\nx = f(1)", "line 2: Assign is not an assert"),
        ("import os", "line 1: Import is not an assert"),
        ("for n in range(3):\n    assert f(n) == n", "For is not an assert"),
        ("assert f(1) ==", "line 1 is not Python"),
    ],
)
def test_other_statements_are_refused_with_the_supported_forms(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        read_asserts(text)


def test_a_text_may_be_indented() -> None:
    asserts = read_asserts("""
        assert f(1) == 2
        assert f(2) == 4
    """)

    assert [one.expression for one in asserts] == ["f(1)", "f(2)"]


def test_the_expected_value_is_not_in_a_repr() -> None:
    assert "swordfish" not in repr(read_asserts("assert f() == 'swordfish'"))


def test_an_answer_of_a_million_items_is_not_searched() -> None:
    (asserted,) = read_asserts("assert 3 in f(1)")

    assert not asserted.check.holds([3] * 10**6)
