"""The source of an exact test is true only of values that are read unchanged."""

from __future__ import annotations

import enum
import math
from typing import Annotated, Any, Literal

import numpy as np
import pytest

import envweave as ew
from envweave.codec import Mismatch, spec_from_hint


class Color(enum.Enum):
    """A choice whose members have values."""

    RED = "red"


VALUES: list[Any] = [
    *(0, 1, 2, -1, 7, 2**63, 10**400, True, False, None, "a", "red", "", b"a"),
    *(0.0, 1.0, -0.5, math.nan, math.inf, np.int64(1), np.float64(0.5), np.bool_(True)),
    *(Color.RED, [], {}, {"a": 1}, (1,)),
]


@pytest.mark.parametrize(
    "hint",
    [
        int,
        float,
        bool,
        str,
        bytes,
        dict[str, Any],
        Any,
        Color,
        Annotated[int, ew.Bounds(0, 1)],
        Annotated[int, ew.Bounds(low=1)],
        Annotated[int, ew.Bounds(high=10**500)],
        Annotated[float, ew.Bounds(-0.5, 1)],
        Annotated[float, ew.Bounds(0.0, math.inf)],
        Literal[-1, 1],
        Literal["a", "{fits}"],
        Literal[1, "a"],
        Literal[True],
        int | None,
    ],
    ids=repr,
)
def test_a_value_that_passes_an_exact_test_is_read_unchanged(hint):
    spec = spec_from_hint(hint)
    source = spec.exact_test("value")
    passing = (
        [] if source is None else [value for value in VALUES if eval(source, {"value": value})]
    )

    for value in passing:
        read = spec.read(value)
        assert (type(read), repr(read)) == (type(value), repr(value))


@pytest.mark.parametrize("hint", [Annotated[int, ew.Bounds(0, 1)], Literal[-1, 1]], ids=repr)
def test_an_exact_test_passes_the_ordinary_value_and_no_bool(hint):
    source = spec_from_hint(hint).exact_test("value")

    assert source is not None
    assert [eval(source, {"value": value}) for value in (1, True, 5)] == [True, False, False]


def test_a_dict_of_bounded_fields_is_still_refused_by_field():
    spec = spec_from_hint(ew.examples.LineWorldAction)

    assert spec.read({"move": 1}) == ew.examples.LineWorldAction(move=1)
    for wrong in ({"move": 2}, {"move": True}, {"moves": 1}, {}):
        with pytest.raises(Mismatch):
            spec.read(wrong)
