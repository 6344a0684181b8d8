"""Requests besides `run`, checked on the host."""

import pytest
from talking import LIMITS, Clock, talk_of, told

from envweave.errors import OptionError, PlainDataError, SandboxError, SessionEndedError
from envweave.sandbox.limits import Limits
from envweave.sandbox.protocol.messages import Failure, Replied
from envweave.sandbox.protocol.plain_values import encode
from envweave.sandbox.protocol.session_protocol import SessionProtocol, SessionReply
from envweave.sandbox.protocol.termination import TerminationError
from envweave.sandbox.tools import SandboxTools


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def talk(clock: Clock) -> SessionProtocol:
    return talk_of(clock)


@pytest.mark.parametrize(
    ("failure", "error", "text"),
    [
        (Failure("NameError", "no x", ""), LookupError, "get('x'): no x"),
        (Failure("PlainDataError", "value[0]: a file", ""), TypeError, "get('x'): value[0]"),
        (Failure("FileNotFoundError", "no a", ""), OSError, "get('x'): no a"),
        (Failure("Odd", "text", ""), SandboxError, "get('x'): Odd: text"),
    ],
)
def test_a_failed_request_raises_the_matching_error(talk, failure, error, text):
    number = told(talk.start_get("x")).id

    reply = talk.receive(encode(Replied(number, failure, None)))

    assert isinstance(reply, SessionReply)
    assert isinstance(reply.error, error)
    assert isinstance(reply.error, SandboxError)
    assert str(reply.error).startswith(text)


@pytest.mark.parametrize(
    ("start_call", "value"),
    [
        (lambda talk: talk.start_put("x", 1), 1),
        (lambda talk: talk.start_read("a"), "text"),
        (lambda talk: talk.start_write("a", b""), b""),
        (lambda talk: talk.start_list("."), "a"),
        (lambda talk: talk.start_list("."), ["a", 1]),
        (lambda talk: talk.start_list("."), ["../a"]),
        (lambda talk: talk.start_list("."), ["/etc/passwd"]),
        (lambda talk: talk.start_list("."), [""]),
    ],
)
def test_a_reply_of_the_wrong_type_ends_the_session(talk, start_call, value):
    number = told(start_call(talk)).id

    with pytest.raises(TerminationError, match="It sent the host"):
        talk.receive(encode(Replied(number, None, value)))


@pytest.mark.parametrize(
    "path",
    ["../a", "a/../../b", "/etc/passwd", "/home/agentx/a", "a\0b", "", ".", "a/", 3, "\ud800"],
)
def test_a_path_outside_the_work_folder_is_refused(clock, path):
    talk = SessionProtocol(LIMITS, SandboxTools(), work="/home/agent", clock=clock)

    with pytest.raises(OptionError, match="read_file"):
        talk.start_read(path)


@pytest.mark.parametrize(
    ("path", "sent"), [("a/b", "a/b"), ("./a//b", "a/b"), ("/home/agent/a", "a"), ("..a", "..a")]
)
def test_a_path_is_sent_relative_to_the_work_folder(clock, path, sent):
    talk = SessionProtocol(LIMITS, SandboxTools(), work="/home/agent", clock=clock)

    assert told(talk.start_read(path)).path == sent


def test_invalid_arguments_are_refused_before_anything_is_sent(talk):
    with pytest.raises(PlainDataError, match=r"value\['a'\]"):
        talk.start_put("x", {"a": object()})
    with pytest.raises(OptionError, match="message_bytes"):
        talk.start_put("x", b"0" * LIMITS.message_bytes)
    with pytest.raises(OptionError, match="message_bytes"):
        talk.start_write("x", b"0" * LIMITS.message_bytes)
    with pytest.raises(PlainDataError, match="bytes"):
        talk.start_write("x", "text")
    with pytest.raises(OptionError, match="identifier"):
        talk.start_put("x y", 1)

    assert not talk.is_open


def test_a_session_that_does_not_answer_a_request_is_killed_later_than_code(clock):
    talk = talk_of(clock, Limits(timeout_s=0.01, grace_s=0.5))
    talk.start_get("x")
    left_s = talk.deadline_s - clock.now_s

    clock.now_s = talk.deadline_s
    talk.on_deadline()
    with pytest.raises(TerminationError) as caught:
        talk.on_deadline()

    assert left_s == 2.0
    with pytest.raises(SessionEndedError, match=r"get\('x'\).* did not answer within 2.5 s"):
        talk.end(caught.value.termination)
