"""Plain data crosses completely or not at all, and hostile bytes only raise an exception."""

from __future__ import annotations

import enum
import math
import random
from collections import Counter, OrderedDict, defaultdict, namedtuple
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from msgspec.msgpack import Ext

from envweave.errors import PlainDataError
from envweave.sandbox.protocol.decoding import (
    ProtocolViolationError,
    read_from_host,
    read_from_session,
)
from envweave.sandbox.protocol.encoding import DTYPES, ValueKind, encode, pack
from envweave.sandbox.protocol.messages import Called, Put, Replied, RunFinished

to_bytes = msgspec.msgpack.Encoder().encode

atoms = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text()
    | st.binary()
)
hashables = st.recursive(
    atoms,
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.frozensets(inner, max_size=4),
    max_leaves=8,
)
values = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=5)
        | st.dictionaries(hashables, inner, max_size=5)
        | st.sets(hashables, max_size=5)
        | st.frozensets(hashables, max_size=5)
    ),
    max_leaves=30,
)
arrays = npst.arrays(
    st.sampled_from(sorted(DTYPES)), npst.array_shapes(min_dims=0, max_dims=4, min_side=0)
)


def body_of(packed: Any) -> bytes:
    return encode(Replied(1, None, packed))[4:]


def cross(value: Any) -> Any:
    """Send a value from a session to the host, and on to another session."""
    received = read_from_session(body_of(pack(value)))
    sent = encode(Put(1, "x", pack(received.value)))[4:]
    return read_from_host(sent).value


def shape_of(value: Any) -> Any:
    """Return a value in a form that compares types, the sign of zero and nan."""
    if isinstance(value, float):
        return "float", math.copysign(1, value), repr(value)
    if isinstance(value, list | tuple):
        return type(value), [shape_of(one) for one in value]
    if isinstance(value, set | frozenset):
        return type(value), sorted(map(repr, map(shape_of, value)))
    if isinstance(value, dict):
        return type(value), [(shape_of(key), shape_of(one)) for key, one in value.items()]
    return type(value), value


@pytest.mark.slow  # starts several sandboxes
@settings(deadline=None)
@given(values)
def test_plain_data_arrives_as_it_was_sent(value):
    assert shape_of(cross(value)) == shape_of(value)


@settings(deadline=None)
@given(arrays)
def test_arrays_arrive_with_their_dtype_and_shape_and_belong_to_the_reader(array):
    received = cross([array])[0]

    assert (received.dtype, received.shape) == (array.dtype, array.shape)
    assert received.tobytes() == array.tobytes()
    assert received.flags.writeable


def test_arrays_of_other_layouts_arrive_with_equal_values():
    table = np.arange(12).reshape(3, 4)

    received = cross([table.T, table[::2, ::-1], table.astype(">i4"), np.asfortranarray(table)])

    assert [one.tolist() for one in received] == [
        table.T.tolist(),
        table[::2, ::-1].tolist(),
        table.tolist(),
        table.tolist(),
    ]


def test_numpy_scalars_become_python_numbers():
    numbers = [np.int8(-3), np.uint64(2**64 - 1), np.float32(0.5), np.float64(0.1), np.bool_(True)]

    received = cross(numbers)

    assert received == [-3, 2**64 - 1, 0.5, 0.1, True]
    assert [type(one) for one in received] == [int, int, float, float, bool]


class Colour(enum.IntEnum):
    RED = 3


Point = namedtuple("Point", "x y")


def test_instances_of_subclasses_are_sent_as_their_base_class():
    ordered = OrderedDict(a=1, b=2)
    ordered.move_to_end("a")
    given_values = [Colour.RED, Point(1, 2), defaultdict(int, a=1), Counter("aab"), ordered]

    received = cross(given_values)

    assert received == [3, (1, 2), {"a": 1}, {"a": 2, "b": 1}, {"b": 2, "a": 1}]
    assert [type(one) for one in received] == [int, tuple, dict, dict, dict]
    assert list(received[4]) == ["b", "a"]


