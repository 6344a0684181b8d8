"""Sessions that abuse the protocol: the host limits them all, and is not affected."""

import os
import threading
import time

import msgspec
import pytest
from sandbox_sessions import ExitReason, Puppet, PuppetBody, SandboxTools

from envweave.errors import SandboxError, SessionEndedError, SessionLostError
from envweave.sandbox import Limits, Session
from envweave.sandbox.protocol.encoding import encode
from envweave.sandbox.protocol.messages import Called, Get, Replied, Run, RunFinished

LIMITS = Limits(timeout_s=0.1, grace_s=0.05, message_bytes=1 << 16, tool_calls=5)
PATIENT = Limits(timeout_s=30, grace_s=10, message_bytes=1 << 16, tool_calls=5)


def finished(number: int, stdout: str = "") -> RunFinished:
    return RunFinished(number, stdout, "", None, True, None, None, False, False)


def run(play, limits: Limits = LIMITS, tools: dict | None = None, **options):
    """Return the result of a run in a session that plays this, and its handle."""
    body = PuppetBody(play, **options)
    with Session(body, limits, SandboxTools(tools)) as session:
        return session.run("1"), body


def flood_forged(puppet: Puppet) -> None:
    number = puppet.receive().id
    frames = b"".join(encode(finished(number ^ bit, "forged")) for bit in range(1, 200))
    while True:
        puppet.shout(frames)


def flood_tools(puppet: Puppet) -> None:
    puppet.receive()
    frames = b"".join(encode(Called(call, "none", [], {})) for call in range(200))
    while True:
        puppet.shout(frames)


def trickle(puppet: Puppet) -> None:
    number = puppet.receive().id
    frame = encode(finished(number, "x" * 60_000))
    while True:
        for byte in frame[:-1]:
            puppet.shout(bytes([byte]))
            if puppet.killed.wait(0.001):
                return


def say_nothing(puppet: Puppet) -> None:
    puppet.killed.wait(30)


@pytest.mark.parametrize("play", [flood_forged, flood_tools, trickle, say_nothing])
def test_a_session_that_never_finishes_is_killed_in_time(play):
    result, body = run(play)

    assert (result.exception_type, result.session_ended) == ("TimeLimit", True)
    assert result.limits_hit[0] == "time"
    assert result.stdout == ""
    assert body.puppet.interrupted.is_set()
    assert body.kills


def test_a_session_that_calls_tools_forever_is_killed_in_time():
    def play(puppet):
        puppet.receive()
        while True:
            puppet.say(Called(1, "tick", [], {}))
            puppet.receive()

    result, _ = run(play, tools={"tick": lambda: None})

    assert result.limits_hit == ("time", "tool_calls")
    assert len(result.tool_calls) == LIMITS.tool_calls


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff\xff\xff\xff",
        (1 << 20).to_bytes(4, "little"),
        b"\x00\x00\x00\x00",
        (60_000).to_bytes(4, "little") + b"\x91" * 60_000,
        (60_000).to_bytes(4, "little") + b"\x81\xa0" * 30_000,
        b"\x05\x00\x00\x00\xdf\xff\xff\xff\xff",
        b"\x05\x00\x00\x00\xc6\xff\xff\xff\xff",
        os.urandom(1 << 16),
    ],
    ids=["length", "too long", "empty", "deep", "deep maps", "map", "binary", "noise"],
)
def test_a_session_that_sends_an_unreadable_message_is_killed_at_once(payload):
    def play(puppet):
        puppet.receive()
        puppet.shout(payload)
        puppet.killed.wait(30)

    result, body = run(play, PATIENT)

    assert (result.exception_type, result.session_ended) == ("ProtocolViolation", True)
    assert body.kills


def test_a_reply_queued_before_its_call_is_ignored():
    def play(puppet):
        first = puppet.receive()
        puppet.say(finished(first.id, "first"), finished(first.id, "queued"))
        puppet.say(finished(first.id + 1, "guessed"), Replied(first.id, None, "queued"))
        second = puppet.receive()
        puppet.say(finished(second.id, "second"))

    body = PuppetBody(play)
    with Session(body, PATIENT, SandboxTools()) as session:
        results = [session.run("1").stdout, session.run("2").stdout]

    assert results == ["first", "second"]


def test_a_run_cannot_be_answered_by_a_reply_nor_a_request_by_a_result():
    def play(puppet):
        run = puppet.receive()
        puppet.say(Replied(run.id, None, None), finished(run.id, "true"))
        get = puppet.receive()
        assert (type(run), type(get)) == (Run, Get)
        puppet.say(finished(get.id, "forged"), Replied(get.id, None, 5))

    body = PuppetBody(play)
    with Session(body, PATIENT, SandboxTools()) as session:
        assert session.run("1").stdout == "true"
        assert session.get("x") == 5


