"""Starting a worker process, watching it, ending it, and describing how it ended.

A worker is exec'd, not forked: it shares nothing with its parent but what it is sent. The first
message is where to import from, so that it finds the modules that its parent finds.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any, final

from envweave.lifetime import OwnerProcess
from envweave.types import EpisodeEnd
from envweave.workers.channel import Channel, FrameConnection, PeerGoneError, uninterrupted
from envweave.workers.deadlines import CodeClock
from envweave.workers.main import WorkerSettings
from envweave.workers.pickling import pack

CLOSE_S = 10.0
"""How long an environment's `close` may take before its worker is ended."""

_BOOT = """\
# {title}
import json, socket, struct, sys
s = socket.socket(fileno=int(sys.argv[1]))
f = s.makefile("rb", buffering=0)
def read(n):
    b = b""
    while len(b) < n: b += f.read(n - len(b)) or sys.exit(1)
    return b
b = read(struct.unpack("<Q", read(8))[0])
f.close()
sys.path[:] = json.loads(b)
from envweave.workers.main import main
main(s)
"""


class WorkerLostError(Exception):
    """A worker process is gone; the message says how. Never raised to a caller of envweave.

    Attributes:
        offender: The environment whose code took too long, if that is why.
    """

    def __init__(self, message: str, offender: int | None = None) -> None:
        super().__init__(message)
        self.offender = offender

    def end_of(self, env_index: int) -> EpisodeEnd:
        """Return how the episode of one of its environments ended."""
        if self.offender == env_index:
            return EpisodeEnd("timeout", "environment", str(self))
        return EpisodeEnd("lost", "infrastructure", str(self))


