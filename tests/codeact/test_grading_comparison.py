"""Answers are compared on the host, as plain data; no answer can cheat."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envweave.codeact.grading.comparison import DEEPEST, is_same, read_expected, read_number
from envweave.errors import OptionError

NAN = float("nan")
INF = float("inf")


class EqualsEverything:
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return hash(42)


class GenerousInt(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class GenerousFloat(float):
    def __eq__(self, other: object) -> bool:
        return True

    def __sub__(self, other: object) -> float:
        return 0.0

    __hash__ = float.__hash__


class GenerousList(list):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class GenerousArray(np.ndarray):
    def __eq__(self, other: object) -> Any:
        return np.True_


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


SAME = [
    (42, 42),
    (42.0, 42),
    (42, 42.0),
    (np.int64(42), 42),
    (np.float32(0.5), 0.5),
    (np.array(42), 42),
    (np.array(42.0), 42),
    (42, np.int8(42)),
    (0.5, np.float64(0.5)),
    (2.5, np.longdouble(2.5)),
    (True, True),
    (np.bool_(True), True),
    (None, None),
    ("a", "a"),
    (b"a", b"a"),
    (NAN, NAN),
    (INF, INF),
    (10**5000, 10**5000),
    (1 + 2j, 1 + 2j),
    ([1, 2], [1, 2]),
    ((1, 2), [1, 2]),
    ([1, [2, "x"]], [1, (2, "x")]),
    (np.array([1, 2]), [1, 2]),
    ([1.0, 2.0], np.array([1, 2])),
    (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    (np.array([1, 2], "<i4"), np.array([1, 2], "<i8")),
    (np.array([1.0, NAN]), np.array([1.0, NAN])),
    (np.array([1.5]), np.array([1.5], np.longdouble)),
    ([], []),
    ({1, 2}, frozenset({2, 1})),
    ({1.0, 2}, {1, 2}),
    ({(1, "a"), None}, {None, (1, "a")}),
    ({NAN, "a"}, {NAN, "a"}),
    ({"a": [1], 2: None}, {2: None, "a": (1,)}),
    ({1.0: 2}, {1: 2}),
    ({NAN: 1}, {NAN: 1}),
    (nested(DEEPEST), nested(DEEPEST)),
]

OTHER = [
    (EqualsEverything(), 42),
    (EqualsEverything(), None),
    ([EqualsEverything()], [42]),
    ({EqualsEverything()}, {42}),
    ({EqualsEverything(): 1}, {42: 1}),
    ({1: EqualsEverything()}, {1: 42}),
    (GenerousInt(7), 42),
    (GenerousInt(42), 42),
    (GenerousFloat(7), 42.0),
    ([GenerousFloat(7)], [42.0]),
    (GenerousList([7]), [42]),
    (np.array([7]).view(GenerousArray), [42]),
    (Decimal(42), 42),
    (Fraction(42), 42),
    (42 + 0j, 42),
    (42, 42 + 0j),
    (True, 1),
    (1, True),
    (False, 0),
    (True, 1.0),
    (np.bool_(True), 1),
    (np.array(True), 1),
    (np.array([True]), [1]),
    ("42", 42),
    (42, "42"),
    (b"42", "42"),
    ("", None),
    (0, None),
    ([42], 42),
    ((42,), 42),
    ({42}, 42),
    (42, [42]),
    (np.array([42]), 42),
    (np.array([42, 42]), 42),
    (np.array([[1, 2]]), [1, 2]),
    (np.array([1, 2]), [[1, 2]]),
    (np.array([[1], [2]]), np.array([[1, 2]])),
    (np.array([42 + 0j]), [42]),
    (np.array([42], object), [42]),
    (np.array(EqualsEverything(), object), 42),
    (np.array([EqualsEverything()], object), [42]),
    (np.array("x"), None),
    (np.datetime64("2020-01-01"), 42),
    (NAN, 42),
    (42, NAN),
    (NAN, INF),
    (-INF, INF),
    (1e308, INF),
    (10**5000, 1e308),
    (10**5000, INF),
    (10**5000, 10**5000 + 1),
    (2**53 + 1, 2.0**53),
    (2.0**53, 2**53 + 1),
    (41, 42),
    (42.1, 42),
    ([1, 2], [2, 1]),
    ([1], [1, 2]),
    ([1, 2, 3], [1, 2]),
    ([1], {1}),
    ({1}, [1]),
    ({True}, {1}),
    ({True: 2}, {1: 2}),
    ({1: True}, {1: 1}),
    ({"a": 1}, {"a": 1, "b": 2}),
    ({"b": 1}, {"a": 1}),
    ({1, NAN}, {1, 2}),
    ({"1"}, {1}),
    ([[]], [[[]]]),
    (object, 42),
    (lambda: 42, 42),
    (nested(DEEPEST + 1), nested(DEEPEST)),
    (nested(50_000), nested(DEEPEST)),
]


@pytest.mark.parametrize(("answer", "expected"), SAME, ids=map(str, range(len(SAME))))
def test_equivalent_answers_are_equal(answer: Any, expected: Any) -> None:
    assert is_same(answer, expected) is True


@pytest.mark.parametrize(("answer", "expected"), OTHER, ids=map(str, range(len(OTHER))))
def test_different_answers_are_not_equal(answer: Any, expected: Any) -> None:
    assert is_same(answer, expected) is False
    assert not is_same(answer, expected, absolute=1e-12, relative=1e-20, exact_integers=True)


@pytest.mark.parametrize(
    ("answer", "expected", "tolerances"),
    [
        (0.1 + 0.2, 0.3, {"relative": 1e-9}),
        (1e-12, 0, {"absolute": 1e-9}),
        (41, 42, {"absolute": 1}),
        (1005, 1000, {"relative": 0.01}),
        (10**400 + 1, 10**400, {"relative": 1e-9}),
        (41, 42, {"absolute": 1, "exact_integers": True}),
        (1000.5, 1000, {"relative": 0.01, "exact_integers": True}),
        ([0.1 + 0.2], [0.3], {"relative": 1e-9}),
        ({"a": 0.1 + 0.2}, {"a": 0.3}, {"relative": 1e-9}),
        ({0.1 + 0.2, 1}, {0.3, 1}, {"relative": 1e-9}),
        (np.array([0.1 + 0.2]), np.array([0.3]), {"relative": 1e-9}),
        (1 + 1e-12j, 1 + 0j, {"absolute": 1e-9}),
    ],
)
def test_numbers_within_the_tolerance_are_equal(
    answer: Any, expected: Any, tolerances: dict[str, Any]
) -> None:
    assert is_same(answer, expected, **tolerances)
    assert not is_same(answer, expected)


@pytest.mark.parametrize(
    ("answer", "expected", "tolerances"),
    [
        (10**12 + 1, 10**12, {"relative": 1e-9, "exact_integers": True}),
        ([10**12 + 1], [10**12], {"relative": 1e-9, "exact_integers": True}),
        (INF, 1.0, {"relative": 1e9}),
        (1.0, INF, {"relative": 1.0}),
        (NAN, 1.0, {"absolute": 1e300}),
        (complex(INF, 0), 1 + 0j, {"relative": 1.0}),
        (True, 1, {"absolute": 5}),
        ("1", 1, {"absolute": 5}),
        ({1: "a"}, {2: "a"}, {"absolute": 5}),
        (0.31, 0.3, {"relative": 1e-9}),
    ],
)
def test_a_tolerance_applies_to_finite_numbers_only(
    answer: Any, expected: Any, tolerances: dict[str, Any]
) -> None:
    assert not is_same(answer, expected, **tolerances)


@pytest.mark.parametrize("tolerance", [-1, NAN, INF, "1", None, True])
def test_an_invalid_tolerance_is_refused(tolerance: Any) -> None:
    with pytest.raises(OptionError, match=r"absolute=.*a tolerance must be a number >= 0"):
        is_same(1, 1, absolute=tolerance)


@pytest.mark.parametrize(
    "value", [object(), Decimal(1), Fraction(1), np.array(["a"]), {"a": [len]}, nested(DEEPEST + 1)]
)
def test_an_impossible_expected_value_is_refused_without_quoting_it(value: Any) -> None:
    with pytest.raises(OptionError, match=r"^secret: answers cannot be compared with"):
        read_expected(value, "secret")


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(OptionError, match="nested too deep, or contains itself"):
        read_expected(loop)


def test_the_expected_value_is_copied_to_builtin_types() -> None:
    given = {"a": GenerousList([np.float64(0.5), np.int8(3)]), "b": (True, None)}

    expected = read_expected(given)
    given["a"].append(1)

    assert expected == {"a": [0.5, 3], "b": (True, None)}
    assert [type(one) for one in expected["a"]] == [float, int]
    assert type(expected["a"]) is list


def test_an_expected_array_is_copied() -> None:
    given = np.array([1, 2])

    expected = read_expected(given)
    given[0] = 9

    assert expected.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42),
        (" -42\n", -42),
        ("+4.50", 4.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e3", 1000.0),
        ("9" * 400, int("9" * 400)),
        ("1e999", None),
        ("9" * 1001, None),
        ("1_000", None),
        ("0x10", None),
        ("nan", None),
        ("inf", None),
        ("42 apples", None),
        ("٤٢", None),
        ("", None),
    ],
)
def test_a_string_is_parsed_as_a_number_or_none(text: str, number: float | None) -> None:
    read = read_number(text)

    assert (read, type(read)) == (number, type(number))


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.booleans(), inner)
        | st.sets(st.integers() | st.text() | st.booleans())
    ),
    max_leaves=10,
)


def canonical(value: Any) -> Any:
    """Spell a value out so that two that are the same, and only those, are spelt alike."""
    if isinstance(value, list | tuple):
        return ["list", [canonical(one) for one in value]]
    if isinstance(value, set):
        return ["set", sorted(repr(canonical(one)) for one in value)]
    if isinstance(value, dict):
        return [
            "dict",
            sorted((repr(canonical(key)), repr(canonical(one))) for key, one in value.items()),
        ]
    if isinstance(value, int | float) and not isinstance(value, bool):
        whole = math.isfinite(value) and value == int(value)
        return ["number", int(value) if whole else value]
    return [type(value).__name__, value]


@pytest.mark.slow  # many generated values
@given(PLAIN)
def test_any_plain_data_equals_itself(value: Any) -> None:
    assert is_same(value, value)


@given(PLAIN, PLAIN)
def test_two_values_are_equal_if_their_encodings_are(one: Any, other: Any) -> None:
    assert is_same(one, other) == is_same(other, one) == (canonical(one) == canonical(other))


@pytest.mark.slow  # many generated values
@given(st.integers() | st.floats(), st.integers() | st.floats())
def test_a_comparison_with_a_tolerance_never_raises_and_is_exact(one: Any, other: Any) -> None:
    near = is_same(one, other, absolute=0.5, relative=0.25)

    if math.isfinite(one) and math.isfinite(other):
        apart = abs(Fraction(one) - Fraction(other))
        assert near == (apart <= max(Fraction(1, 2), abs(Fraction(other)) / 4))
