"""The host's end of the channel to a container, whose data is not trusted."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from envweave.codeact.executors.docker.messages import (
    FRAME_BYTES,
    Data,
    InspectRequest,
    Interrupt,
    Kill,
    LimitExceeded,
    RelayInfo,
    SessionEnded,
    ToContainer,
)
from envweave.codeact.executors.docker.mux import ContainerHandle, StdioMux, Streams
from envweave.errors import BranchError, SessionLostError
from envweave.sandbox import AsyncSession, Limits
from envweave.sandbox.processes.process import ExitReason
from envweave.sandbox.protocol.decoding import read_from_host
from envweave.sandbox.protocol.encoding import encode
from envweave.sandbox.protocol.framing import Frames
from envweave.sandbox.protocol.messages import Called, Run, RunFinished
from envweave.sandbox.tools import SandboxTools

LONG_S = 60.0
LIMITS = Limits(timeout_s=LONG_S)
GONE = ExitReason("lost", why="its container was taken away")


class Container:
    """The container's end of a channel, driven by a test; it uses the frames of the engine."""

    def __init__(self, death: ExitReason = GONE, **options: Any) -> None:
        theirs, self.end = socket.socketpair()
        self.end.settimeout(LONG_S)
        self.released = threading.Event()
        self.mux = StdioMux(theirs, lambda: death, self.released.set, **options)
        self.body = ContainerHandle(self.mux.send)
        self.mux.adopt(self.body)
        self.session = AsyncSession(self.body, LIMITS, SandboxTools({"add": lambda a, b: a + b}))
        self._frames = Frames(1 << 24)

    def receive(self) -> ToContainer:
        while (frame := self._frames.next()) is None:
            data = self.end.recv(1 << 16)
            if not data:
                raise EOFError
            self._frames.feed(data)
        return msgspec.msgpack.decode(frame, type=ToContainer)

    def hear_a(self, kind: type) -> Any:
        while not isinstance(word := self.receive(), kind):
            pass
        return word

    def hear_run(self) -> Run:
        """Return the code that the host has run."""
        frames = Frames(1 << 24)
        while (frame := frames.next()) is None:
            frames.feed(self.hear_a(Data).data)
        word = read_from_host(frame)
        assert isinstance(word, Run)
        return word

    def say(self, *words: msgspec.Struct) -> None:
        self.print(b"".join(encode(word) for word in words))

    def say_as_session(self, *words: msgspec.Struct) -> None:
        self.say(*(Data(self.body.number, encode(word)) for word in words))

    def print(self, data: bytes, stream: int = 1) -> None:
        self.end.sendall(bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data)

    def finish(self, run: Run, value: Any = None) -> None:
        self.say_as_session(finished(run.id, value))


def finished(number: int, value: Any) -> RunFinished:
    return RunFinished(number, "", "", value, True, None, None, False, False)


@contextlib.contextmanager
def container(**options: Any) -> Iterator[Container]:
    one = Container(**options)
    try:
        yield one
    finally:
        one.mux.close()
        asyncio.run(one.session.close())
        one.end.close()
        assert not [each for each in threading.enumerate() if each.name == "envweave-container"]


def played(one: Container, play: Callable[[], Any], code: str = "1") -> Any:
    """Run code while the container plays its part in another thread."""
    failures: list[BaseException] = []

    def part() -> None:
        try:
            play()
        except (EOFError, OSError):
            pass
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    thread = threading.Thread(target=part)
    thread.start()
    try:
        return asyncio.run(one.session.run(code))
    finally:
        thread.join(LONG_S)
        assert not failures, failures[0]


def test_code_runs_over_the_channel_and_its_tools_on_the_host() -> None:
    with container() as one:

        def play() -> None:
            run = one.hear_run()
            one.say_as_session(Called(1, "add", [20, 22], {}))
            one.hear_a(Data)
            one.finish(run, run.code)

        result = played(one, play, code="add(20, 22)")

    assert result.return_value == "add(20, 22)"
    assert [(call.name, call.value) for call in result.tool_calls] == [("add", 42)]


@pytest.mark.parametrize(
    "hostile",
    [
        b"\xff\xff\xff\xff" + b"x" * 100,
        (FRAME_BYTES + 1).to_bytes(4, "little"),
        b"\x03\x00\x00\x00abc",
        encode(Kill(7)),
        encode(RelayInfo("0.1.0", 1)),
        (1000).to_bytes(4, "little") + b"\x91" * 1000,
    ],
    ids=["a very long frame", "too long a frame", "noise", "a host's word", "an answer", "nesting"],
)
def test_unreadable_data_ends_the_session_and_the_container(hostile: bytes) -> None:
    with container() as one:
        result = played(one, lambda: (one.hear_run(), one.print(hostile)))
        was_let_go = one.released.wait(LONG_S)
        with pytest.raises(SessionLostError):
            one.mux.request(None, LONG_S)

    assert result.session_ended
    assert result.exception_type == "SessionEnded"
    assert "sent invalid data to the host" in result.exception_message
    assert was_let_go


