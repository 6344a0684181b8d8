"""The client's side of the protocol without a connection: resending calls, matching replies."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from envweave.errors import WireError
from envweave.wire.encoding import MSGPACK
from envweave.wire.messages import (
    Call,
    Calls,
    Replies,
    Reply,
    Stepped,
    Steps,
    WireFault,
    read_calls,
)
from envweave.wire.protocol import BatchFrame, Caller, EncodeError, Exchange


def replied(*calls: Call) -> bytes:
    return MSGPACK.encode(Replies(replies=[Reply(id=c.id, session=c.session) for c in calls]))


def sent(data: bytes) -> list[tuple[str, int, str]]:
    read = read_calls(MSGPACK.decode(data))
    calls = read.calls if isinstance(read, Calls) else [read]
    return [(call.session, call.id, call.method) for call in calls]


def opened(count: int) -> tuple[Exchange, list[Caller]]:
    exchange, callers = Exchange(MSGPACK), [Caller() for _ in range(count)]
    calls = [caller.call("open", {}) for caller in callers]
    exchange.frame(calls)
    assert len(exchange.read(replied(*calls))) == count
    return exchange, callers


def test_the_number_of_a_call_is_the_next_of_its_session():
    caller = Caller()

    calls = [caller.call("open", {}), caller.call("reset", {})]

    assert [(call.session, call.id) for call in calls] == [(caller.session, 1), (caller.session, 2)]
    assert len(caller.session) >= 20


def test_unanswered_calls_are_sent_again_unchanged():
    exchange, (one, two) = opened(2)
    data = exchange.frame([one.call("step", {"action": 1})])

    again = exchange.frames_to_resend()

    assert again[0] is data
    assert sent(again[1]) == [(two.session, 1, "state")]


def test_an_idle_session_is_renewed_by_the_number_of_its_last_call():
    exchange, (one,) = opened(1)
    step = one.call("step", {"action": 1})
    exchange.frame([step])
    exchange.read(replied(step))

    assert [sent(data) for data in exchange.frames_to_resend()] == [[(one.session, 2, "state")]]


def test_a_duplicate_reply_is_ignored():
    exchange, (one,) = opened(1)
    step = one.call("step", {"action": 1})
    exchange.frame([step])

    taken = [len(exchange.read(replied(step))) for _ in range(2)]

    assert taken == [1, 0]


def test_an_abandoned_session_is_closed_and_its_late_replies_are_dropped():
    exchange, (one,) = opened(1)
    step = one.call("step", {"action": 1})
    exchange.frame([step])

    exchange.abandon(one.session)

    assert [sent(data) for data in exchange.pop_closes()] == [[(one.session, 3, "close")]]
    assert exchange.read(replied(step)) == []
    assert (exchange.pop_closes(), exchange.frames_to_resend()) == ([], [])


def test_an_abandoned_session_without_a_call_is_closed_at_once():
    exchange, (one,) = opened(1)

    exchange.abandon(one.session)

    assert [sent(data) for data in exchange.pop_closes()] == [[(one.session, 2, "close")]]
    assert not exchange.has_sessions


def test_a_call_that_was_not_sent_frees_its_number():
    """Else the next connection would name the session by a call that the server never had."""
    exchange, (one,) = opened(1)
    exchange.limit_bytes = 1
    with pytest.raises(EncodeError):
        exchange.frame([one.call("step", {"action": 1})])

    one.roll_back()

    assert [sent(data) for data in exchange.frames_to_resend()] == [[(one.session, 1, "state")]]
    assert one.call("step", {"action": 2}).id == 2


def test_a_frame_that_the_server_could_not_read_is_reported():
    exchange, (one,) = opened(1)
    exchange.frame([one.call("step", {"action": 1})])
    fault = WireFault(code="unreadable", message="no call")

    with pytest.raises(WireError, match="no call"):
        exchange.read(MSGPACK.encode(Reply(id=0, fault=fault)))


def test_a_message_that_is_too_large_for_the_server_is_never_sent():
    exchange, (one,) = opened(1)
    exchange.limit_bytes = 1000

    with pytest.raises(EncodeError, match="accepts at most 1000"):
        exchange.frame([one.call("step", {"action": "x" * 1000})])

    assert not exchange.is_waiting


def fired(count: int) -> tuple[Exchange, list[Caller], BatchFrame]:
    exchange, callers = opened(count)
    steps = Steps(
        sessions=[caller.session for caller in callers], numbers=[2] * count, actions=[0] * count
    )
    batch = BatchFrame(steps, MSGPACK.encode(steps))
    exchange.begin_batch(batch)
    return exchange, callers, batch


def stepped(callers: Sequence[Caller], *rest: Caller) -> bytes:
    return MSGPACK.encode(
        Stepped(
            sessions=[caller.session for caller in callers],
            numbers=[2] * len(callers),
            observations=[{}] * len(callers),
            rewards=[1.0] * len(callers),
            episodes=["e"] * len(callers),
            indices=[1] * len(callers),
            rest=[Reply(id=2, session=caller.session) for caller in rest],
        )
    )


def test_a_batch_is_answered_as_a_whole():
    exchange, callers, _ = fired(3)

    answer = exchange.read_batch(stepped(callers[:2], callers[2]))

    assert isinstance(answer, Stepped)
    assert not exchange.is_waiting
    assert [sent(data) for data in exchange.frames_to_resend()] == [
        [(caller.session, 2, "state") for caller in callers]
    ]


def test_an_unanswered_batch_is_sent_again_unchanged():
    exchange, _, batch = fired(3)

    assert exchange.frames_to_resend() == [batch.data]
    assert exchange.is_waiting


@pytest.mark.parametrize("twice", [False, True])
def test_an_answer_to_part_of_a_batch_is_read_reply_by_reply(twice: bool):
    exchange, callers, batch = fired(3)

    answer = exchange.read_batch(stepped(callers[:2], *callers[: int(twice)]))

    assert isinstance(answer, list)
    assert [reply.session for reply in answer] == [caller.session for caller in callers[:2]]
    assert exchange.frames_to_resend()[0] == batch.data


def test_an_abandoned_session_of_a_batch_is_closed_after_its_step():
    exchange, callers, _ = fired(2)

    exchange.abandon(callers[0].session)

    assert [sent(data) for data in exchange.pop_closes()] == [[(callers[0].session, 3, "close")]]
    assert isinstance(exchange.read_batch(stepped(callers)), list)


def test_a_call_after_a_batch_is_the_last_of_its_session():
    exchange, callers, _ = fired(2)
    exchange.read_batch(stepped(callers))
    callers[0].last = 2

    state = callers[0].call("state", {})
    exchange.frame([state])
    exchange.read(replied(state))

    assert [sent(data) for data in exchange.frames_to_resend()] == [
        [(callers[0].session, 3, "state"), (callers[1].session, 2, "state")]
    ]
