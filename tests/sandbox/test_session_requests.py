"""Requests besides `run`, checked on the host."""

import pytest
from sandbox_sessions import LIMITS, Clock, SandboxTools, decoded, make_protocol

from envweave.errors import OptionError, PlainDataError, SandboxError, SessionEndedError
from envweave.sandbox import Limits
from envweave.sandbox.protocol.encoding import encode
from envweave.sandbox.protocol.messages import Failure, Replied
from envweave.sandbox.protocol.session_protocol import SessionProtocol, SessionReply
from envweave.sandbox.protocol.termination import TerminationError


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def protocol(clock: Clock) -> SessionProtocol:
    return make_protocol(clock)


@pytest.mark.parametrize(
    ("failure", "error", "text"),
    [
        (Failure("NameError", "no x", ""), LookupError, "get('x'): no x"),
        (Failure("PlainDataError", "value[0]: a file", ""), TypeError, "get('x'): value[0]"),
        (Failure("FileNotFoundError", "no a", ""), OSError, "get('x'): no a"),
        (Failure("Odd", "text", ""), SandboxError, "get('x'): Odd: text"),
    ],
)
def test_a_failed_request_raises_the_matching_error(protocol, failure, error, text):
    number = decoded(protocol.start_get("x")).id

    reply = protocol.receive(encode(Replied(number, failure, None)))

    assert isinstance(reply, SessionReply)
    assert isinstance(reply.error, error)
    assert isinstance(reply.error, SandboxError)
    assert str(reply.error).startswith(text)


@pytest.mark.parametrize(
    ("start_call", "value"),
    [
        (lambda protocol: protocol.start_put("x", 1), 1),
        (lambda protocol: protocol.start_read("a"), "text"),
        (lambda protocol: protocol.start_write("a", b""), b""),
        (lambda protocol: protocol.start_list("."), "a"),
        (lambda protocol: protocol.start_list("."), ["a", 1]),
        (lambda protocol: protocol.start_list("."), ["../a"]),
        (lambda protocol: protocol.start_list("."), ["/etc/passwd"]),
        (lambda protocol: protocol.start_list("."), [""]),
    ],
)
def test_a_reply_of_the_wrong_type_ends_the_session(protocol, start_call, value):
    number = decoded(start_call(protocol)).id

    with pytest.raises(TerminationError, match="It sent the host"):
        protocol.receive(encode(Replied(number, None, value)))


@pytest.mark.parametrize(
    "path",
    ["../a", "a/../../b", "/etc/passwd", "/home/agentx/a", "a\0b", "", ".", "a/", 3, "\ud800"],
)
def test_a_path_outside_the_work_folder_is_refused(clock, path):
    protocol = SessionProtocol(LIMITS, SandboxTools(), work="/home/agent", clock=clock)

    with pytest.raises(OptionError, match="read_file"):
        protocol.start_read(path)


@pytest.mark.parametrize(
    ("path", "sent"), [("a/b", "a/b"), ("./a//b", "a/b"), ("/home/agent/a", "a"), ("..a", "..a")]
)
def test_a_path_is_sent_relative_to_the_work_folder(clock, path, sent):
    protocol = SessionProtocol(LIMITS, SandboxTools(), work="/home/agent", clock=clock)

    assert decoded(protocol.start_read(path)).path == sent


def test_invalid_arguments_are_refused_before_anything_is_sent(protocol):
    with pytest.raises(PlainDataError, match=r"value\['a'\]"):
        protocol.start_put("x", {"a": object()})
    with pytest.raises(OptionError, match="message_bytes"):
        protocol.start_put("x", b"0" * LIMITS.message_bytes)
    with pytest.raises(OptionError, match="message_bytes"):
        protocol.start_write("x", b"0" * LIMITS.message_bytes)
    with pytest.raises(PlainDataError, match="bytes"):
        protocol.start_write("x", "text")
    with pytest.raises(OptionError, match="identifier"):
        protocol.start_put("x y", 1)

    assert not protocol.is_open


def test_a_session_that_does_not_answer_a_request_is_killed_later_than_code(clock):
    protocol = make_protocol(clock, Limits(timeout_s=0.01, grace_s=0.5))
    protocol.start_get("x")
    left_s = protocol.deadline_s - clock.now_s

    clock.now_s = protocol.deadline_s
    protocol.on_deadline()
    with pytest.raises(TerminationError) as caught:
        protocol.on_deadline()

    assert left_s == 2.0
    with pytest.raises(SessionEndedError, match=r"get\('x'\).* did not answer within 2.5 s"):
        protocol.end(caught.value.termination)
