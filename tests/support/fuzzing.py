"""Values that a wire has to carry, as strategies, and bytes that it must refuse."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from envweave.codec import spec_from_hint
from envweave.environment import Interface
from envweave.errors import WireError
from envweave.session import Position
from envweave.testing import ScriptedAction, ScriptedObservation
from envweave.testing.scripted import ScriptedState
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
from envweave.wire.description import Rebuilt, describe, read_description
from envweave.wire.encoding import JSON, MSGPACK, PLAIN_JSON, Encoding
from envweave.wire.messages import Call, Calls, Replies, Reply, WireFault, read_calls, read_replies
from envweave.wire.results import IDENTITY, decode_result, encode_result, result_of

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


_WORDS: list[Any] = [
    *(None, True, -1, 2**63, 2**70, 1e308, float("nan"), "", "\ud800", b"\xff", [], {}, [[]]),
    *("step", "calls", "replies", "$float", "$array", "#/$defs/a", "object", "tuple", "float32"),
    *({"$int": "9" * 5000}, {"$map": [[[1], 2]]}, {"type": "object", "title": "class"}, 1j),
    *(np.zeros((2, 0)), np.array(["a"]), {1: 2}, {"x-array": {"shape": [2**40]}}, -(2**70)),
]


def messages() -> list[Any]:
    """Return one valid message of each kind."""
    result = StepResult({"a": np.arange(3), "b": [1.5]}, 1.0, info={"mask": np.ones(2, bool)})
    result.end = EpisodeEnd("error", "environment", "boom", {"x": 1.0})
    result.ready = AutoResetReady({"at": 0}, {"seed": 3}, "e-1", "t")
    result._needs = (NeedAction({"at": 0}, agent_id="x"),)
    result._events = (LogEvent("hello"),)
    sent = encode_result(result, ["x", "o"], Position(1, 2, 3, "p"))
    interface = Interface(
        frozenset(["seed"]),
        frozenset(),
        spec_from_hint(ScriptedAction),
        spec_from_hint(ScriptedObservation | tuple[int, np.ndarray] | dict[int, set[str]]),
    )
    call = Call(id=1, method="step", session="s", params={"action": {"number": 1}})
    return [
        call,
        Calls(calls=[call, Call(id=2, method="describe")]),
        Reply(id=1, result=sent),
        Replies(replies=[Reply(id=1, fault=WireFault(code="busy", message="no"))]),
        sent,
        describe(interface, spec_from_hint(ScriptedState), None, "id", "1"),
        {"long": 2**70, "keys": {1: 2, (1, "a"): 1j}, "text": "\ud800", "$x": np.zeros((2, 0))},
    ]


def _rebuilt(plain: Any) -> None:
    rebuilt = Rebuilt(read_description(plain))
    rebuilt.rebuild(plain)
    rebuilt.rebuild_state(plain)
    rebuilt.interface.observation_spec.contains(plain)
    rebuilt.interface.action_spec.contains(plain)


def _result(plain: Any) -> None:
    result = result_of(decode_result(plain), IDENTITY)
    repr(result.requests)


READERS: tuple[Callable[[Any], Any], ...] = (read_calls, read_replies, _result, _rebuilt)


def meet(encoding: Encoding, data: bytes) -> bool:
    """Let every reader meet a frame; only `WireError` may come of it. Return if it was decoded."""
    try:
        plain = encoding.decode(data)
    except WireError:
        return False
    read_everywhere(plain)
    return True


def read_everywhere(plain: Any) -> None:
    """Let every reader meet decoded data; only `WireError` may come of it."""
    for read in READERS:
        try:
            read(plain)
        except WireError:
            continue


def frames(rng: random.Random, count: int) -> Iterator[tuple[Encoding, bytes]]:
    """Go through noise, and valid frames in which bytes or parts were changed."""
    plains = [MSGPACK.decode(MSGPACK.encode(one)) for one in messages()]
    seeds = [(e, e.encode(one)) for e in (MSGPACK, JSON, PLAIN_JSON) for one in plains]
    for turn in range(count):
        encoding, data = rng.choice(seeds)
        match turn % 4:
            case 0:
                yield encoding, rng.randbytes(rng.randrange(40))
            case 1:
                yield encoding, changed_bytes(rng, data)
            case _:
                yield encoding, encoding.encode(changed_parts(rng, rng.choice(plains)))


def changed_bytes(rng: random.Random, data: bytes) -> bytes:
    """Return a frame with a few bytes changed, taken out or put in."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(changed) or 1)
        match rng.randrange(4):
            case 0:
                changed[at : at + 1] = rng.randbytes(1)
            case 1:
                del changed[at : at + rng.randrange(1, 9)]
            case 2:
                changed[at:at] = changed[: rng.randrange(30)]
            case _:
                changed[at:at] = rng.choice(
                    [b"\xc7\xff\x01", b"\xdf", b'{"$map":', b"\\u0024", b"["]
                )
    return bytes(changed)


def changed_parts(rng: random.Random, plain: Any, depth: int = 0) -> Any:
    """Return plain data in which some parts are replaced, missing or added."""
    if rng.random() < 0.04 + 0.02 * depth:
        return rng.choice(_WORDS)
    if isinstance(plain, dict):
        changed = {key: changed_parts(rng, one, depth + 1) for key, one in plain.items()}
        if changed and rng.random() < 0.1:
            changed.pop(rng.choice(list(changed)))
        if rng.random() < 0.1:
            changed[
                rng.choice(["a", "type", "$ref", "x-array", "enum", "items", "title", "anyOf"])
            ] = rng.choice(_WORDS)
        return changed
    if isinstance(plain, list):
        return [changed_parts(rng, one, depth + 1) for one in plain]
    return plain
