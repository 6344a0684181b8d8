"""Actions and observations as columns equal those one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import envweave as ew
from envweave.codec import spec_from_hint
from envweave.codec.records import DataclassSpec
from envweave.errors import WireError
from envweave.wire.columns import ActionBatch, columns_of, count_of, rows_of
from envweave.wire.encoding import JSON, MSGPACK, Encoding


@dataclass
class Inner:
    deep: int


@dataclass
class Seen(ew.Observation):
    at: int = 0
    cells: Any = None
    inner: Any = None


@dataclass
class Bare:
    at: int
    name: str


@dataclass
class Hidden:
    _at: int


def seen(i: int, **others: Any) -> Seen:
    return Seen(at=i, reward=float(i), **others)


ALIKE: list[list[Any]] = [
    [seen(i) for i in range(3)],
    [seen(i, cells=np.arange(6.0).reshape(2, 3) + i) for i in range(3)],
    [seen(i, cells=np.asfortranarray(np.ones((2, 2)) * i)) for i in range(3)],
    [seen(i, cells=np.zeros(i)) for i in range(3)],
    [seen(i, cells=np.zeros(0)) for i in range(3)],
    [seen(i, cells=np.array(i)) for i in range(3)],
    [seen(i, cells=np.array(["a", "bc"])) for i in range(3)],
    [seen(i, inner=Inner(i), cells=[1, "x", None]) for i in range(3)],
    [seen(i, cells=float("nan")) for i in range(3)],
    [seen(i, metadata={"note": i} if i else {}) for i in range(3)],
    [Bare(i, str(i)) for i in range(3)],
    [np.arange(4, dtype=np.uint8) + i for i in range(3)],
]


@pytest.mark.parametrize("encoding", [MSGPACK, JSON], ids=["msgpack", "json"])
@pytest.mark.parametrize("observations", ALIKE, ids=range(len(ALIKE)))
def test_columns_become_the_rows_that_they_were(
    observations: list[Any], encoding: Encoding
) -> None:
    rewards = [getattr(one, "reward", 1.0) for one in observations]
    infos = [getattr(one, "metadata", {}) for one in observations]

    shown, implied = columns_of(observations, rewards, infos)
    decoded = encoding.decode(encoding.encode(shown))
    rows = rows_of(decoded, rewards, dict(enumerate(infos)), implied=implied)

    assert not isinstance(shown, list)
    assert count_of(decoded) == 3
    np.testing.assert_equal(rows, encoding.decode(encoding.encode(observations)))


class Subclass(Seen):
    pass


def without_a_field() -> Seen:
    made = seen(1)
    del made.at, made.__dict__["reward"]
    return made


@pytest.mark.parametrize(
    "observations",
    [
        [1, 2],
        ["a", "b"],
        [{"at": 1}, {"at": 2}],
        [None, None],
        [seen(1), Subclass(at=1, reward=1.0)],
        [Hidden(1), Hidden(2)],
        [np.zeros(2), np.zeros(3)],
        [np.zeros(2), np.zeros(2, np.float32)],
        [np.zeros(2), [0, 0]],
        [seen(1), without_a_field()],
        [],
    ],
    ids=repr,
)
def test_observations_of_different_kinds_stay_a_list(observations: list[Any]) -> None:
    rewards = [1.0] * len(observations)

    assert columns_of(observations, rewards, [{}] * len(rewards)) == (observations, False)


@pytest.mark.parametrize(
    "other",
    [
        {"reward": 2.0},
        {"reward": 1},
        {"done": True},
        {"done": np.False_},
        {"truncated": 0},
        {"metadata": {"more": 1}},
        {"metadata": {"cells": np.zeros(2)}},
    ],
    ids=repr,
)
def test_an_observation_with_additional_data_stays_whole(
    other: dict[str, Any],
) -> None:
    observations = [Seen(at=1, reward=1.0), Seen(**{"at": 1, "reward": 1.0, **other})]

    shown, implied = columns_of(observations, [1.0, 1.0], [{}, {}])

    assert (shown, implied) == (observations, False)


@pytest.mark.parametrize(
    "shown",
    [
        None,
        "abc",
        {},
        {"a": 1},
        {"a": {"b": [1]}},
        {"a": [1], "b": [1, 2]},
        {"a": [1], "b": {"c": [1]}},
        np.array(1.0),
        {"a": [1], "b": np.array(1.0)},
    ],
    ids=repr,
)
def test_invalid_columns_are_refused(shown: Any) -> None:
    with pytest.raises(WireError, match="columns"):
        count_of(shown)


@dataclass
class Turn(ew.Action):
    by: int
    speed: float = 1.0
    mode: Literal["left", "right"] = "left"
    note: str = ""


TURN = spec_from_hint(Turn)
values = st.sampled_from([0, 1, -7, 2**70, True, 0.5, float("nan"), "left", "up", None, {}, [1]])
turns = st.dictionaries(st.sampled_from(["by", "speed", "mode", "note", "metadata"]), values)


@given(rows=st.lists(turns, min_size=1, max_size=4), is_like_the_first=st.booleans())
def test_actions_from_columns_equal_actions_read_one_by_one(
    rows: list[dict[str, Any]], is_like_the_first: bool
) -> None:
    assert isinstance(TURN, DataclassSpec)
    if is_like_the_first:
        rows = [{name: row.get(name, rows[0][name]) for name in rows[0]} for row in rows]

    columns = TURN.columns_of(rows)

    if columns is not None:
        np.testing.assert_equal(TURN.read_columns(columns), [TURN.read(row) for row in rows])
        assert list(ActionBatch(columns)) == rows or "nan" in repr(rows)


def test_actions_that_fit_unchanged_have_columns() -> None:
    assert isinstance(TURN, DataclassSpec)
    rows = [{"by": i, "mode": "right"} for i in range(3)]

    columns = TURN.columns_of(rows)

    assert columns == {"by": [0, 1, 2], "mode": ["right"] * 3}
    assert TURN.columns_of([TURN.read(row) for row in rows]) == {
        "by": [0, 1, 2],
        "speed": [1.0] * 3,
        "mode": ["right"] * 3,
        "note": [""] * 3,
    }
