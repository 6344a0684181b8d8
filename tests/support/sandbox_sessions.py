"""Sandbox sessions without walls: child processes, scripted ends, a protocol with a test clock.

`running` starts a session's runner and plays its host message by message; `ProcessBody` and
`PuppetBody` stand for the process below a `Session`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

import envweave
from envweave.sandbox import Limits
from envweave.sandbox.processes.process import ExitReason
from envweave.sandbox.protocol.decoding import read_from_host, read_from_session
from envweave.sandbox.protocol.encoding import encode, pack
from envweave.sandbox.protocol.framing import Frames
from envweave.sandbox.protocol.messages import (
    Begin,
    Called,
    FromSession,
    Get,
    Put,
    Ready,
    Replied,
    Run,
    RunFinished,
    SpawnRequest,
    ToolAnswer,
    ToolSignature,
    ToSession,
)
from envweave.sandbox.protocol.session_protocol import SessionProtocol
from envweave.sandbox.tools import SandboxTools

_BOOT = """
import os, sys
sys.path[:0] = sys.argv[2].split(os.pathsep)
descriptor = int(sys.argv[1])
os.dup2(descriptor, 3, inheritable=False)
if descriptor != 3:
    os.close(descriptor)
for stream in (1, 2):
    memory = os.memfd_create("output", 0)
    os.dup2(memory, stream)
    os.close(memory)
import msgspec
from envweave.sandbox.protocol.messages import SpawnRequest, Ready
from envweave.sandbox.inside.runner import SessionRunner
request = msgspec.msgpack.decode(bytes.fromhex(sys.argv[3]), type=SpawnRequest)
runner = SessionRunner(request)
runner.start(request)
runner.send(Ready())
runner.serve()
"""


def _start_runner(request: SpawnRequest, channel: socket.socket) -> subprocess.Popen[bytes]:
    """Start a runner in its working directory, and pass it its end of the socket."""
    paths = [str(Path(envweave.__file__).parents[1]), str(Path(msgspec.__file__).parents[1])]
    command = [sys.executable, "-I", "-B", "-c", _BOOT, str(channel.fileno())]
    command += [os.pathsep.join(paths), msgspec.msgpack.encode(request).hex()]
    with channel:
        return subprocess.Popen(
            command,
            pass_fds=[channel.fileno()],
            stdin=subprocess.DEVNULL,
            cwd=request.work,
            env={},
        )


class ProcessBody:
    """Runs a session in a child process, with no walls around it."""

    is_stopped = False

    def watch(self, calls, in_use) -> None:
        pass

    def wake(self) -> None:
        pass

    def __init__(self, limits: Limits, tools: SandboxTools, seed: int | None = None) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.beyond: str | None = None
        self.socket, theirs = socket.socketpair()
        request = SpawnRequest(
            seed=seed,
            output_bytes=limits.output_bytes,
            message_bytes=limits.message_bytes,
            work=self.folder.name,
            user=None,
        )
        self.process = _start_runner(request, theirs)
        frames = Frames(1 << 16)
        while (frame := frames.next()) is None:
            data = self.socket.recv(5)
            assert data, "the runner did not start"
            frames.feed(data)
        assert isinstance(read_from_session(frame), Ready)
        self.socket.sendall(encode(Begin(seed, tools.signatures())))

    def interrupt(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGRTMAX)

    def kill(self) -> None:
        self.process.kill()

    def exit_reason(self) -> ExitReason:
        try:
            code = self.process.wait(1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return ExitReason("lost")
        return ExitReason("exit", code) if code >= 0 else ExitReason("signal", -code)

    def excess(self) -> str | None:
        return self.beyond

    def branch(self, seed, deadline, **options):
        raise NotImplementedError

    def release(self) -> None:
        self.process.kill()
        self.process.wait()
        self.socket.close()
        self.folder.cleanup()


class Puppet:
    """A session's end of the socket, in the hands of a test."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self._frames = Frames(1 << 30)
        self.interrupted = threading.Event()
        self.killed = threading.Event()

    def receive(self) -> ToSession:
        """Return the next message of the host; raise `EOFError` when it has hung up."""
        while (frame := self._frames.next()) is None:
            try:
                data = self.line.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                raise EOFError
            self._frames.feed(data)
        return read_from_host(frame)

    def say(self, *messages: msgspec.Struct) -> None:
        self.shout(b"".join(encode(message) for message in messages))

    def shout(self, data: bytes) -> None:
        """Send bytes; raise `EOFError` when the host has hung up."""
        try:
            self.line.sendall(data)
        except OSError:
            raise EOFError from None

    def frame(self, payload: bytes) -> None:
        self.shout(len(payload).to_bytes(4, "little") + payload)


