"""The program in a container of `DockerExecutor`: it starts sessions, and relays their data.

It speaks with its host by standard input and output, in the words of `docker_words`. What a
session and its host say to each other it does not read: it runs no tool, keeps no time and counts
nothing, so code that takes it over has gained only the container. Its end of input is its end.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast, final

import msgspec

from envweave.codeact.executors.docker.messages import (
    DATA_BYTES,
    PROTOCOL,
    TEXT_CHARACTERS,
    Data,
    Failed,
    FromContainer,
    InspectRequest,
    Interrupt,
    Kill,
    LimitExceeded,
    Make,
    Open,
    Opened,
    RelayInfo,
    SessionEnded,
    SessionMade,
    ToContainer,
)
from envweave.errors import IsolationError, OptionError, SandboxError
from envweave.sandbox.config import SandboxConfig, WantedIsolation, read_options
from envweave.sandbox.limits import Limits
from envweave.sandbox.processes.factory import SessionFactory
from envweave.sandbox.processes.process import SessionProcess
from envweave.sandbox.processes.template import WallSetupError
from envweave.sandbox.protocol.framing import Frames
from envweave.sandbox.protocol.plain_values import encode
from envweave.sandbox.walls import kernel
from envweave.sandbox.walls.mounts import WORK

_HOST_FRAME_BYTES = (1 << 32) - 1  # the host is trusted
_SET_DUMPABLE = 4
_read: msgspec.msgpack.Decoder[ToContainer] = msgspec.msgpack.Decoder(ToContainer)


@final
class Relay:
    """Relays messages and bytes between the host and one session at a time.

    Nothing here waits for one of them while the other may have something to say, but while a
    session is made.

    Args:
        source: Where the host's words come from.
        sink: Where they go to.
    """

    def __init__(self, source: int, sink: int) -> None:
        os.set_blocking(source, False)
        os.set_blocking(sink, False)
        self._source = source
        self._sink = sink
        self._frames = Frames(_HOST_FRAME_BYTES)
        self._out: deque[memoryview] = deque()
        self._in: deque[memoryview] = deque()  # what the session has yet to take
        self._factory: SessionFactory | None = None
        self._body: SessionProcess | None = None
        self._number = -1
        self._oom = _Expendable()
        self._orphans = _Orphans()

    def serve(self) -> None:
        """Serve until the host disconnects; then end everything."""
        self._send(RelayInfo(version("envweave"), PROTOCOL))
        try:
            while self._turn():
                pass
        finally:
            self._end_session()
            if self._factory is not None:
                self._factory.close()

    def _turn(self) -> bool:
        """Wait for something to do, and do it; return whether there will be more."""
        waiting = select.poll()
        waiting.register(self._source, select.POLLIN)
        waiting.register(self._orphans.wakes, select.POLLIN)
        if self._out:
            waiting.register(self._sink, select.POLLOUT)
        if self._body is not None:
            # What the host has not taken yet is not added to: a session that floods it waits.
            wanted = select.POLLOUT if self._in else 0
            wanted |= 0 if self._out else select.POLLIN
            if wanted:
                waiting.register(self._body.socket, wanted)
        ready = {descriptor for descriptor, _ in waiting.poll()}
        if self._orphans.wakes in ready:
            self._orphans.reap(self._factory)
        if self._body is not None and self._body.socket.fileno() in ready:
            self._feed()
            self._hear_session()
        if self._source in ready and not self._hear_host():
            return False
        self._flush()
        return True

    # The host

    def _send(self, message: FromContainer) -> None:
        self._out.append(memoryview(encode(message)))

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._out:
                rest = self._out[0][os.write(self._sink, self._out[0]) :]
                if rest:
                    self._out[0] = rest
                else:
                    self._out.popleft()

    def _hear_host(self) -> bool:
        try:
            data = os.read(self._source, 1 << 18)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._frames.feed(data)
        while (frame := self._frames.next()) is not None:
            self._handle(_read.decode(frame))
        return True

    def _handle(self, message: ToContainer) -> None:
        if isinstance(message, Open | Make):
            try:
                with self._oom.children():
                    self._send(
                        self._opened(message) if isinstance(message, Open) else self._made(message)
                    )
            except (SandboxError, OptionError, WallSetupError, OSError) as error:
                self._send(_failed(error))
        elif isinstance(message, Kill):
            if message.number == self._number:
                self._end_session()
            self._send(SessionEnded(message.number, "unknown", 0))
        elif self._body is None or message.number != self._number:
            return  # it is gone, and the host knows
        elif isinstance(message, Data):
            self._in.append(memoryview(message.data))
            self._feed()
        elif isinstance(message, Interrupt):
            self._body.interrupt()
        elif isinstance(message, InspectRequest):
            limit = self._body.excess()
            if limit is not None:
                self._send(LimitExceeded(message.number, limit))

    # Sessions

    def _opened(self, message: Open) -> Opened:
        try:
            self._factory = SessionFactory(_options(message, message.isolation))
            reasons = list(self._factory.tier.reasons)
        except IsolationError as error:
            if message.isolation != "auto":
                raise
            # Only the container isolates the code here; the host learns that from the tier.
            reasons = [str(error)]
            self._factory = SessionFactory(_options(message, "none"))
        tier = self._factory.tier
        if tier.name == "none":
            _hide_memory()
        return Opened(tier.name, [one[:1000] for one in reasons[:4]])

    def _made(self, message: Make) -> SessionMade:
        self._end_session()
        if self._factory is None:
            raise SandboxError("There is no sandbox yet.")
        self._body = self._factory.make(message.seed, message.tools)
        self._number = message.number
        return SessionMade(message.number, self._body.work or WORK)

    def _feed(self) -> None:
        """Write the host's bytes to the session, as far as it takes them."""
        assert self._body is not None
        line = self._body.socket
        try:
            while self._in:
                sent = line.send(self._in[0], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                rest = self._in[0][sent:]
                if rest:
                    self._in[0] = rest
                else:
                    self._in.popleft()
        except BlockingIOError:
            return
        except OSError:
            self._in.clear()  # it is gone; its end is read

    def _hear_session(self) -> None:
        if self._out:
            return
        assert self._body is not None
        try:
            data = self._body.socket.recv(DATA_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._send(Data(self._number, data))
            return
        death = self._body.exit_reason()
        self._end_session()
        kind = "unknown" if death.kind == "lost" else death.kind
        self._send(SessionEnded(self._number, kind, death.code))

    def _end_session(self) -> None:
        body, self._body = self._body, None
        self._in.clear()
        if body is not None:
            body.release()


class _Orphans:
    """Reaps orphaned processes: PID 1 of a container inherits them.

    As process 1 it cannot be signalled from inside, even by code that breaks out.

    Attributes:
        wakes: Can be read when there may be some.
    """

    def __init__(self) -> None:
        self.wakes, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def reap(self, factory: SessionFactory | None) -> None:
        """Reap all but the templates, which the factory waits for."""
        os.read(self.wakes, 4096)
        own = [] if factory is None else factory.template_pids()
        with contextlib.suppress(ChildProcessError):
            while True:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is None or found.si_pid in own:
                    return
                os.waitpid(found.si_pid, 0)


class _Expendable:
    """Has the kernel end what is started here before this process, where memory runs out."""

    def __init__(self) -> None:
        self._score = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        self._own = os.read(self._score, 16).strip() or b"0"

    @contextlib.contextmanager
    def children(self) -> Iterator[None]:
        """Start processes that are to be ended first."""
        os.pwrite(self._score, b"1000", 0)
        try:
            yield
        finally:
            os.pwrite(self._score, self._own, 0)


def _options(message: Open, isolation: WantedIsolation) -> SandboxConfig:
    return read_options(
        limits=Limits(**cast("dict[str, Any]", message.limits)),
        preload=message.preload,
        packages=message.packages,
        private=message.private,
        visible=(),
        profile=message.profile,
        isolation=isolation,
        shards=1,
        warm=0,
        cgroups="auto",
        native=True,
    )


def _hide_memory() -> None:
    """Keep others of the same user from reading this process, and from using what it has open."""
    kernel.process_control(_SET_DUMPABLE, 0)


def _failed(error: Exception) -> Failed:
    text = (error.text if isinstance(error, WallSetupError) else str(error))[:TEXT_CHARACTERS]
    if isinstance(error, OptionError):
        return Failed("OptionError", text)
    if isinstance(error, IsolationError):
        return Failed("IsolationError", text)
    return Failed("SandboxError", text)


def main() -> None:
    """Serve the host at the other end of standard input and output.

    They are moved away first: what anybody prints, or reads, must not meet the host's words.
    """
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(Path(os.devnull), os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    Relay(source, sink).serve()


if __name__ == "__main__":
    main()
