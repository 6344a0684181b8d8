"""The spec of an array: what becomes one, and what it would lose."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from envweave.codec.scalars import ArraySpec
from envweave.errors import SpecError


@pytest.mark.parametrize(
    ("spec", "value", "read"),
    [
        (ArraySpec((2,), "float32"), [1, 2], np.array([1, 2], np.float32)),
        (ArraySpec((2,), "float32"), np.array([0.1, 0.2]), np.array([0.1, 0.2], np.float32)),
        (ArraySpec((2,), "uint8"), np.array([0, 255]), np.array([0, 255], np.uint8)),
        (ArraySpec((2,), "int64"), np.array([1, 2], np.uint64), np.array([1, 2])),
        (ArraySpec((2,), "int8"), [True, False], np.array([1, 0], np.int8)),
        (ArraySpec((2,), "bool"), [1, 0], np.array([True, False])),
        (ArraySpec((), "float64"), 3, np.array(3.0)),
        (ArraySpec((), "int64"), np.int64(3), np.array(3)),
        (ArraySpec((0,), "int64"), [], np.zeros(0, np.int64)),
        (ArraySpec((0, 3), "int64"), [], np.zeros((0, 3), np.int64)),
        (ArraySpec(), [[1, 2]], np.array([[1, 2]])),
        (
            ArraySpec((2,), "float32"),
            [math.nan, math.inf],
            np.array([math.nan, math.inf], np.float32),
        ),
    ],
)
def test_numbers_become_an_array_of_the_dtype_where_nothing_is_lost(spec, value, read):
    array = spec.check(value)

    assert (array.dtype, array.shape) == (read.dtype, read.shape)
    np.testing.assert_array_equal(array, read)


@pytest.mark.parametrize(
    ("spec", "value", "message"),
    [
        (ArraySpec((2,), "int8"), [1.0, 2.0], "dtype float64 does not convert to int8"),
        (ArraySpec((2,), "int8"), [1, 200], "does not fit into int8"),
        (ArraySpec((2,), "uint8"), [-1, 0], "does not fit into uint8"),
        (ArraySpec((2,), "int64"), np.array([0, 2**63], np.uint64), "does not fit into int64"),
        (ArraySpec((1,), "float32"), [1e300], "does not fit into float32"),
        (ArraySpec((1,), "float16"), [70_000], "does not fit into float16"),
        (ArraySpec((2,), "bool"), [0, 5], "does not fit into bool"),
        (ArraySpec((1,), "bool"), [0.5], "dtype float64 does not convert to bool"),
        (ArraySpec((1,), "float64"), [1j], "dtype complex128 does not convert to float64"),
        (ArraySpec((2,), "float64"), [1.0, 2.0, 3.0], r"shape \(3,\) is not \(2,\)"),
        (ArraySpec((2, 3), "float64"), [], r"shape \(0,\) is not \(2, 3\)"),
        (ArraySpec((2,)), [[1], [1, 2]], "is not an array"),
        (ArraySpec((2,)), ["a", "b"], "is not an array of numbers"),
        (ArraySpec((2,)), [None, 1], "is not an array of numbers"),
        (ArraySpec((2,)), None, "None is not an array of numbers"),
        (ArraySpec((2,)), [10**30, 1], "is not an array of numbers"),
    ],
)
def test_lossy_array_conversions_are_refused(spec, value, message):
    with pytest.raises(SpecError, match=message):
        spec.check(value)


@pytest.mark.parametrize("dtype", ["float32", "float64", None])
@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, None), (None, 1), (-np.inf, np.inf)])
def test_nan_is_within_no_bounds_of_an_array(dtype, low, high):
    spec = ArraySpec((2,), dtype, low, high)

    assert spec.contains(np.array([0.5, 1.0], dtype))
    assert not spec.contains(np.array([0.5, math.nan], dtype))


def test_bounds_of_an_array_may_differ_by_element():
    spec = ArraySpec(dtype="int64", low=np.array([0, 10]), high=np.array([5, 20]))

    assert spec.shape == (2,)
    assert spec.contains([5, 10])
    with pytest.raises(SpecError, match=r"^x: array\(\[ ?6, 10\]\) is not between array"):
        spec.check([6, 10], "x")


def test_a_bound_is_within_bounds_in_the_dtype_of_the_array():
    spec = ArraySpec((1,), "float32", np.array(0.0), np.array(0.1))

    assert spec.contains(np.array([0.1], np.float32))
    assert spec.json_schema()["items"]["maximum"] == np.float32(0.1).item()


def test_an_array_that_clips_leaves_the_bounds_to_the_environment():
    assert ArraySpec((1,), "float32", -1, 1, clips=True).contains([5.0])


def test_a_tensor_that_will_not_be_an_array_is_refused():
    class Tensor:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    with pytest.raises(SpecError, match=r"is not an array$"):
        ArraySpec((1,)).check(Tensor())