@final
class WorkerProcess:
    """A process that runs environments.

    Args:
        title: What a list of processes shows.
        clock: Shared with the process, for its deadlines.
        fds: What else it inherits.
        stdout: Where its output goes; the parent's own by default.
    """

    def __init__(
        self,
        title: str = "an envweave worker process",
        *,
        clock: CodeClock | None = None,
        fds: Iterable[int] = (),
        stdout: int | None = None,
    ) -> None:
        self._owner = OwnerProcess()
        self._clock = clock
        ours, theirs = socket.socketpair()
        boot = _BOOT.format(title=title)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this very interpreter
                [sys.executable, *_interpreter_flags(), "-c", boot, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                pass_fds=(*fds, theirs.fileno()),
                start_new_session=True,  # a Ctrl-C is for the parent, which ends its workers
            )
            self._pidfd = self._open_pidfd()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.channel = Channel(ours)

    def _open_pidfd(self) -> int | None:
        if not hasattr(os, "pidfd_open"):
            return None
        try:
            return os.pidfd_open(self._process.pid)
        except OSError:
            self.kill()
            self._process.wait()
            raise

    @property
    def pid(self) -> int:
        """The process's ID."""
        return self._process.pid

    def loop_connection(self) -> FrameConnection:
        """Return the connection to it, for an event loop."""
        return FrameConnection(self.channel.connection)

    @property
    def pidfd(self) -> int | None:
        """What can be read once the process has ended; `None` where the system has no such."""
        return self._pidfd

    def poll_fd(self) -> int:
        """Return a descriptor that can be read once the process has ended."""
        return self.channel.fileno() if self._pidfd is None else self._pidfd

    # Messages

    def define(self, host: str, definition: bytes, *host_args: Any) -> None:
        """Send it what to run; its next message is a report of that.

        Args:
            host: The import path of the function that runs environments.
            definition: What that function is to run, packed.
            host_args: What else that function gets.

        Raises:
            WorkerLostError: It is gone.
        """
        with self.whole_message():
            for payload in first_messages(host, definition, *host_args):
                self.channel.send(payload)

    def send(self, payload: bytes) -> None:
        """Send a message.

        Raises:
            WorkerLostError: The process is gone.
        """
        with self.whole_message():
            self.channel.send(payload)

    def receive(self, timeout_s: float | None = None) -> bytearray:
        """Return the process's next message.

        Raises:
            WorkerLostError: It is gone, or an environment's code took longer than `timeout_s`.
        """
        self.await_message(timeout_s)
        with self.whole_message():
            return self.channel.receive()

    def await_message(self, timeout_s: float | None) -> None:
        """Wait until a message begins to arrive.

        Raises:
            WorkerLostError: It is gone, or an environment's code took longer than `timeout_s`.
        """
        if self.has_ended:
            raise self.lost()
        poll = select.poll()
        poll.register(self.channel.fileno(), select.POLLIN)
        poll.register(self.poll_fd(), select.POLLIN)
        left = timeout_s
        while True:
            ready = dict(poll.poll(None if left is None else left * 1000 + 1))
            if self.channel.fileno() in ready:
                return
            if ready:
                raise self.lost()
            left = None if timeout_s is None else self.check_deadline(timeout_s)

    def has_message(self, timeout_s: float) -> bool:
        """Wait for the next message, whatever its code does; return whether one arrived."""
        if self.has_ended:
            return False
        poll = select.poll()
        poll.register(self.channel.fileno(), select.POLLIN)
        return bool(poll.poll(max(timeout_s, 0) * 1000))

    @contextlib.contextmanager
    def whole_message(self) -> Iterator[None]:
        """Send or receive one whole message; half of one would garble the next."""
        with uninterrupted():
            try:
                yield
            except PeerGoneError:
                raise self.lost() from None
            except BaseException:
                self.end()
                raise

    def check_deadline(self, timeout_s: float) -> float:
        """Return how many seconds the code that is running has left.

        Raises:
            WorkerLostError: None, so the process was ended.
        """
        running = None if self._clock is None else self._clock.running()
        if running is None:
            return timeout_s
        env_index, taken_s = running
        if taken_s < timeout_s:
            return timeout_s - taken_s
        self.end()
        raise WorkerLostError(
            f"environment {env_index} took longer than timeout_s={timeout_s:g}, so its worker "
            f"process {self.pid} was ended",
            env_index,
        )

    # The end

    @property
    def has_ended(self) -> bool:
        """Whether it was found dead, or ended by us."""
        return self.channel.fileno() < 0

    @property
    def is_gone(self) -> bool:
        """Whether the process no longer exists."""
        return self.has_ended or self.exit_code is not None

    @property
    def exit_code(self) -> int | None:
        """Its exit code; `None` while it runs."""
        return self._process.poll()

    def exits_within(self, timeout_s: float) -> bool:
        """Wait until the process ends by itself; return whether it did."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def lost(self) -> WorkerLostError:
        """End what is left of it, and return how it ended."""
        self.exits_within(1.0)  # its connection is closed, so it is about to end by itself
        self.end()
        return WorkerLostError(self.describe_exit())

    def describe_exit(self) -> str:
        """Return how the process ended, as a clause of a sentence."""
        code = self._process.returncode
        if code is not None and code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            return f"its worker process {self.pid} was killed by {name}"
        return f"its worker process {self.pid} ended with exit code {code}"

    def kill(self) -> None:
        """Have the kernel end the process and every process that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """End the process and every process that it started, at once. May be called twice.

        A forked copy of the parent only closes its own descriptors.
        """
        if self.has_ended:
            return
        if self.is_ours:
            self.kill()
            self._process.wait()
        self.close()

    @property
    def is_ours(self) -> bool:
        """Whether this process started it, and is not a forked copy of the one that did."""
        return self._owner.is_current

    def close(self) -> None:
        """Close the connection to it, and what watches it. May be called twice."""
        self.channel.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def first_messages(host: str, definition: bytes, *host_args: Any) -> tuple[bytes, bytes, bytes]:
    """Return what a worker process is sent first: see `WorkerProcess.define`."""
    paths = json.dumps([path for path in sys.path if isinstance(path, str)]).encode()
    log_levels = (logging.root.manager.disable, logging.getLogger("envweave").getEffectiveLevel())
    settings = WorkerSettings(os.getpid(), log_levels, host, host_args)
    return paths, pack(tuple(settings)), definition


def _interpreter_flags() -> list[str]:
    """Return the options that this interpreter runs with, such as `-O` or `-W error`."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing does
    return flags
