"""A session's runner in a process of its own, without walls, and the host's end of its socket.

Run as a script it is that process: its socket's number and its `SpawnRequest` are its arguments.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from envweave.sandbox.protocol.decoding import read_from_session
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
)

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
    command = [sys.executable, "-I", "-B", __file__]
    command += [str(theirs.fileno()), msgspec.json.encode(request).decode()]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env={}, cwd=work)
    theirs.close()
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


def be_session(descriptor: int, request: SpawnRequest) -> None:
    os.dup2(descriptor, 3, inheritable=False)
    if descriptor != 3:
        os.close(descriptor)
    for stream in (1, 2):
        memory = os.memfd_create("output", 0)
        os.dup2(memory, stream)
        os.close(memory)

    from envweave.sandbox.inside.runner import SessionRunner

    runner = SessionRunner(request)
    runner.start(request)
    runner.send(Ready())
    runner.serve()


if __name__ == "__main__":
    be_session(int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=SpawnRequest))