class PuppetBody:
    """A session that plays what a test tells it to, in a thread. It ends when the host hangs up."""

    is_stopped = False

    def watch(self, calls, in_use) -> None:
        pass

    def wake(self) -> None:
        pass

    def __init__(self, play: Callable[[Puppet], None], *, death: ExitReason | None = None) -> None:
        self.socket, self._theirs = socket.socketpair()
        self.puppet = Puppet(self._theirs)
        self.kills = 0
        self.releases = 0
        self.failure: BaseException | None = None
        self.beyond: str | None = None
        self.next_body: PuppetBody | Exception | None = None
        self._death = death or ExitReason("lost")
        self._thread = threading.Thread(target=self._run, args=(play,))
        self._thread.start()

    def _run(self, play: Callable[[Puppet], None]) -> None:
        try:
            play(self.puppet)
        except EOFError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by `release`
            self.failure = error
        finally:
            self._theirs.close()

    def interrupt(self) -> None:
        self.puppet.interrupted.set()

    def kill(self) -> None:
        self.kills += 1
        self.puppet.killed.set()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def exit_reason(self) -> ExitReason:
        return self._death

    def excess(self) -> str | None:
        return self.beyond

    def branch(self, seed, deadline, **options):
        if isinstance(self.next_body, Exception):
            raise self.next_body
        return self.next_body

    def release(self) -> None:
        self.releases += 1
        self.kill()
        self.socket.close()
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure


LIMITS = Limits(timeout_s=1, grace_s=0.5, tool_calls=3, output_bytes=256, message_bytes=1 << 16)


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def double(value: int) -> int:
    return 2 * value


TOOLS = SandboxTools({"double": double, "odd": object})


def make_protocol(clock: Clock, limits: Limits = LIMITS, **options: Any) -> SessionProtocol:
    return SessionProtocol(limits, TOOLS, clock=clock, **options)


def decoded(frame: bytes) -> ToSession:
    """Return the message in a frame of the host."""
    assert int.from_bytes(frame[:4], "little") == len(frame) - 4
    return read_from_host(frame[4:])


def finished(number: int, **changes: Any) -> RunFinished:
    fields = {"stdout": "", "stderr": "", "value": None, "plain": True, "shown": None}
    fields |= {"failure": None, "cut": False, "interrupted": False}
    return RunFinished(number, **(fields | changes))


def start(protocol: SessionProtocol, code: str = "1", timeout_s: float | None = None) -> int:
    """Start a run; return its number."""
    return decoded(protocol.start_run(code, timeout_s)).id


PRELUDE = """
import array, ctypes, os, select, socket, struct, threading, time
import envweave.sandbox.inside.branch as branching
from envweave.sandbox.protocol.messages import Failure, Ready, Replied
from envweave.sandbox.walls import kernel
import msgspec
usual = branching.BranchServer.__call__
become_session = branching.BranchServer._become_session

def frame(message):
    data = msgspec.msgpack.encode(message)
    return struct.pack("<I", len(data)) + data

def descriptor():
    line = socket.socket(fileno=os.dup(3))
    _, ancillary, _, _ = line.recvmsg(1, socket.CMSG_SPACE(4))
    line.close()
    return array.array("i", ancillary[0][2][:4])[0]

def begin(self, message):
    self._runner.send(Replied(message.id, None, None))
    return descriptor()

def wait():
    time.sleep(60)
"""