def test_tool_calls_between_runs_are_refused_at_the_next_call():
    answers = []

    def play(puppet):
        puppet.say(finished(puppet.receive().id), Called(7, "tick", [], {}))
        get = puppet.receive()
        answers.append(puppet.receive())
        puppet.say(Replied(get.id, None, 1))

    called = []
    body = PuppetBody(play)
    with Session(body, PATIENT, SandboxTools({"tick": lambda: called.append(1)})) as session:
        session.run("1")
        session.get("x")

    assert not called
    assert (answers[0].call, answers[0].ok) == (7, False)


def test_a_session_that_does_not_read_is_killed_in_time():
    body = PuppetBody(say_nothing)
    limits = Limits(timeout_s=0.1, grace_s=0.05)

    with Session(body, limits, SandboxTools()) as session:
        result = session.run("#" * (8 << 20))

        assert (result.exception_type, result.session_ended) == ("TimeLimit", True)
        with pytest.raises(SessionEndedError):
            session.run("1")


def test_a_session_that_calls_tools_and_does_not_read_the_answers_is_killed_in_time():
    def play(puppet):
        puppet.receive()
        while True:
            puppet.shout(b"".join(encode(Called(call, "big", [], {})) for call in range(4)))

    limits = Limits(timeout_s=0.1, grace_s=0.05, tool_calls=100_000)
    result, _ = run(play, limits, {"big": lambda: b"0" * (1 << 20)})

    assert result.limits_hit == ("time",)


@pytest.mark.parametrize(
    ("death", "kind", "limits_hit"),
    [
        (ExitReason("exit", 0), "SessionEnded", ()),
        (ExitReason("signal", 9), "SessionEnded", ()),
        (ExitReason("signal", 24), "SessionEnded", ("time",)),
        (ExitReason("signal", 31), "SessionEnded", ()),
        (ExitReason("signal", 200), "SessionEnded", ()),
        (ExitReason("memory"), "MemoryLimit", ("memory",)),
    ],
)
def test_the_termination_reports_how_the_process_died(death, kind, limits_hit):
    result, _ = run(lambda puppet: puppet.receive(), PATIENT, death=death)

    assert (result.exception_type, result.limits_hit) == (kind, limits_hit)
    assert str(death) in result.exception_message


def test_a_lost_session_raises_now_and_later():
    body = PuppetBody(lambda puppet: puppet.receive(), death=ExitReason("lost"))

    with Session(body, PATIENT, SandboxTools()) as session:
        with pytest.raises(SessionLostError):
            session.run("1")
        with pytest.raises(SessionLostError):
            session.run("1")


def test_a_partial_answer_is_ignored_when_the_session_ends():
    def play(puppet):
        frame = encode(finished(puppet.receive().id, "x" * 1000))
        puppet.shout(frame[:-1])

    result, _ = run(play, PATIENT, death=ExitReason("exit", 1))

    assert (result.exception_type, result.stdout) == ("SessionEnded", "")


def test_failure_texts_are_truncated_in_errors():
    def play(puppet):
        failure = msgspec.msgpack.encode(
            [3, puppet.receive().id, ["Odd" * 9000, "x" * 30_000, ""], 0]
        )
        puppet.frame(failure)

    body = PuppetBody(play)
    with (
        Session(body, PATIENT, SandboxTools()) as session,
        pytest.raises(SandboxError, match=r"get\('x'\): Odd") as caught,
    ):
        session.get("x")

    assert len(str(caught.value)) < 3000


def test_closing_ends_a_run_of_a_stopped_process():
    """A closed session with live branches is only stopped, and its socket stays open."""

    class StoppedBody(PuppetBody):
        def kill(self) -> None:
            if self.releases:
                super().kill()

    body = StoppedBody(lambda puppet: (puppet.receive(), received.set(), puppet.killed.wait(30)))
    received = threading.Event()
    session = Session(body, PATIENT, SandboxTools())
    closing = threading.Thread(target=lambda: (received.wait(30), session.close()))
    closing.start()

    with pytest.raises(SessionLostError, match="closed while a call"):
        session.run("1")

    closing.join(30)
    assert body.releases == 1


def test_a_flood_between_runs_only_uses_the_time_of_the_next_run():
    def play(puppet):
        first = puppet.receive()
        stale = b"".join(encode(finished(first.id, "stale")) for _ in range(2000))
        puppet.say(finished(first.id, "first"))
        puppet.shout(stale)
        second = puppet.receive()
        puppet.shout(stale)
        puppet.say(finished(second.id, "second"))

    body = PuppetBody(play)
    with Session(body, PATIENT, SandboxTools()) as session:
        started = time.monotonic()
        assert session.run("1").stdout == "first"
        assert session.run("2").stdout == "second"
        assert time.monotonic() - started < PATIENT.timeout_s
