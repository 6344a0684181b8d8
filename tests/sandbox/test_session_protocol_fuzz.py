"""Honest and forged messages in any order: each run has one result, and the host is unharmed."""

import gc
import os
import random
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sandbox_sessions import LIMITS, Clock, ExitReason, decoded, finished, make_protocol

from envweave.errors import SandboxError
from envweave.sandbox import ExecutionResult, Limits
from envweave.sandbox.protocol.broker import ToolInvocation
from envweave.sandbox.protocol.encoding import encode
from envweave.sandbox.protocol.messages import Called, Failure, Ready, Replied, Run, ToolAnswer
from envweave.sandbox.protocol.session_protocol import SessionReply
from envweave.sandbox.protocol.termination import TerminationError, of_exit

numbers = st.integers(0, (1 << 63) - 1)
atoms = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(max_size=5)
values = st.recursive(
    atoms | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
names = st.sampled_from(["double", "odd", "duoble", "", "__class__"]) | st.text(max_size=8)
calls = st.builds(
    Called,
    numbers,
    names,
    st.lists(atoms, max_size=3),
    st.dictionaries(st.text(max_size=5), atoms, max_size=2),
)
failures = st.none() | st.builds(
    Failure, st.text(max_size=9), st.text(max_size=9), st.text(max_size=9)
)


class Talking(RuleBasedStateMachine):
    """A host that follows the protocol, and a session that knows only what it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.protocol = make_protocol(self.clock)
        self.number = 0  # of the call under way, as the session received it
        self.is_run = False
        self.stale: list[int] = []
        self.results = self.runs = 0
        self.is_over = False

    @property
    def is_open(self) -> bool:
        return self.number > 0

    def hand_over(self, data: bytes) -> None:
        """Feed bytes as a driver does, and perform the returned moves."""
        try:
            move = self.protocol.receive(data)
            while move is not None:
                if isinstance(move, ExecutionResult):
                    assert self.is_open
                    assert self.is_run
                    self.finish()
                elif isinstance(move, SessionReply):
                    assert self.is_open
                    assert not self.is_run
                    self.finish()
                elif isinstance(move, ToolInvocation):
                    assert self.is_run
                    assert type(decoded(self.protocol.answer(move, move()))) is ToolAnswer
                else:
                    assert type(decoded(move)) is ToolAnswer
                move = self.protocol.next()
        except TerminationError as error:
            self.end(error.termination)

    def finish(self) -> None:
        self.results += 1
        self.stale.append(self.number)
        self.number = 0

    def end(self, ending) -> None:
        self.is_over = True
        is_run, self.is_run = self.is_open and self.is_run, False
        try:
            result = self.protocol.end(ending)
        except SandboxError:
            assert not is_run
            self.results += self.is_open
        else:
            assert is_run
            assert result.session_ended
            self.results += 1
        self.number = 0

    @precondition(lambda self: not self.is_open and not self.is_over)
    @rule(timeout_s=st.none() | st.floats(0.01, 10))
    def run_code(self, timeout_s) -> None:
        message = decoded(self.protocol.start_run("1", timeout_s))
        assert type(message) is Run
        assert message.id not in self.stale
        self.number, self.is_run = message.id, True
        self.runs += 1
        self.hand_over(b"")

    @precondition(lambda self: not self.is_open and not self.is_over)
    @rule(kind=st.integers(0, 4))
    def ask(self, kind) -> None:
        starts = [
            lambda: self.protocol.start_get("x"),
            lambda: self.protocol.start_put("x", 1),
            lambda: self.protocol.start_read("x"),
            lambda: self.protocol.start_write("x", b"1"),
            lambda: self.protocol.start_list("."),
        ]
        self.number, self.is_run = decoded(starts[kind]()).id, False
        self.runs += 1
        self.hand_over(b"")

    @precondition(lambda self: not self.is_over)
    @rule(value=values, failure=failures, cut=st.booleans(), interrupted=st.booleans())
    def answer_honestly(self, value, failure, cut, interrupted) -> None:
        if self.is_run:
            message = finished(
                self.number, value=value, failure=failure, cut=cut, interrupted=interrupted
            )
        else:
            message = Replied(self.number, failure, value)
        self.hand_over(encode(message))

    @precondition(lambda self: not self.is_over)
    @rule(call=calls)
    def call_a_tool(self, call) -> None:
        self.hand_over(encode(call))

    @precondition(lambda self: not self.is_over)
    @rule(guess=numbers, data=st.data())
    def forge(self, guess, data) -> None:
        number = data.draw(st.sampled_from([guess, self.number ^ 1, *self.stale[-3:]]))
        kind = data.draw(st.sampled_from([finished, lambda one: Replied(one, None, None)]))
        before = self.results
        if number != self.number:
            self.hand_over(encode(kind(number)))
            # After noise without a frame it is read as something else, which may end the session.
            assert self.is_over or self.results == before

    @precondition(lambda self: not self.is_over)
    @rule(data=st.binary(max_size=40), is_framed=st.booleans())
    def send_noise(self, data, is_framed) -> None:
        self.hand_over(len(data).to_bytes(4, "little") + data if is_framed else data)

    @precondition(lambda self: not self.is_over)
    @rule()
    def begin_anew(self) -> None:
        self.hand_over(encode(Ready()))

    @precondition(lambda self: self.is_open)
    @rule()
    def let_time_pass(self) -> None:
        self.clock.now_s = self.protocol.deadline_s
        try:
            self.protocol.on_deadline()
        except TerminationError as error:
            self.end(error.termination)

    @precondition(lambda self: self.is_open)
    @rule()
    def interrupt(self) -> None:
        self.protocol.request_interrupt()

    @precondition(lambda self: not self.is_over)
    @rule(
        death=st.sampled_from(
            [ExitReason("exit", 1), ExitReason("memory"), ExitReason("signal", 9)]
        )
    )
    def die(self, death) -> None:
        self.end(of_exit(death))

    @precondition(lambda self: self.is_over)
    @rule()
    def call_what_is_gone(self) -> None:
        with pytest.raises(SandboxError):
            self.protocol.start_run("1", None)
        with pytest.raises(SandboxError):
            self.protocol.start_get("x")

    @invariant()
    def every_call_has_one_outcome(self) -> None:
        assert self.results == self.runs - self.is_open
        assert self.protocol.is_open == self.is_open


Talking.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestTalking = pytest.mark.slow(Talking.TestCase)  # many sessions


def hostile_frames(seed: int):
    """Yield frames that get worse and worse: mutated, cut, spliced, deep, wide, or noise."""
    chance = random.Random(seed)
    nested: list = []
    for _ in range(40):
        nested = [nested]
    messages = [
        finished(5, stdout="x" * 50, value={"a": [1, 2.5, None]}),
        finished(1 << 62, failure=Failure("E", "m", "t"), cut=True),
        Called(3, "double", [1], {"value": 2}),
        Called(1 << 63, "none", [[1, 2], {"a": "b"}], {"k": [None]}),
        Replied(9, None, [1, "two", {"three": 3}]),
        Replied(9, Failure("NameError", "x", ""), None),
    ]
    extensions = [msgspec.msgpack.Ext(code, os.urandom(9)) for code in range(-3, 12)]
    seeds = [msgspec.msgpack.encode(message) for message in messages] * 8
    seeds += [msgspec.msgpack.encode([3, 9, None, each]) for each in [*extensions, nested]]
    while True:
        payload = bytearray(chance.choice(seeds))
        for _ in range(chance.randrange(4)):
            where = chance.randrange(len(payload) + 1)
            choice = chance.randrange(4)
            if choice == 0 and where < len(payload):
                payload[where] = chance.randrange(256)
            elif choice == 1:
                payload[where:where] = chance.randbytes(chance.randrange(1, 9))
            elif choice == 2:
                del payload[where : where + chance.randrange(1, 9)]
            else:
                payload[where:] = chance.choice(seeds)[where:]
        yield len(payload).to_bytes(4, "little") + payload


def fuzz(count: int, seed: int) -> int:
    """Feed hostile frames, with a new session each time one is killed; return how many were."""
    limits = Limits(message_bytes=1 << 16, tool_calls=100)
    frames = hostile_frames(seed)
    killed = 0
    protocol = make_protocol(Clock(), limits)
    decoded(protocol.start_run("1", None))
    for _ in range(count):
        try:
            move = protocol.receive(next(frames))
            while move is not None:
                if type(move) is ToolInvocation:
                    move = protocol.answer(move, None)
                assert type(move) is bytes, "a forged message was taken for an honest one"
                move = protocol.next()
        except TerminationError as error:
            violation = protocol.end(error.termination)
            assert violation.exception_type == "ProtocolViolation"
            killed += 1
            protocol = make_protocol(Clock(), limits)
            decoded(protocol.start_run("1", None))
    return killed


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow  # starts several sandboxes
def test_hostile_frames_raise_only_terminations_and_leave_no_state():
    fuzz(2000, seed=0)
    tracemalloc.start()
    fuzz(1000, seed=1)
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()

    killed = fuzz(20_000, seed=2)

    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert killed > 2000
    assert grown < 100_000


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_very_many_hostile_frames_raise_only_terminations_and_leave_no_state():
    """A fifth of a million; set ENVWEAVE_FUZZ_FRAMES for more."""
    frames = int(os.environ.get("ENVWEAVE_FUZZ_FRAMES", "200_000"))
    fuzz(50_000, seed=3)
    before = resident_bytes()

    killed = fuzz(frames, seed=4)

    assert killed > frames // 10
    assert resident_bytes() - before < 8 << 20


def test_a_flood_in_one_run_does_not_grow_the_memory_of_the_host():
    protocol = make_protocol(Clock(), LIMITS)
    number = decoded(protocol.start_run("1", None)).id
    flood = b"".join(
        encode(message)
        for message in (
            finished(number ^ 1, stdout="x" * 500),
            Called(1, "none", ["x" * 500], {}),
            Called(1, "double", [1], {}),
        )
    )

    def pour(times: int) -> None:
        for _ in range(times):
            move = protocol.receive(flood)
            while move is not None:
                move = (
                    protocol.answer(move, None) if type(move) is ToolInvocation else protocol.next()
                )

    pour(100)
    tracemalloc.start()
    pour(100)
    before, _ = tracemalloc.get_traced_memory()
    pour(5000)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    assert grown < 10_000
