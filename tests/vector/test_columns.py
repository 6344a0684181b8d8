"""Columns are fixed once; from then on an observation fits them, or is its environment's error."""

from __future__ import annotations

import enum
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envweave as ew
from envweave.codec import AnySpec
from envweave.errors import BadReturnError
from envweave.vector.columns import Fields, Layout, LayoutMismatchError, layout_of, replaced


class Level(enum.IntEnum):
    LOW = 0


class Tagged(np.ndarray):
    """A subclass that numpy would take for an array."""


@dataclass
class Point:
    x: Any
    y: Any = 0.0


@dataclass
class Further(Point):
    z: int = 1


@dataclass
class Lookalike:
    x: Any
    y: Any = 0.0


class Touchy:
    """Has the fields of a `Point`; one of them raises."""

    y = 0.0

    @property
    def x(self) -> Any:
        raise ValueError("not now")


numbers = st.one_of(
    st.booleans(),
    st.integers(-300, 300),
    st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**39, 10**308, 10**400]),
    st.floats(),
    st.sampled_from([1e39, -1e39, 65504.0, 65520.0, 3.5e38]),
    st.builds(lambda kind, n: kind(n), st.sampled_from([np.int64, np.int32]), st.integers(0, 9)),
    st.sampled_from([np.uint8(3), np.float16(2), np.float32(2), np.float64(2), np.longdouble(2)]),
    st.sampled_from([np.bool_(1), np.complex64(1), 1j, Level.LOW, None, "3", b"3"]),
)
arrays = st.builds(
    lambda shape, dtype, form: form(np.zeros(shape, dtype)),
    st.sampled_from([(), (1,), (3,), (3, 1), (0, 2)]),
    st.sampled_from([np.float32, np.float64, np.int8, np.bool_, ">f8", "U2", object]),
    st.sampled_from(
        [
            np.array,
            np.asfortranarray,
            np.ma.masked_array,
            lambda a: a.view(Tagged),
            lambda a: a.tolist(),
            lambda a: np.broadcast_to(a, (2, *a.shape))[1],
            lambda a: a.repeat(2, axis=0)[::2] if a.ndim else a[()],
        ]
    ),
)
leaves = numbers | arrays
values = leaves | st.one_of(
    st.builds(Point, leaves, leaves),
    st.builds(Further, leaves),
    st.builds(Lookalike, leaves),
    st.builds(Touchy),
    st.dictionaries(st.sampled_from("xyz"), leaves, max_size=3),
    st.builds(OrderedDict, x=leaves),
    st.lists(leaves, max_size=2),
)


def fits(layout: Layout, value: Any) -> bool:
    try:
        layout.check(value)
    except BadReturnError:
        return False
    return True


@pytest.mark.slow  # starts worker processes
@settings(max_examples=600, deadline=None)
@given(first=values, rows=st.lists(values, max_size=4), others=st.data())
def test_a_vector_accepts_every_observation_that_a_single_environment_does(
    first: Any, rows: list[Any], others: Any
) -> None:
    layout = layout_of(AnySpec(), first)
    rows = [first if others.draw(st.booleans()) else row for row in rows]

    assert fits(layout, first)
    try:
        columns = layout.gather(rows)
    except LayoutMismatchError:
        assert not all(fits(layout, row) for row in rows)
    else:
        assert all(fits(layout, row) for row in rows)
        replaced(columns, dict(enumerate(rows)), layout)
        if not isinstance(layout, Fields):
            assert len(columns) == len(rows)


class Shows(ew.Environment):
    """Shows the first of `shown` at a reset, and then the others."""

    def __init__(self, shown: list[Any]) -> None:
        self.shown = shown

    def reset(self) -> Any:
        self.at = 0
        return self.shown[0], {}

    def step(self, action: int) -> Any:
        self.at += 1
        return self.shown[self.at], 1.0, False, False, {}


