"""Bytes that nobody meant: noise, and valid frames with something changed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from envweave.codec import spec_from_hint
from envweave.environment import Interface
from envweave.errors import WireError
from envweave.session.episodes import Position
from envweave.testing.scripted import ScriptedAction, ScriptedObservation, ScriptedState
from envweave.types import AutoResetReady, EpisodeEnd, LogEvent, NeedAction, StepResult
from envweave.wire.description import read_description
from envweave.wire.encoding import JSON, MSGPACK, PLAIN_JSON, Encoding
from envweave.wire.messages import Call, Calls, Replies, Reply, WireFault, read_calls, read_replies
from envweave.wire.results import IDENTITY, decode_result, encode_result, result_of
from envweave.wire.schema import Rebuilt, describe

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
