"""A thread in the place of a session's process."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import weakref
from collections.abc import Collection
from pathlib import Path
from tempfile import gettempdir
from typing import Literal, final

from envweave.codeact.executors.local.interpreting import Interpreter
from envweave.codeact.executors.local.interrupts import Interrupts
from envweave.codeact.executors.local.line import Line
from envweave.codeact.executors.local.runner import Runner
from envweave.errors import BranchError
from envweave.sandbox.host.work_dirs import WorkFolder, remove_tree
from envweave.sandbox.limits import Limits
from envweave.sandbox.processes.process import ExitReason, SessionHandle
from envweave.sandbox.processes.watcher import WatcherCalls

logger = logging.getLogger("envweave.codeact")


@final
class ThreadBody:
    """A thread that runs code, and its folder. See `SessionHandle` for what each method promises.

    A thread cannot be killed. One that does not end is left behind: it is a daemon, nobody hears
    it, and its folder goes with it.

    Attributes:
        line: The code's end.
        interrupts: What interrupts the code.
    """

    def __init__(self, limits: Limits) -> None:
        self.interrupts = Interrupts()
        self.socket, theirs = socket.socketpair()
        self.line = Line(theirs, limits.message_bytes, self.interrupts)
        folder = Path(gettempdir())
        self._folder = WorkFolder(folder, None, limits.disk_bytes, limits.files)
        # For those who leave without closing: the thread is a daemon, and ends in the middle.
        weakref.finalize(self._folder, _remove_here, self._folder.path, os.getpid())
        self.work: str | None = str(self._folder.path)
        self._limits = limits
        self._runner: Runner | None = None
        self._thread: threading.Thread | None = None

    def start(self, interpreter: Interpreter, own: Collection[str]) -> None:
        """Start the thread; `own` are names that were bound for the code."""
        runner = Runner(interpreter, own, self.line, self.interrupts, self._limits)
        self._runner = runner
        self._thread = threading.Thread(
            target=_serve, args=(runner, self._folder), name="envweave-code", daemon=True
        )
        self._thread.start()

    is_stopped = False

    def watch(self, calls: WatcherCalls, in_use: threading.Lock) -> None:
        """Do nothing: a thread has no walls, and cannot be stopped."""

    def wake(self) -> None:
        """Do nothing: it is never stopped."""

    def interrupt(self) -> None:
        """Interrupt the code."""
        self.interrupts.interrupt()

    def kill(self) -> None:
        """Hang up, and interrupt the code once more."""
        if self._runner is not None:
            self._runner.is_left_behind = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.interrupts.interrupt(again=True)

    def exit_reason(self) -> ExitReason:
        """Say that the code ended it: nobody else can."""
        self.kill()
        return ExitReason("unknown")

    def excess(self) -> Literal["disk"] | None:
        """Say whether its folder holds more than it may."""
        return "disk" if self._folder.is_over() else None

    def branch(self, seed: int | None, deadline: float) -> SessionHandle:  # noqa: ARG002 - a `SessionHandle`'s
        """Refuse: a thread cannot be copied."""
        raise BranchError("Code that runs in this process cannot be branched. Use the sandbox.")

    def release(self) -> None:
        """Hang up. The thread removes the folder when it ends."""
        self.kill()
        self.socket.close()
        if self._thread is None:
            self.line.close()
            self._folder.remove()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the thread to end, and say whether it did."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


def _remove_here(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a process that was forked
        remove_tree(folder)


def _serve(runner: Runner, folder: WorkFolder) -> None:
    try:
        runner.serve(str(folder.path))
    except BaseException:  # an interrupt that came late, in code that nobody waits for
        logger.debug("a thread of code that was left behind has ended", exc_info=True)
    finally:
        folder.remove()
