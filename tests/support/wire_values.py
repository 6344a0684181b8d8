"""Values and results that a wire has to carry, as strategies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from envweave.session.episodes import Position
from envweave.types import (
    AgentEnd,
    AutoResetReady,
    EpisodeEnd,
    LogEvent,
    NeedAction,
    ResetResult,
    StepResult,
    ToolCallRequest,
)

_dtypes = (
    arrays_of.boolean_dtypes()
    | arrays_of.integer_dtypes(endianness="?")
    | arrays_of.unsigned_integer_dtypes(endianness="?")
    | arrays_of.floating_dtypes(endianness="?")
    | arrays_of.complex_number_dtypes(endianness="?")
    | arrays_of.byte_string_dtypes(min_len=1, max_len=4)
    | arrays_of.unicode_string_dtypes(min_len=1, max_len=4)
)
_sides = arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
arrays = _dtypes.flatmap(lambda dtype: arrays_of.arrays(dtype, _sides))
texts = st.text(st.characters(), max_size=8) | st.sampled_from(
    ["$float", "$dict", "$ref", "\ud800"]
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats()
    | st.binary(max_size=8)
    | st.complex_numbers(allow_nan=False)
    | texts
)
_hashable = texts | st.integers(-(2**80), 2**80) | st.tuples(st.integers(), texts) | st.none()


def _grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts, inner, max_size=4)
        | st.dictionaries(_hashable, inner, max_size=3)
    )


values = st.recursive(scalars | arrays, _grown, max_leaves=12)
"""All that plain data may hold."""

infos = st.dictionaries(texts, values, max_size=3)
_names = st.none() | st.text("abc", max_size=5)
_rewards = st.none() | st.floats() | st.integers(-5, 5)
_agents = st.sampled_from(["x", "o", "agent"])
_ends = st.builds(
    EpisodeEnd,
    st.sampled_from(["terminated", "truncated", "error", "timeout", "lost"]),
    st.sampled_from([None, "agent", "environment", "infrastructure"]),
    _names,
    st.dictionaries(_agents, st.none() | st.floats(), max_size=2),
)
_needs = st.builds(NeedAction, values, values, st.none() | st.floats(), _agents)
_events = st.one_of(
    st.builds(AgentEnd, _agents, values, st.none() | st.floats(), st.booleans(), st.booleans()),
    st.builds(LogEvent, st.text(max_size=5), st.sampled_from(["debug", "error"]), infos),
    st.builds(ToolCallRequest, st.text(max_size=5), st.text(max_size=5), infos),
)
_ready = st.builds(AutoResetReady, values, infos, _names, _names)
positions = st.none() | st.builds(
    Position,
    st.none() | st.integers(0, 2**64),
    st.integers(-1, 9),
    st.integers(-1, 9),
    st.just("p"),
)


@st.composite
def results(draw: st.DrawFn) -> StepResult[Any]:
    """Draw a result of any kind, of one agent or of several."""
    several = draw(st.booleans())

    def of(one: st.SearchStrategy[Any]) -> Any:
        return draw(st.dictionaries(_agents, one, max_size=2) if several else one)

    kind = draw(st.sampled_from([StepResult, ResetResult]))
    result: StepResult[Any] = object.__new__(kind)
    result.observation = of(values)
    result.reward = of(_rewards)
    result.terminated, result.truncated = of(st.booleans()), of(st.booleans())
    result.info = draw(infos)
    result.end = draw(st.none() | _ends)
    result.ready = draw(st.none() | _ready)
    result.episode_id, result.task_id = draw(_names), draw(_names)
    result.step_index = draw(st.integers(0, 2**40))
    result._needs = draw(st.none() | st.lists(_needs, max_size=2).map(tuple))
    result._events = draw(st.lists(_events, max_size=2).map(tuple))
    result._ready_events = draw(st.lists(_events, max_size=2).map(tuple))
    return result


def nested(depth: int) -> list[Any]:
    """Return a list within a list, and so on."""
    deep: list[Any] = []
    for _ in range(depth):
        deep = [deep]
    return deep


def is_standard(value: Any) -> bool:
    """Whether decoded JSON has no NaN and no infinity in it."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(is_standard, value.values()))
    return all(map(is_standard, value)) if isinstance(value, list) else True


def equal(left: Any, right: Any) -> bool:
    """Whether two values are the same, with no int in the place of a float or a bool."""
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return (
            left.dtype == right.dtype
            and left.shape == right.shape
            and (left.tobytes() == right.tobytes())
        )
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, float) and isinstance(right, float):
        return left.hex() == right.hex()
    return type(left) is type(right) and bool(left == right)
