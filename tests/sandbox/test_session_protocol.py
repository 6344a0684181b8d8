"""The host's side of the protocol, with a session that may send anything."""

import msgspec
import pytest
from sandbox_sessions import LIMITS, Clock, decoded, finished, make_protocol, start

from envweave.errors import OptionError, SandboxError
from envweave.sandbox import ExecutionResult, Limits, ToolCall
from envweave.sandbox.protocol.broker import ToolInvocation
from envweave.sandbox.protocol.encoding import encode
from envweave.sandbox.protocol.messages import (
    Called,
    Failure,
    Ready,
    Replied,
    Run,
    SetupFailed,
    ToolAnswer,
)
from envweave.sandbox.protocol.session_protocol import SessionProtocol
from envweave.sandbox.protocol.termination import TerminationError


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def protocol(clock: Clock) -> SessionProtocol:
    return make_protocol(clock)


def test_a_run_is_sent_with_an_unpredictable_number(protocol):
    first = decoded(protocol.start_run("x", None))
    second = decoded(protocol.start_run("x", None))

    assert type(first) is Run
    assert first.code == "x"
    assert first.id != second.id
    assert max(first.id, second.id) < 1 << 62


def test_the_finished_message_becomes_the_result(protocol, clock):
    number = start(protocol)
    clock.now_s += 0.25
    message = finished(number, stdout="a", stderr="b", value=(1, 2), shown="(1, 2)")

    result = protocol.receive(encode(msgspec.structs.replace(message, value=[1, 2])))

    assert result == ExecutionResult(
        success=True,
        stdout="a",
        stderr="b",
        return_value=[1, 2],
        return_repr="(1, 2)",
        duration_s=0.25,
    )


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_messages_may_arrive_in_pieces_of_any_size(protocol, chunk):
    frame = bytes(encode(finished(start(protocol), stdout="abc")))

    moves = [protocol.receive(frame[at : at + chunk]) for at in range(0, len(frame), chunk)]

    assert [move for move in moves if move is not None] == [moves[-1]]
    assert moves[-1].stdout == "abc"


def test_a_message_with_another_number_is_dropped(protocol):
    old = start(protocol)
    protocol.receive(encode(finished(old)))
    number = start(protocol)
    forged = b"".join(
        encode(message)
        for message in (
            finished(old, stdout="stale"),
            finished(number + 1, stdout="forged"),
            Replied(number, None, None),
            finished(number, stdout="true"),
            finished(number, stdout="twice"),
        )
    )

    result = protocol.receive(forged)

    assert result.stdout == "true"
    assert protocol.next() is None


def test_a_reply_to_a_finished_run_is_not_taken_for_the_next(protocol):
    number = start(protocol)
    protocol.receive(encode(finished(number)) + encode(finished(number, stdout="again")))

    start(protocol)

    assert protocol.next() is None


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x90",
        b"\x91" * 60_000,
        b"\x93\x00\x01",
        msgspec.msgpack.encode([99, 1]),
        msgspec.msgpack.encode([0, 1.5, "", "", None, True, None, None, False, False]),
        msgspec.msgpack.encode([0, 1, b"\xff", "", None, True, None, None, False, False]),
        msgspec.msgpack.encode([1, 1, "double", [], {1: 2}]),
        msgspec.msgpack.encode([3, 1 << 63, None, msgspec.msgpack.Ext(99, b"")]),
        bytes(encode(Ready()))[4:],
        bytes(encode(SetupFailed("wall", 1, "text")))[4:],
    ],
)
def test_an_unreadable_message_ends_the_session(protocol, payload):
    start(protocol)

    with pytest.raises(TerminationError) as caught:
        protocol.receive(len(payload).to_bytes(4, "little") + payload)
    result = protocol.end(caught.value.termination)

    assert (result.exception_type, result.session_ended) == ("ProtocolViolation", True)
    with pytest.raises(SandboxError, match="the session is gone"):
        protocol.start_run("1", None)


