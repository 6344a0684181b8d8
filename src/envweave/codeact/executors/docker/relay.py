"""The program in a container of `DockerExecutor`: it makes sessions, and passes on what they say.

It speaks with its host by standard input and output, in the words of `docker_words`. What a
session and its host say to each other it does not read: it runs no tool, keeps no time and counts
nothing, so whoever takes it over has won nothing but the container. Its end of input is its end.
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
    Beyond,
    Data,
    Failed,
    FromBox,
    InspectRequest,
    Interrupt,
    Kill,
    Make,
    Open,
    Opened,
    RelayInfo,
    SessionEnded,
    SessionMade,
    ToBox,
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

_HOST_FRAME_BYTES = (1 << 32) - 1  # the host is no opponent
_SET_DUMPABLE = 4
_read: msgspec.msgpack.Decoder[ToBox] = msgspec.msgpack.Decoder(ToBox)


@final
class Relay:
    """Passes words and bytes between the host and one session at a time.

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
        """Serve until the host hangs up; then end everything."""
        self._say(RelayInfo(version("envweave"), PROTOCOL))
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
            self._orphans.bury(self._factory)
        if self._body is not None and self._body.socket.fileno() in ready:
            self._feed()
            self._hear_session()
        if self._source in ready and not self._hear_host():
            return False
        self._flush()
        return True

    # The host

    def _say(self, message: FromBox) -> None:
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
            self._obey(_read.decode(frame))
        return True

    def _obey(self, told: ToBox) -> None:
        if isinstance(told, Open | Make):
            try:
                with self._oom.children():
                    self._say(self._opened(told) if isinstance(told, Open) else self._made(told))
            except (SandboxError, OptionError, WallSetupError, OSError) as error:
                self._say(_failed(error))
        elif isinstance(told, Kill):
            if told.number == self._number:
                self._end_session()
            self._say(SessionEnded(told.number, "unknown", 0))
        elif self._body is None or told.number != self._number:
            return  # it is gone, and the host has been told
        elif isinstance(told, Data):
            self._in.append(memoryview(told.data))
            self._feed()
        elif isinstance(told, Interrupt):
            self._body.interrupt()
        elif isinstance(told, InspectRequest):
            limit = self._body.excess()
            if limit is not None:
                self._say(Beyond(told.number, limit))

    # Sessions

    def _opened(self, told: Open) -> Opened:
        try:
            self._factory = SessionFactory(_options(told, told.isolation))
            reasons = list(self._factory.tier.reasons)
        except IsolationError as error:
            if told.isolation != "auto":
                raise
            # The walls do not stand here. The container does, and the host is told so.
            reasons = [str(error)]
            self._factory = SessionFactory(_options(told, "none"))
        tier = self._factory.tier
        if tier.name == "none":
            _hide_memory()
        return Opened(tier.name, [one[:1000] for one in reasons[:4]])

    def _made(self, told: Make) -> SessionMade:
        self._end_session()
        if self._factory is None:
            raise SandboxError("There is no sandbox yet.")
        self._body = self._factory.make(told.seed, told.tools)
        self._number = told.number
        return SessionMade(told.number, self._body.work or WORK)

    def _feed(self) -> None:
        """Give the session what it takes of what the host sent."""
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
            self._say(Data(self._number, data))
            return
        death = self._body.exit_reason()
        self._end_session()
        kind = "unknown" if death.kind == "lost" else death.kind
        self._say(SessionEnded(self._number, kind, death.code))

    def _end_session(self) -> None:
        body, self._body = self._body, None
        self._in.clear()
        if body is not None:
            body.release()


class _Orphans:
    """Buries processes whose parents ended before them: the first of a container inherits them.

    As the first it has another right: nobody inside can signal it, whatever code breaks out.

    Attributes:
        wakes: Can be read when there may be some.
    """

    def __init__(self) -> None:
        self.wakes, told = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def bury(self, factory: SessionFactory | None) -> None:
        """Bury all but the templates, whose end is the factory's to see."""
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


def _options(told: Open, isolation: WantedIsolation) -> SandboxConfig:
    return read_options(
        limits=Limits(**cast("dict[str, Any]", told.limits)),
        preload=told.preload,
        packages=told.packages,
        private=told.private,
        visible=(),
        profile=told.profile,
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
