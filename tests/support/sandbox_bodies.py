"""Bodies of sessions without walls: a plain child process, and an end that a test holds itself."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

import envweave
from envweave.sandbox.limits import Limits
from envweave.sandbox.processes.process import ExitReason
from envweave.sandbox.protocol.framing import Frames
from envweave.sandbox.protocol.messages import Begin, Ready, SpawnRequest, ToSession
from envweave.sandbox.protocol.plain_values import encode, read_from_host, read_from_session
from envweave.sandbox.tools import SandboxTools

_BOOT = """
import os, sys
sys.path[:0] = sys.argv[3].split(os.pathsep)
descriptor = int(sys.argv[1])
os.dup2(descriptor, 3)
if descriptor != 3:
    os.close(descriptor)
for stream in (1, 2):
    os.dup2(os.memfd_create("output"), stream)
os.chdir(sys.argv[2])
import msgspec
from envweave.sandbox.protocol.messages import SpawnRequest, Ready
from envweave.sandbox.inside.runner import SessionRunner
request = msgspec.msgpack.decode(bytes.fromhex(sys.argv[4]), type=SpawnRequest)
runner = SessionRunner(request)
runner.start(request)
runner.send(Ready())
runner.serve()
"""


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
        paths = [str(Path(envweave.__file__).parents[1]), str(Path(msgspec.__file__).parents[1])]
        command = [sys.executable, "-I", "-B", "-c", _BOOT, str(theirs.fileno())]
        command += [self.folder.name, os.pathsep.join(paths), msgspec.msgpack.encode(request).hex()]
        self.process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={}
        )
        theirs.close()
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

    def branch(self, seed, deadline):
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

    def hear(self) -> ToSession:
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

    def branch(self, seed, deadline):
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