def lying_subclass(base: type) -> type:
    """Return a subclass whose methods all return wrong values."""

    def lie(*_: Any) -> Any:
        raise AssertionError("it was asked")

    names = ["__iter__", "__len__", "__eq__", "__hash__", "__str__", "__repr__", "__bool__"]
    names += ["__index__", "__int__", "__float__", "__getitem__", "__bytes__", "__contains__"]
    names += ["items", "keys", "values", "copy", "encode", "isascii", "bit_length", "to_bytes"]
    return type("Liar", (base,), {**dict.fromkeys(names, lie), "__class__": property(lie)})


@pytest.mark.parametrize(
    "value", [7, 2**80, 0.5, "text", b"bytes", [1], (1,), {1}, frozenset([1]), {"a": 1}]
)
def test_overridden_methods_of_a_subclass_are_never_called(value):
    liar = lying_subclass(type(value))(value)

    received = read_from_session(body_of(pack(liar))).value

    assert (type(received), received) == (type(value), value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, 2, (one for one in "x")]}, "value['a'][2]: a generator is not plain data"),
        ({1: {2: object()}}, "value[1][2]: an object is not plain data"),
        ({len: 1}, "value (a key): a builtin_function_or_method is not"),
        ([{len}], "value[0]{…}: a builtin_function_or_method is not"),
        (((1, 1j),), "value[0][1]: a complex is not plain data"),
        ("\ud800", "value: text with a lone surrogate"),
        ({"\ud800": 1}, "value: text with a lone surrogate"),
        ([np.array([object()])], "value[0]: an array of object is not plain data"),
        (np.zeros(2, "M8[s]"), "value: an array of datetime64[s] is not plain data"),
        (np.datetime64(0, "s"), "value: a datetime64 is not plain data"),
        (np.zeros((0, 10**12)), "value: an array of shape (0, 1000000000000) is too large"),
        (np.broadcast_to(0.0, (10**5, 10**5)), "value: an array of shape (100000, 100000)"),
        (bytearray(b"x"), "value: a bytearray is not plain data"),
    ],
)
def test_a_non_plain_part_is_refused_with_its_path(value, message):
    with pytest.raises(PlainDataError) as refused:
        pack(value)

    assert str(refused.value).startswith(message)


def test_a_value_that_contains_itself_is_refused():
    value: list[Any] = []
    value += [value, value]

    with pytest.raises(PlainDataError, match="nested more than 64 levels deep, or contains itself"):
        pack(value)


def test_a_value_that_is_small_only_by_sharing_is_refused():
    value: list[Any] = []
    for _ in range(40):
        value = [value, value]

    with pytest.raises(PlainDataError, match="more than 250,000 containers"):
        pack(value)


@pytest.mark.parametrize("wrap", [lambda one: [one], lambda one: (one,), lambda one: {0: one}])
def test_64_levels_are_accepted_and_one_more_is_refused(wrap):
    value = 0
    for _ in range(64):
        value = wrap(value)

    assert cross(value) == value
    with pytest.raises(PlainDataError, match="nested more than 64 levels deep"):
        pack(wrap(value))


def test_the_caller_names_the_value_and_its_depth():
    with pytest.raises(
        PlainDataError, match=r"^lookup\(\) argument 1: nested more than 2 levels deep"
    ):
        pack([[[]]], limit_depth=2, name="lookup() argument 1")


def array_body(dtype: str, shape: list[int], data: bytes) -> bytes:
    return body_of(Ext(ValueKind.ARRAY, to_bytes([dtype, shape, data])))


