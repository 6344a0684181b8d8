from dataclasses import dataclass, make_dataclass

import numpy as np
import pytest

from envweave.codec.digest import digest


@dataclass
class Point:
    x: float
    at: tuple[int, ...] = ()


def test_the_digest_is_of_the_content_and_not_of_the_class():
    other = make_dataclass("Other", ["at", "x"])

    assert (
        digest(Point(1.0, (1, 2))) == digest({"at": [1, 2], "x": 1.0}) == digest(other([1, 2], 1.0))
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, 1.0),
        (np.zeros(2), np.zeros(2, np.float32)),
        (np.zeros((2, 1)), np.zeros((1, 2))),
        (np.zeros(2), np.zeros(3)),
        (2**70, 2**70 + 1),
        ({1: "a", "b": 2}, {1: "a", "b": 3}),
        ("\ud800", "\ud801"),
        (Point(1.0), Point(2.0)),
    ],
)
def test_different_values_have_different_digests(one, other):
    assert digest(one) != digest(other)
    assert digest(one) == digest(one)


def test_nan_and_slices_have_the_digest_of_their_content():
    array = np.arange(8.0).reshape(2, 4)

    assert digest({"a": float("nan")}) == digest({"a": float("nan")})
    assert digest(array[:, ::2]) == digest(array[:, ::2].copy())
    assert digest(np.float64(1.5)) == digest(1.5)
