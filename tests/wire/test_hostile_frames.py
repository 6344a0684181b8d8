"""No input crashes the wire: it is read, or refused with a `WireError`."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pytest
from fuzzing import frames, meet, messages, nested, read_everywhere, values
from hypothesis import given, settings
from hypothesis import strategies as st

from envweave.errors import WireError
from envweave.wire.encoding import JSON, MSGPACK, PLAIN_JSON, Encoding
from envweave.wire.messages import MAX_CALLS, read_calls

each = pytest.mark.parametrize("encoding", [MSGPACK, JSON, PLAIN_JSON], ids=lambda one: one.name)
quick = settings(max_examples=150, deadline=None)


@each
@given(data=st.binary(max_size=60))
@quick
def test_noise_is_refused_or_read(encoding: Encoding, data: bytes):
    meet(encoding, data)


@pytest.mark.slow  # many generated messages
@given(value=values)
@quick
def test_any_plain_data_is_refused_or_read(value: Any):
    read_everywhere(value)


@pytest.mark.slow  # many generated messages
def test_changed_frames_are_refused_or_read(randomly_seeded: random.Random):
    decoded = sum(meet(encoding, data) for encoding, data in frames(randomly_seeded, 3000))

    assert decoded > 1000


@pytest.fixture
def randomly_seeded(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.config.getoption("randomly_seed", default=0))


@each
@pytest.mark.parametrize("message", messages(), ids=lambda one: type(one).__name__)
def test_a_frame_that_was_cut_off_is_refused(encoding: Encoding, message: Any):
    data = encoding.encode(message)

    for end in range(0, len(data), 7):
        with pytest.raises(WireError):
            encoding.decode(data[:end])


@pytest.mark.parametrize(
    ("encoding", "data"),
    [(MSGPACK, b"\x91" * 100_000), (JSON, b"[" * 100_000), (PLAIN_JSON, '{"a":' * 100_000)],
)
def test_a_frame_nested_too_deeply_is_refused(encoding: Encoding, data: bytes | str):
    with pytest.raises(WireError, match="nested too deeply"):
        encoding.decode(data)


def test_marks_nested_too_deeply_are_refused():
    text = '{"$map":[[1,' * 300 + "1" + "]]}" * 300

    with pytest.raises(WireError, match="nested too deeply"):
        JSON.decode(text)


@pytest.mark.parametrize(
    "data", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6" + b"\xff" * 4]
)
def test_a_length_beyond_the_frame_allocates_nothing(data: bytes):
    with pytest.raises(WireError, match="truncated"):
        MSGPACK.decode(data)


def packed_array(dtype: bytes, shape: tuple[int, ...], data: bytes = b"") -> bytes:
    header = struct.pack(f"<BB{len(dtype)}s{len(shape)}Q", len(dtype), len(shape), dtype, *shape)
    body = header + data
    return b"\xc8" + struct.pack(">HB", len(body), 1) + body


@pytest.mark.parametrize(
    ("dtype", "shape", "data"),
    [
        (b"|O", (1,), b"\0" * 8),
        (b"<M8[s]", (1,), b"\0" * 8),
        (b"<i4,<i4", (1,), b"\0" * 8),
        (b"<f8", (2,), b"\0" * 8),
        (b"<f8", (), b""),
        (b"<f8", (2**61,), b""),
        (b"<f8", (2**32, 2**32), b""),
        (b"<f8", (2**40, 0), b""),
        (b"<f8", (1,) * 33, b"\0" * 8),
        (b"<U0", (2**40,), b""),
        (b"|V0", (2**40,), b""),
        (b"<U1", (1,), b"\xff" * 4),
        (b"|b1", (2,), b"\x01\x02"),
        (b"\xff", (1,), b"\0"),
        (b"<f8\0", (1,), b"\0" * 8),
    ],
)
def test_an_array_that_cannot_be_is_refused(dtype: bytes, shape: tuple[int, ...], data: bytes):
    with pytest.raises(WireError, match="array"):
        MSGPACK.decode(packed_array(dtype, shape, data))


def test_an_array_that_can_be_is_read():
    arrived = MSGPACK.decode(packed_array(b"<f4", (1, 1), struct.pack("<f", 2.0)))

    assert arrived.tolist() == [[2.0]]


@pytest.mark.parametrize(
    "text",
    [
        '{"$float": "1e5"}',
        '{"$float": ["nan"]}',
        '{"$float": "nan", "b": 1}',
        '{"$int": "%s"}' % ("9" * 5000),
        '{"$int": "1_000"}',
        '{"$int": " 1"}',
        '{"$int": "0xZZ"}',
        '{"$int": 5}',
        '{"$bytes": "a"}',
        '{"$bytes": "\\u00e9"}',
        '{"$array": "AAA=", "dtype": "<f4"}',
        '{"$array": "AACAPw==", "dtype": "<f4", "shape": [2]}',
        '{"$array": "AACAPw==", "dtype": "<f4", "shape": [-1]}',
        '{"$array": "AACAPw==", "dtype": "<f4", "shape": [true]}',
        '{"$array": "", "dtype": "O", "shape": [0]}',
        '{"$array": [[1], [2, 3]], "dtype": "<f4"}',
        '{"$array": [["a"]], "dtype": "<f4"}',
        '{"$array": [300], "dtype": "|u1"}',
        '{"$array": {"a": 1}, "dtype": "<f4"}',
        '{"$complex": [1]}',
        '{"$complex": ["a", "b"]}',
        '{"$time": "yesterday"}',
        '{"$text": "7w=="}',
        '{"$map": [[1]]}',
        '{"$map": [[{"a": 1}, 2]]}',
        '{"$map": 5}',
        '{"$dict": []}',
        '{"\\u0024float": "x"}',
    ],
)
def test_a_mark_that_is_not_as_documented_is_refused(text: str):
    with pytest.raises(WireError):
        JSON.decode(text)


@pytest.mark.parametrize("encoding", [MSGPACK, JSON], ids=lambda one: one.name)
def test_keys_that_were_chosen_to_be_slow_are_refused(encoding: Encoding):
    modulus = 2**61 - 1
    sent = {modulus * (2**30 + i): None for i in range(200)}

    with pytest.raises(WireError, match="share a hash"):
        encoding.decode(encoding.encode(sent))


def test_many_long_numbers_that_differ_are_read():
    sent = [2**70 + i for i in range(5000)] + [2**80] * 1000

    assert MSGPACK.decode(MSGPACK.encode(sent)) == sent


def test_the_message_discloses_nothing_about_the_server():
    with pytest.raises(WireError) as refused:
        MSGPACK.decode(b"\xc7\x00\x63")

    assert str(refused.value) == "There is no extension 99."
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        (None, "The frame has no call"),
        ({"id": "1", "method": "step"}, "The frame has no call"),
        ({"id": 1}, "The frame has no call"),
        ({"id": 1, "method": "step", "more": 1}, "The frame has no call"),
        ({"id": 1, "method": "step", "params": {1: 2}}, "The frame has no call"),
        ({"id": 1, "method": "step", "params": np.zeros(2)}, "The frame has no call"),
        ({"calls": 5}, "The frame has no calls"),
        ({"calls": [{"id": 1, "method": "state", "session": "a"}] * 2}, "two calls on one session"),
        ({"calls": [{"id": 1, "method": "describe"}] * (MAX_CALLS + 1)}, "more than 4096 calls"),
        (
            {"id": 1, "method": "step", "params": {"a": nested(9)}, "session": nested(900)},
            "no call",
        ),
    ],
)
def test_an_invalid_call_is_refused_with_a_reason(plain: Any, says: str):
    with pytest.raises(WireError, match=says):
        read_calls(plain)