def test_an_oversized_frame_ends_the_session_at_its_header(protocol):
    start(protocol)

    with pytest.raises(TerminationError):
        protocol.receive((LIMITS.message_bytes + 1).to_bytes(4, "little"))


def test_texts_over_the_limit_are_truncated_by_the_host(clock):
    limits = Limits(output_bytes=256)
    protocol = make_protocol(clock, limits)
    long = "é" * 100_000
    number = start(protocol)
    message = finished(
        number, stdout=long, stderr=long, shown=long, failure=Failure(long, long, long)
    )

    result = protocol.receive(encode(message))

    printed = [result.stdout, result.stderr]
    shown = [result.return_repr, result.exception_type, result.exception_message]
    assert all(256 <= len(text.encode()) <= 256 + 512 for text in printed)
    assert all(0 < len(text.encode()) <= 1 << 16 for text in [*shown, result.traceback])
    assert result.limits_hit == ("output",)


def test_a_tool_call_is_looked_up_bound_and_answered(protocol):
    number = start(protocol)

    invocation = protocol.receive(encode(Called(7, "double", [4], {})))
    answer = decoded(protocol.answer(invocation, invocation()))
    result = protocol.receive(encode(finished(number)))

    assert answer == ToolAnswer(7, True, 8)
    assert result.tool_calls == (ToolCall("double", ((4,), {}), 8),)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (Called(1, "duoble", [], {}), "Did you mean 'double'?"),
        (Called(1, "double", [], {}), "missing a required argument: 'value'"),
        (Called(1, "double", ["a"], {}), "argument value: 'a' is not an int"),
        (Called(1, "double", [1], {"é\u2028": 1}), "unexpected keyword argument"),
        (Called(1, "__class__", [1], {}), "There is no tool"),
        (Called(1, "x" * 60_000, [1], {}), "There is no tool"),
    ],
)
def test_an_invalid_tool_call_is_answered_with_the_reason(protocol, call, reason):
    number = start(protocol)

    answer = decoded(protocol.receive(encode(call)))
    result = protocol.receive(encode(finished(number)))

    assert (answer.call, answer.ok) == (1, False)
    assert reason in answer.value
    assert len(answer.value) < 1000
    assert [call.error for call in result.tool_calls] == [answer.value]


def test_a_non_plain_return_value_of_a_tool_is_an_error_with_its_path(protocol):
    start(protocol)
    invocation = protocol.receive(encode(Called(1, "odd", [], {})))

    answer = decoded(protocol.answer(invocation, {"a": [1, invocation()]}))

    assert not answer.ok
    assert answer.value.startswith("TypeError: odd()['a'][1]: an object")


def test_an_oversized_return_value_of_a_tool_is_an_error(protocol):
    start(protocol)
    invocation = protocol.receive(encode(Called(1, "odd", [], {})))

    answer = decoded(protocol.answer(invocation, b"0" * LIMITS.message_bytes))

    assert answer == ToolAnswer(1, False, "ValueError: odd() returned more than one message holds.")


def test_tool_calls_over_the_limit_are_refused_and_reported(protocol):
    number = start(protocol)
    answers = []
    for call in range(5):
        move = protocol.receive(encode(Called(call, "double", [call], {})))
        answers.append(
            decoded(protocol.answer(move, move()) if type(move) is ToolInvocation else move)
        )

    result = protocol.receive(encode(finished(number)))

    assert [answer.ok for answer in answers] == [True, True, True, False, False]
    assert "at most 3 tool calls" in answers[-1].value
    assert len(result.tool_calls) == 3
    assert result.limits_hit == ("tool_calls",)


def test_a_tool_called_while_no_code_runs_is_refused(protocol):
    protocol.receive(encode(finished(start(protocol))))
    idle = decoded(protocol.receive(encode(Called(1, "double", [1], {}))))
    protocol.start_get("x")
    busy = decoded(protocol.receive(encode(Called(2, "double", [1], {}))))

    assert [idle, busy] == [
        ToolAnswer(1, False, "RuntimeError: No code is running."),
        ToolAnswer(2, False, "RuntimeError: No code is running."),
    ]


