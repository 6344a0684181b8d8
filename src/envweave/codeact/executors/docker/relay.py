"""The program in a container of `DockerExecutor`: it starts sessions, and relays their data.

It exchanges the messages of `messages` with the host over stdin and stdout. It does not read the
data of a session: it runs no tools, measures no time and counts nothing, so code that takes it
over gains only the container. It exits when its stdin is closed.
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
from envweave.sandbox.execution import Limits
from envweave.sandbox.processes.factory import SessionFactory
from envweave.sandbox.processes.process import SessionProcess
from envweave.sandbox.processes.template import WallSetupError
from envweave.sandbox.protocol.encoding import encode
from envweave.sandbox.protocol.framing import Frames
from envweave.sandbox.walls import kernel
from envweave.sandbox.walls.mounts import WORK

_HOST_FRAME_BYTES = (1 << 32) - 1  # the host is trusted
_SET_DUMPABLE = 4
_read: msgspec.msgpack.Decoder[ToContainer] = msgspec.msgpack.Decoder(ToContainer)


@final
class Relay:
    """Relays messages and bytes between the host and one session at a time.

    It never blocks on one of them while the other may send, except while a session is made.

    Args:
        source: The descriptor of messages from the host.
        sink: The descriptor of messages to the host.
    """

    def __init__(self, source: int, sink: int) -> None:
        os.set_blocking(source, False)
        os.set_blocking(sink, False)
        self._source = source
        self._sink = sink
        self._frames = Frames(_HOST_FRAME_BYTES)
        self._out: deque[memoryview] = deque()
        self._in: deque[memoryview] = deque()  # to the session
        self._factory: SessionFactory | None = None
        self._session: SessionProcess | None = None
        self._number = -1
        self._oom = _OomScore()
        self._orphans = _Orphans()

    def serve(self) -> None:
        """Serve until the host disconnects; then end everything."""
        self._send(RelayInfo(version("envweave"), PROTOCOL))
        try:
            while self._run_once():
                pass
        finally:
            self._end_session()
            if self._factory is not None:
                self._factory.close()

    def _run_once(self) -> bool:
        """Wait for events and handle them; return false when the host has disconnected."""
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        poll.register(self._orphans.wakeup, select.POLLIN)
        if self._out:
            poll.register(self._sink, select.POLLOUT)
        if self._session is not None:
            # Backpressure: a session is not read while its data is still unsent to the host.
            events = select.POLLOUT if self._in else 0
            events |= 0 if self._out else select.POLLIN
            if events:
                poll.register(self._session.socket, events)
        ready = {descriptor for descriptor, _ in poll.poll()}
        if self._orphans.wakeup in ready:
            self._orphans.reap(self._factory)
        if self._session is not None and self._session.socket.fileno() in ready:
            self._feed()
            self._receive_from_session()
        if self._source in ready and not self._receive_from_host():
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

    def _receive_from_host(self) -> bool:
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
                        self._open(message) if isinstance(message, Open) else self._make(message)
                    )
            except (SandboxError, OptionError, WallSetupError, OSError) as error:
                self._send(_make_failed(error))
        elif isinstance(message, Kill):
            if message.number == self._number:
                self._end_session()
            self._send(SessionEnded(message.number, "unknown", 0))
        elif self._session is None or message.number != self._number:
            return  # it is gone, and the host knows
        elif isinstance(message, Data):
            self._in.append(memoryview(message.data))
            self._feed()
        elif isinstance(message, Interrupt):
            self._session.interrupt()
        elif isinstance(message, InspectRequest):
            limit = self._session.excess()
            if limit is not None:
                self._send(LimitExceeded(message.number, limit))

    # Sessions

    def _open(self, message: Open) -> Opened:
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

    def _make(self, message: Make) -> SessionMade:
        self._end_session()
        if self._factory is None:
            raise SandboxError("There is no sandbox yet.")
        self._session = self._factory.make(message.seed, message.tools)
        self._number = message.number
        return SessionMade(message.number, self._session.work or WORK)

    def _feed(self) -> None:
        """Write the host's bytes to the session, without blocking."""
        assert self._session is not None
        connection = self._session.socket
        try:
            while self._in:
                sent = connection.send(self._in[0], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                rest = self._in[0][sent:]
                if rest:
                    self._in[0] = rest
                else:
                    self._in.popleft()
        except BlockingIOError:
            return
        except OSError:
            self._in.clear()  # the session ended, which the next read reports

    def _receive_from_session(self) -> None:
        if self._out:
            return
        assert self._session is not None
        try:
            data = self._session.socket.recv(DATA_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._send(Data(self._number, data))
            return
        reason = self._session.exit_reason()
        self._end_session()
        kind = "unknown" if reason.kind == "lost" else reason.kind
        self._send(SessionEnded(self._number, kind, reason.code))

    def _end_session(self) -> None:
        session, self._session = self._session, None
        self._in.clear()
        if session is not None:
            session.release()


class _Orphans:
    """Reaps orphaned processes: PID 1 of a container inherits them.

    As PID 1 it cannot be signalled from inside, even by code that breaks out.

    Attributes:
        wakeup: Readable when there may be some.
    """

    def __init__(self) -> None:
        self.wakeup, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def reap(self, factory: SessionFactory | None) -> None:
        """Reap all but the templates, which the factory waits for."""
        os.read(self.wakeup, 4096)
        own = [] if factory is None else factory.template_pids()
        with contextlib.suppress(ChildProcessError):
            while True:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is None or found.si_pid in own:
                    return
                os.waitpid(found.si_pid, 0)


class _OomScore:
    """Makes the kernel kill child processes before this one when memory runs out."""

    def __init__(self) -> None:
        self._score = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        self._own = os.read(self._score, 16).strip() or b"0"

    @contextlib.contextmanager
    def children(self) -> Iterator[None]:
        """Let processes that are started within this block be killed first."""
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
    """Prevent other processes of this user from reading its memory and its open files."""
    kernel.process_control(_SET_DUMPABLE, 0)


def _make_failed(error: Exception) -> Failed:
    text = (error.text if isinstance(error, WallSetupError) else str(error))[:TEXT_CHARACTERS]
    if isinstance(error, OptionError):
        return Failed("OptionError", text)
    if isinstance(error, IsolationError):
        return Failed("IsolationError", text)
    return Failed("SandboxError", text)


def main() -> None:
    """Serve the host at the other end of standard input and output.

    They are replaced first: other code that prints or reads must not disturb the messages.
    """
    source, sink = os.dup(0), os.dup(1)
    null = os.open(Path(os.devnull), os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    Relay(source, sink).serve()


if __name__ == "__main__":
    main()