HOSTILE_BODIES = {
    "an unknown extension": body_of(Ext(99, b"")),
    "a timestamp": body_of(Ext(-1, b"\0\0\0\0")),
    "an array of objects": array_body("|O", [1], b"\0" * 8),
    "a structured array": array_body("i4,i4", [1], b"\0" * 8),
    "an array of strings": array_body("<U2", [1], b"\0" * 8),
    "a negative length": array_body("<f8", [-1, -1], b"\0" * 8),
    "too little data": array_body("<f8", [2], b"\0" * 8),
    "too much data": array_body("<f8", [0], b"\0" * 8),
    "a huge empty array": array_body("<f8", [0, 10**12], b""),
    "lengths that overflow": array_body("<f8", [2**32, 2**32], b""),
    "too many dimensions": array_body("<f8", [1] * 33, b"\0" * 8),
    "a dict with half an entry": body_of(Ext(ValueKind.DICT, to_bytes([1]))),
    "a key that is a list": body_of(Ext(ValueKind.DICT, to_bytes([[1], 2]))),
    "a set of lists": body_of(Ext(ValueKind.SET, to_bytes([[1]]))),
    "a native dict with keys of numbers": to_bytes([3, 1, None, {1: 2}]),
    "a native dict with keys of lists": to_bytes([3, 1, None, {(1, 2): 2}]),
    "native nesting without end": b"\x94\x03\x01\xc0" + b"\x91" * 1_000_000 + b"\xc0",
    "nested extensions without end": b"",
    "sixteen million empty lists": b"\x94\x03\x01\xc0\xdd\x00\xff\xff\xff" + b"\x90" * 0xFFFFFF,
    "eight million empty strings": b"\x94\x03\x01\xc0\xdd\x00\x7f\xff\xff" + b"\xd9\0" * 0x7FFFFF,
    "a list that announces four billion": b"\x94\x03\x01\xc0\xdd\xff\xff\xff\xff",
    "text that is not": b"\x94\x03\x01\xc0\xa2\xff\xfe",
    "bytes after the end": body_of(1) + b"\0",
    "nothing": b"",
}
_nested = to_bytes([])
for _ in range(200):
    _nested = to_bytes([Ext(ValueKind.TUPLE, _nested)])
HOSTILE_BODIES["nested extensions without end"] = body_of(Ext(ValueKind.TUPLE, _nested))


@pytest.mark.parametrize("what", HOSTILE_BODIES)
def test_hostile_bytes_are_refused(what):
    with pytest.raises((ValueError, TypeError)):
        read_from_session(HOSTILE_BODIES[what])


def colliding_tuples(count: int) -> list[Any]:
    """Return tuples that all have the same hash, as -1 and -2 do."""
    bits = count.bit_length()
    return [tuple(-1 - (i >> bit & 1) for bit in range(bits)) for i in range(count)]


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize(
    "keys",
    [[i * ((1 << 61) - 1) for i in range(1, 20_000)], colliding_tuples(12_000)],
    ids=["numbers", "tuples"],
)
@pytest.mark.parametrize("kind", [ValueKind.SET, ValueKind.FROZENSET, ValueKind.DICT])
def test_colliding_keys_are_refused(keys, kind):
    items = [pack(one) for one in keys]
    if kind == ValueKind.DICT:
        items = [one for key in items for one in (key, None)]

    with pytest.raises(ProtocolViolationError, match="collide"):
        read_from_session(body_of(Ext(kind, to_bytes(items))))


def test_many_ordinary_keys_are_accepted():
    value = {(i, j): i * j for i in range(-60, 60) for j in range(-60, 60)}

    assert cross(value) == value


def test_many_scalars_are_accepted():
    value = {"numbers": list(range(300_000)), "texts": [str(i) for i in range(300_000)]}

    assert cross(value) == value


@pytest.mark.slow  # starts several sandboxes
def test_mutated_frames_raise_or_give_a_message():
    """A hundred thousand of them, from every kind of message that holds values."""
    rng = random.Random(5)
    sample = [1, 2**70, "é", b"x", (1, {2}), {3: frozenset([4])}, np.arange(3), [[[[[[5]]]]]]]
    seeds = [
        body_of(pack(sample)),
        encode(Called(1, "t", [pack(one) for one in sample], {"k": pack((1, 2))}))[4:],
        encode(RunFinished(1, "out", "é", pack({1: 2}), True, "x", None, False, False))[4:],
    ]
    read, refused = 0, 0

    for number in range(100_000):
        body = bytearray(seeds[number % len(seeds)])
        for _ in range(rng.randint(1, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        if number % 7 == 0:
            del body[rng.randrange(len(body)) :]
        try:
            read_from_session(bytes(body))
            read += 1
        except Exception:  # noqa: BLE001 - any exception is fine
            refused += 1

    assert min(read, refused) > 1000


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_raise_or_give_a_message(data):
    for body in (data, b"\x94\x03\x01\xc0" + data):
        try:
            read_from_session(body)
        except Exception:  # noqa: BLE001 - any exception is fine
            continue