def test_tool_arguments_are_recorded_up_to_a_limit(clock):
    protocol = make_protocol(clock, Limits(tool_calls=10))
    number = start(protocol)
    for call in range(4):
        invocation = protocol.receive(encode(Called(call, "odd", [], {"a": "0" * 400_000})))
        protocol.receive(b"") if type(invocation) is not ToolInvocation else protocol.answer(
            invocation, None
        )

    result = protocol.receive(encode(finished(number)))

    assert [bool(call.arguments[1]) for call in result.tool_calls] == [True, True, False, False]


def test_code_over_its_deadline_is_interrupted_then_killed(protocol, clock):
    start(protocol)
    first = protocol.deadline_s - clock.now_s

    clock.now_s += 1.0
    protocol.on_deadline()
    second = protocol.deadline_s - clock.now_s
    clock.now_s += 0.5
    with pytest.raises(TerminationError) as caught:
        protocol.on_deadline()
    result = protocol.end(caught.value.termination)

    assert (first, second) == (1.0, 0.5)
    assert (result.exception_type, result.limits_hit) == ("TimeLimit", ("time",))
    assert (result.success, result.session_ended, result.duration_s) == (False, True, 1.5)


def test_code_that_ends_when_interrupted_hits_the_time_limit_and_the_session_lives(protocol, clock):
    number = start(protocol)
    clock.now_s += 1.0
    protocol.on_deadline()
    failure = Failure("TimeLimit", "too long", "Traceback")

    result = protocol.receive(encode(finished(number, failure=failure, interrupted=True)))

    assert (result.exception_type, result.limits_hit) == ("TimeLimit", ("time",))
    assert not result.session_ended
    assert start(protocol)
    assert protocol.deadline_s == clock.now_s + 1.0


def test_the_result_reports_an_interrupt_by_the_caller(protocol):
    number = start(protocol)
    protocol.request_interrupt()
    failure = Failure("TimeLimit", "too long", "Traceback")

    result = protocol.receive(encode(finished(number, failure=failure, interrupted=True)))

    assert (result.exception_type, result.limits_hit) == ("Interrupted", ())


def test_code_that_ignores_its_caller_is_killed_after_the_grace_period(protocol, clock):
    start(protocol)
    protocol.request_interrupt()
    assert protocol.deadline_s == clock.now_s + 0.5

    with pytest.raises(TerminationError) as caught:
        protocol.on_deadline()

    assert protocol.end(caught.value.termination).exception_type == "Interrupted"


@pytest.mark.parametrize(
    ("failure", "limits_hit"),
    [
        (Failure("MemoryError", "", ""), ("memory",)),
        (Failure("OSError", "[Errno 28] No space left on device", ""), ("disk",)),
        (Failure("OSError", "[Errno 2] No such file", ""), ()),
        (Failure("ValueError", "", ""), ()),
    ],
)
def test_an_exception_that_stands_for_a_limit_reports_it(protocol, failure, limits_hit):
    number = start(protocol)

    result = protocol.receive(encode(finished(number, failure=failure)))

    assert result.limits_hit == limits_hit


def test_code_that_cannot_be_sent_gives_a_result_and_leaves_the_session_intact(protocol):
    half = protocol.start_run("'\ud800'", None)
    long = protocol.start_run("0" * LIMITS.message_bytes, None)

    assert (half.exception_type, half.success) == ("SyntaxError", False)
    assert (long.exception_type, long.limits_hit) == ("MessageLimit", ("message",))
    assert start(protocol)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), 10**400, "1", True])
def test_an_invalid_timeout_is_refused(protocol, timeout_s):
    with pytest.raises(OptionError, match="timeout_s"):
        protocol.start_run("1", timeout_s)