def showing(*shown: Any, num_envs: int = 2) -> ew.VectorEnv:
    venv = ew.make_vector(Shows, num_envs=num_envs, shown=list(shown))
    venv.reset()
    return venv


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        ((0.5, 10**400), "a number of float64"),
        (({"a": 1}, {"a": 1, "b": 2}), "An observation has 'b'"),
        (({"a": 1}, {"b": 1}), "An observation has no 'a'"),
        ((np.zeros(2), np.ma.zeros(2)), r"is MaskedArray float64\(2,\), but .* float64\(2,\)"),
        ((Point(1), Lookalike(1)), "is Lookalike .* fixed as Point"),
        ((Point(1), Point("far")), "x: An observation is str 'far'"),
    ],
)
def test_an_observation_that_does_not_fit_fails_only_its_row(shown: Any, words: str) -> None:
    venv = showing(*shown)

    batch = venv.step([0, 0])

    assert batch.valid.tolist() == [False, False]
    assert re.search(words, batch[0].end.cause)


def test_a_masked_array_is_kept_as_it_is() -> None:
    masked = np.ma.masked_array([1.0, 2.0], mask=[False, True])

    batch = showing(masked, masked).step([0, 0])

    assert isinstance(batch.current, list)
    assert batch.current[0].mask.tolist() == [False, True]


def test_a_row_of_0_dimensional_arrays_is_an_array() -> None:
    batch = showing(np.array(1.0), np.array(2.0)).step([0, 0])

    assert batch.current.tolist() == [2.0, 2.0]
    assert type(batch[0].observation) is np.ndarray
    assert batch[0].observation.shape == ()


def test_a_failure_among_0_dimensional_arrays_shows_the_last_good_one() -> None:
    venv = showing(np.array(1.0), np.array(2.0), "nonsense")
    venv.step([0, 0])

    batch = venv.step([0, 0])

    assert batch.successor.tolist() == [2.0, 2.0]
    assert batch.valid.tolist() == [False, False]


def test_a_mismatch_at_the_first_reset_names_the_environment() -> None:
    sizes = iter([2, 2, 3])
    venv = ew.make_vector(lambda: Shows([np.zeros(next(sizes))]), num_envs=3)

    with pytest.raises(BadReturnError, match=r"Environment 2: An observation is float64\(3,\)"):
        venv.reset()


@dataclass
class Promised(ew.Observation):
    value: int = 0


class Breaks(ew.Environment):
    """Promises one kind of observation, and shows another."""

    def reset(self) -> Any:
        return np.zeros(2), {}

    def step(self, action: int) -> Promised:
        return Promised()


def test_a_reset_with_another_type_than_step_declares_is_refused() -> None:
    venv = ew.make_vector(Breaks, num_envs=2)

    with pytest.raises(BadReturnError, match=r"Environment 0: .*observation_spec says Promised"):
        venv.reset()


@dataclass
class Page(ew.Observation):
    words: list[str] = field(default_factory=list)


class Writer(ew.Environment):
    def reset(self) -> Page:
        return Page(["once"])

    def step(self, action: int) -> Page:
        return Page(["upon"])


@pytest.mark.parametrize("mode", ["serial", "threads", "async"])
def test_the_items_of_list_columns_belong_to_the_caller(mode: str) -> None:
    with ew.make_vector(Writer, num_envs=2, mode=mode) as venv:
        first = venv.reset()
        first.current["words"][0].append("spoilt")
        batch = venv.step([0, 0])
        batch.current["words"][0].append("spoilt")

        assert first.successor["words"] == [["once"], ["once"]]
        assert batch.successor["words"] == [["upon"], ["upon"]]
        assert batch[0].observation.words == ["upon"]


def test_a_0_dimensional_array_is_a_number() -> None:
    class Pointed(ew.Environment):
        def reset(self) -> Any:
            return np.array(3), {}

        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
            return np.array(action), 0.0, False, False, {}  # type: ignore[return-value]

    venv = ew.make_vector(Pointed, num_envs=2)

    first = venv.reset().current
    batch = venv.step([1, 2])

    assert first.tolist() == [3, 3]
    assert batch.current.tolist() == [1, 2]
