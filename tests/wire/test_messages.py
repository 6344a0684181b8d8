"""Calls, replies and descriptions arrive as they were sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fuzzing import equal, values
from hypothesis import given, settings
from hypothesis import strategies as st

from envweave.errors import WireError
from envweave.wire.description import Description, read_description
from envweave.wire.encoding import JSON, MSGPACK, Encoding
from envweave.wire.messages import (
    OF_SERVERS,
    OF_SESSIONS,
    Call,
    Calls,
    Replies,
    Reply,
    WireFault,
    read_calls,
    read_replies,
)

both = pytest.mark.parametrize("encoding", [MSGPACK, JSON], ids=lambda one: one.name)
quick = settings(max_examples=30, deadline=None)
numbers = st.integers(0, 2**53)
calls = st.builds(
    Call,
    id=numbers,
    method=st.sampled_from(sorted(OF_SESSIONS | OF_SERVERS)),
    session=st.text(max_size=8),
    params=st.dictionaries(st.text(max_size=4), values, max_size=3),
)
faults = st.builds(WireFault, code=st.text(max_size=5), message=st.text(max_size=5))
replies = st.builds(Reply, id=numbers, session=st.text(max_size=4), result=values) | st.builds(
    Reply, id=numbers, session=st.text(max_size=4), fault=faults
)


def parts(message: msgspec.Struct) -> dict[str, Any]:
    named = {name: getattr(message, name) for name in message.__struct_fields__}
    return {n: parts(one) if isinstance(one, msgspec.Struct) else one for n, one in named.items()}


@pytest.mark.slow  # many generated messages
@both
@given(call=calls)
@quick
def test_a_call_arrives_as_it_was(encoding: Encoding, call: Call):
    arrived = read_calls(encoding.decode(encoding.encode(call)))

    assert equal(parts(arrived), parts(call))


@pytest.mark.slow  # many generated messages
@both
@given(
    many=st.lists(calls, max_size=3, unique_by=lambda call: call.session), together=st.booleans()
)
@quick
def test_many_calls_arrive_in_one_frame(encoding: Encoding, many: list[Call], together: bool):
    frame = encoding.encode(Calls(calls=many, together=together))

    arrived = read_calls(encoding.decode(frame))

    assert isinstance(arrived, Calls)
    assert equal([parts(call) for call in arrived.calls], [parts(call) for call in many])
    assert arrived.together is together


@both
@given(many=st.lists(replies, min_size=1, max_size=3))
@quick
def test_replies_arrive_as_they_were(encoding: Encoding, many: list[Reply]):
    alone = read_replies(encoding.decode(encoding.encode(many[0])))
    together = read_replies(encoding.decode(encoding.encode(Replies(replies=many))))

    assert equal(list(map(parts, alone)), [parts(many[0])])
    assert equal(list(map(parts, together)), list(map(parts, many)))


def test_a_call_leaves_out_defaults():
    assert JSON.encode(Call(id=1, method="describe")) == b'{"id":1,"method":"describe"}'


def test_a_frame_may_hold_many_calls_without_a_session():
    frame = {"calls": [{"id": 1, "method": "describe"}, {"id": 2, "method": "tasks"}]}

    read = read_calls(frame)

    assert isinstance(read, Calls)
    assert [call.method for call in read.calls] == ["describe", "tasks"]


@pytest.mark.parametrize("plain", [None, 5, {}, {"id": "a"}, {"replies": 5}, {"replies": [5]}])
def test_an_invalid_reply_is_refused_with_a_reason(plain: Any):
    with pytest.raises(WireError, match="The frame has no repl"):
        read_replies(plain)


@both
def test_a_description_arrives_as_it_was(encoding: Encoding):
    sent = Description(
        name="Counter",
        env_id="counter-v0",
        version="1",
        action={"type": "object", "$defs": {"a": {}}},
        observation={"$ref": "#/$defs/a"},
        state={},
        reset_takes=["seed"],
        possible_agents=["x"],
        splits={"train": None, "test": 3},
    )

    assert read_description(encoding.decode(encoding.encode(sent))) == sent


@pytest.mark.parametrize("plain", [None, {}, {"name": 5}])
def test_an_invalid_description_is_refused_with_a_reason(plain: Any):
    with pytest.raises(WireError, match="The server's description cannot be read"):
        read_description(plain)
