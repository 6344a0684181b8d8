"""Calls and replies that were encoded one by one and are sent in one frame."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envweave.errors import SessionGoneError
from envweave.server.sessions import ServedSession
from envweave.wire.encoding import ENCODINGS, MSGPACK, Encoding
from envweave.wire.messages import (
    CALLS_BYTES,
    MAX_CALLS,
    REPLIES_BYTES,
    Call,
    Calls,
    Reply,
    WireFault,
    gather_calls,
    gather_replies,
    read_calls,
    read_replies,
)
from envweave.wire.protocol import Caller, Exchange

CONNECTION = object()
ENCODED = pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)


def calls_in(encoding: Encoding, frame: bytes) -> list[Call]:
    read = read_calls(encoding.decode(frame))
    return read.calls if isinstance(read, Calls) else [read]  # type: ignore[list-item]


def step(i: int, **params: Any) -> Call:
    return Call(id=i, session=f"session-{i}", method="step", params=params or {"action": i})


@ENCODED
@pytest.mark.parametrize("count", [1, 2, 15, 16, 70])
def test_gathered_calls_are_read_as_they_were_and_answered_one_by_one(
    encoding: Encoding, count: int
) -> None:
    calls = [step(i) for i in range(1, count + 1)]

    (frame,) = gather_calls(encoding, map(encoding.encode, calls))

    read = read_calls(encoding.decode(frame))
    assert calls_in(encoding, frame) == calls
    assert isinstance(read, Call) if count == 1 else not read.together  # type: ignore[union-attr]


@ENCODED
@pytest.mark.parametrize("count", [1, 2, 15, 16, 70])
def test_gathered_replies_are_read_as_they_were(encoding: Encoding, count: int) -> None:
    fault = WireFault(code="busy", message="“later”")
    replies = [Reply(id=i, session=f"s{i}", fault=fault) for i in range(1, count + 1)]

    (frame,) = gather_replies(encoding, map(encoding.encode, replies))

    assert read_replies(encoding.decode(frame)) == replies


@ENCODED
def test_frames_respect_the_limit_unless_one_call_alone_exceeds_it(
    encoding: Encoding,
) -> None:
    calls = [step(i, action="x" * size) for i, size in enumerate([6000] * 5 + [40_000, 10], 1)]

    frames = list(gather_calls(encoding, map(encoding.encode, calls)))
    few = list(gather_calls(encoding, map(encoding.encode, calls), limit_bytes=10_000))

    assert [[call.id for call in calls_in(encoding, one)] for one in frames] == [
        [1, 2],
        [3, 4],
        [5],
        [6],
        [7],
    ]
    assert all(len(calls_in(encoding, one)) == 1 for one in few)


@ENCODED
@given(sizes=st.lists(st.integers(0, 400), max_size=40), limit=st.integers(1024, 3000))
def test_no_server_is_sent_more_than_it_accepts(
    encoding: Encoding, sizes: list[int], limit: int
) -> None:
    calls = [step(i, action="x" * size) for i, size in enumerate(sizes, 1)]

    frames = list(gather_calls(encoding, map(encoding.encode, calls), limit))

    assert [call for one in frames for call in calls_in(encoding, one)] == calls
    assert all(len(frame) <= limit for frame in frames)


def test_a_frame_holds_no_more_calls_than_a_server_reads() -> None:
    parts = [b"\xc0"] * (MAX_CALLS + 1)

    frames = list(gather_calls(MSGPACK, parts))

    assert len(parts) < CALLS_BYTES < REPLIES_BYTES
    assert len(frames) == 2


class Model:
    """Sessions at both ends of a connection that is cut, without any I/O."""

    def __init__(self, count: int) -> None:
        self.exchange = Exchange(MSGPACK)
        self.callers = [Caller() for _ in range(count)]
        self.sessions = {one.session: ServedSession(one.session, 1, 0.0) for one in self.callers}
        self.taken = dict.fromkeys(self.sessions, 0)  # how often each was stepped
        self.seen: dict[str, list[int]] = {name: [] for name in self.sessions}
        self.unsent: list[bytes] = []
        self.unread: list[bytes] = []  # frames on their way to the server
        self.replies: list[Reply] = []  # and what it has to say

    def play(self, one: Round) -> None:
        for i in sorted(one.callers):
            self.call(i)
        if one.is_sent:
            self.send()
        for _ in range(one.served):
            self.serve()
        if one.is_read:
            self.read()
        if one.cut is not None:
            self.cut(one.cut)

    def call(self, i: int) -> None:
        caller = self.callers[i]
        if caller.last == len(self.seen[caller.session]):
            self.unsent.append(self.exchange.frame([caller.call("step", {"action": 1})]))

    def send(self) -> None:
        self.unread += gather_calls(MSGPACK, self.unsent)
        self.unsent.clear()

    def serve(self) -> None:
        """Have the server take a frame, each call of it once."""
        for call in calls_in(MSGPACK, self.unread.pop(0)) if self.unread else ():
            session = self.sessions[call.session]
            known = session.begin(call)
            session.connection = CONNECTION
            if isinstance(known, Reply):
                self.replies.append(known)
                continue
            assert known is None
            self.taken[call.session] += 1
            reply = Reply(id=call.id, session=call.session, result=self.taken[call.session])
            session.end(reply, 0.0)
            self.replies.append(reply)

    def read(self) -> None:
        for frame in gather_replies(MSGPACK, map(MSGPACK.encode, self.replies)):
            for reply in self.exchange.read(frame):
                self.seen[reply.session].append(reply.result)
        self.replies.clear()

    def cut(self, kept: int) -> None:
        """Break the connection: some frames arrive, and no reply does."""
        while len(self.unread) > kept:
            self.unread.pop()
        while self.unread:
            self.serve()
        self.replies.clear()
        self.unsent.clear()
        for session in self.sessions.values():
            session.connection = None
        self.unread = self.exchange.frames_to_resend()


class Round(NamedTuple):
    """What happens in a turn: who calls, how much is served, and whether it comes back."""

    callers: set[int]
    is_sent: bool
    served: int
    is_read: bool
    cut: int | None


ROUNDS = st.builds(
    Round,
    st.sets(st.integers(0, 3), min_size=1),
    st.booleans(),
    st.integers(0, 4),
    st.booleans(),
    st.none() | st.integers(0, 3),
)


@pytest.mark.slow  # many generated messages
@given(st.lists(ROUNDS, min_size=1, max_size=20))
def test_gathered_calls_are_taken_once_wherever_the_connection_is_cut(rounds: list[Round]) -> None:
    """No call that was answered is sent again: it would be refused, its reply kept no more."""
    model = Model(4)

    try:
        for one in rounds:
            model.play(one)
        model.send()
        while model.unread:
            model.serve()
        model.read()
    except SessionGoneError as error:
        pytest.fail(f"a call was sent again that had been answered: {error}")

    for caller in model.callers:
        assert model.seen[caller.session] == list(range(1, caller.last + 1))
        assert model.taken[caller.session] == caller.last