def test_a_reply_to_another_step_or_of_another_session_is_dropped() -> None:
    with container() as one:

        def play() -> None:
            run = one.hear_run()
            one.say_as_session(finished(run.id ^ 1, "forged"), finished(0, "forged"))
            one.say(
                Data(one.body.number ^ 1, encode(finished(run.id, "forged"))),
                SessionEnded(one.body.number ^ 1, "exit", 0),
                LimitExceeded(one.body.number ^ 1, "memory"),
            )
            one.finish(run, "true")

        result = played(one, play)

    assert result.return_value == "true"


def test_a_broken_channel_loses_the_session_with_the_reason() -> None:
    with container() as one, pytest.raises(SessionLostError, match="container was taken away"):
        played(one, lambda: (one.hear_run(), one.end.shutdown(socket.SHUT_RDWR)))


def test_a_container_out_of_memory_is_blamed_on_its_code() -> None:
    with container(death=ExitReason("memory", why="its container needed more")) as one:
        result = played(one, lambda: (one.hear_run(), one.end.shutdown(socket.SHUT_RDWR)))

    assert (result.limits_hit, result.session_ended) == (("memory",), True)


def test_the_end_of_a_session_is_reported_after_all_its_messages() -> None:
    with container() as one:

        def play() -> None:
            run = one.hear_run()
            one.say_as_session(finished(run.id, "last words"))
            one.say(SessionEnded(one.body.number, "exit", 3))

        first = played(one, play)
        later = asyncio.run(_run(one.session))

    assert first.return_value == "last words"
    assert "exited with status 3" in later.exception_message


async def _run(session: AsyncSession) -> Any:
    return await session.run("1")


def test_a_limit_exceeded_in_the_container_ends_the_session() -> None:
    with container() as one:

        def play() -> None:
            one.hear_a(InspectRequest)
            one.say(LimitExceeded(one.body.number, "disk"))
            one.hear_a(Kill)

        result = played(one, play)

    assert (result.exception_type, result.limits_hit) == ("DiskLimit", ("disk",))


def test_a_session_that_survives_a_kill_ends_its_container() -> None:
    with container(kill_s=0.2) as one:
        asyncio.run(one.session.close())

        assert isinstance(one.hear_a(Kill), Kill)
        assert one.released.wait(LONG_S)


def test_a_killed_session_does_not_end_its_container() -> None:
    with container(kill_s=LONG_S) as one:
        asyncio.run(one.session.close())
        one.hear_a(Kill)
        one.say(SessionEnded(one.body.number, "unknown", 0))
        after = ContainerHandle(one.mux.send)
        one.mux.adopt(after)
        after.interrupt()

        assert one.hear_a(Interrupt).number == after.number
        assert not one.released.is_set()
        after.release()


def test_code_that_floods_the_host_between_steps_waits() -> None:
    with container() as one:
        one.end.setblocking(False)
        sent = 0
        flood = encode(Data(one.body.number, b"x" * (60 << 10)))
        head = bytes([1, 0, 0, 0]) + len(flood).to_bytes(4, "big")

        blocked = 0
        while blocked < 50 and sent < 64 << 20:
            try:
                sent += one.end.send(head + flood)
                blocked = 0
            except BlockingIOError:
                blocked += 1
                threading.Event().wait(0.01)

    assert sent < 16 << 20


def test_an_unresponsive_relay_is_not_waited_for() -> None:
    with container() as one, pytest.raises(SessionLostError, match="did not answer within"):
        one.mux.request(None, 0.05)


def test_a_session_in_a_container_has_no_branches() -> None:
    with container() as one, pytest.raises(BranchError, match="cannot be branched"):
        asyncio.run(one.session.branch())


def test_stdout_and_stderr_are_separated_however_frames_are_split() -> None:
    parts = [(1, b"one"), (2, b"oh"), (1, b""), (1, b"two" * 1000), (2, b"no"), (3, b"?")]
    whole = b"".join(
        bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data for stream, data in parts
    )
    for seed in range(50):
        cuts = random.Random(seed)
        streams, at, output = Streams(), 0, b""
        while at < len(whole):
            size = cuts.choice([1, 2, 7, 9, 500])
            output += streams.take_stdout(whole[at : at + size])
            at += size

        assert output == b"one" + b"two" * 1000
        assert streams.errors == b"ohno"


def test_the_relay_in_the_container_does_not_import_asyncio() -> None:
    code = "import sys, envweave.codeact.executors.docker.relay; sys.exit('asyncio' in sys.modules)"

    subprocess.run([sys.executable, "-c", code], check=True)