def family(pid: int) -> set[int]:
    """Return the processes, except zombies, that have the process ids of this one."""
    ours = _namespace(Path(f"/proc/{pid}"))
    processes = [one for one in Path("/proc").iterdir() if one.name.isdigit()]
    return {int(one.name) for one in processes if ours and _namespace(one) == ours}


def _namespace(process: Path) -> int:
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        return 0 if state in "ZX" else (process / "ns/pid").stat().st_ino
    except OSError:
        return 0


def soon(holds: Callable[[], bool]) -> bool:
    """Whether something becomes true soon: a killed process takes a moment to disappear."""
    ends_s = time.monotonic() + 5.0
    while not holds():
        if time.monotonic() > ends_s:
            return False
        time.sleep(0.005)
    return True


LIMIT_S = 20.0


class Child:
    """Speaks to a runner as a host would, and fails when it takes too long."""

    def __init__(self, channel: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.channel = channel
        self.frames = Frames(1 << 26)
        self._id = 1 << 40
        channel.settimeout(LIMIT_S)

    def send(self, message: msgspec.Struct) -> None:
        self.channel.sendall(encode(message))

    def receive(self) -> FromSession:
        while (frame := self.frames.next()) is None:
            data = self.channel.recv(1 << 16)
            if not data:
                raise EOFError(f"the runner ended with status {self.process.wait(LIMIT_S)}")
            self.frames.feed(data)
        return read_from_session(frame)

    def begin(self, code: str) -> int:
        self._id += 1
        self.send(Run(self._id, code))
        return self._id

    def run(self, code: str, **tools: Callable[..., Any]) -> RunFinished:
        """Run a cell, answer its calls of `tools`, and return its result."""
        number = self.begin(code)
        while not isinstance(message := self.receive(), RunFinished):
            assert isinstance(message, Called)
            self.send(answer(message, tools))
        assert message.id == number
        return message

    def value(self, code: str) -> Any:
        finished = self.run(code)
        assert finished.failure is None, finished.failure.traceback
        return finished.value

    def interrupt(self, code: str) -> RunFinished:
        """Run a cell, and interrupt it as soon as it calls a tool, whose name matters not."""
        self.begin(code)
        called = self.receive()
        assert isinstance(called, Called)
        self.send(ToolAnswer(called.call, True, None))
        self.process.send_signal(signal.SIGRTMAX)
        message = self.receive()
        assert isinstance(message, RunFinished)
        return message

    def ask(self, make: Callable[..., msgspec.Struct], *args: Any) -> Replied:
        self._id += 1
        self.send(make(self._id, *args))
        reply = self.receive()
        assert isinstance(reply, Replied)
        assert reply.id == self._id
        return reply

    def get(self, name: str) -> Any:
        reply = self.ask(Get, name)
        assert reply.failure is None, reply.failure
        return reply.value

    def put(self, name: str, value: Any) -> None:
        assert self.ask(Put, name, pack(value)).failure is None


def answer(called: Called, tools: dict[str, Callable[..., Any]]) -> ToolAnswer:
    try:
        value = tools[called.name](*called.args, **called.kwargs)
    except Exception as error:  # noqa: BLE001 - a tool may raise anything
        return ToolAnswer(called.call, False, str(error))
    return ToolAnswer(called.call, True, pack(value))


@contextlib.contextmanager
def running(
    work: Path,
    *,
    seed: int | None = 7,
    tools: list[ToolSignature] | None = None,
    output_bytes: int = 10_000,
    message_bytes: int = 1 << 22,
) -> Iterator[Child]:
    """Yield a child that is ready; its end is checked to leave no process."""
    request = SpawnRequest(seed, output_bytes, message_bytes, work=str(work), user=None)
    ours, theirs = socket.socketpair()
    process = _start_runner(request, theirs)
    child = Child(ours, process)
    try:
        assert isinstance(child.receive(), Ready)
        if tools:
            child.send(Begin(seed, tools))
        yield child
    finally:
        ours.close()
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
