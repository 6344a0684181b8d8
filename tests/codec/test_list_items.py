"""Lists whose items all have the exact type of the spec are taken as they are."""

from __future__ import annotations

import math

import pytest

from envweave.codec.hints import spec_from_hint
from envweave.errors import SpecError


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (list[float], [0.5, math.inf, -0.0]),
        (list[int], [1, 1 << 70]),
        (tuple[str, ...], ("a", "b")),
        (set[int], {1, 2}),
        (list[bytes], [b"a"]),
        (list[int], []),
    ],
)
def test_items_of_the_exact_type_are_returned_unchanged(hint, value):
    assert spec_from_hint(hint).check(value) is value


def test_one_item_of_another_type_is_converted_in_a_copy():
    value = [0.5, 1]

    read = spec_from_hint(list[float]).check(value)

    assert read == [0.5, 1.0]
    assert [type(item) for item in read] == [float, float]
    assert value == [0.5, 1]


@pytest.mark.parametrize(
    ("hint", "value", "path"),
    [(list[int], [1, True], r"value\[1\]"), (list[str], ["a", b"b"], r"value\[1\]")],
)
def test_one_item_that_does_not_fit_is_refused_with_its_index(hint, value, path):
    with pytest.raises(SpecError, match=path):
        spec_from_hint(hint).check(value)
