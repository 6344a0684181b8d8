"""Keeps one MCP server, and outlives whoever started it by just long enough to end it.

This file is run by itself, as a process between the one that wants a server and the server, which
gets this process's stdin, stdout and stderr. It needs nothing but the standard library.

A server is told to go by the end of its stdin. Programs that start others (`npx`, `uvx`, a
browser) often leave some of them behind, and a process that was killed can clean up nothing. So
this one adopts whatever the server starts, and kills all of it when the server exits, when the
socket to its starter breaks, or when its starter dies.

    python -I -S mcp_keeper.py <socket> <pid of the starter> <command> <argument> …

What comes over the socket: nothing, and then its end. What goes: how the server exited, as a
number; below zero it is a signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

EXIT_S = 1.0
"""How long a server may take to exit after the end of its stdin, and again after SIGTERM."""

_SWEEP_S, _ROUND_S = 5.0, 0.05
_SET_PDEATHSIG, _SET_SUBREAPER = 1, 36
_CANNOT_RUN = 127


def main(arguments: list[str]) -> None:
    """Start the server, and stay until all of it is gone."""
    line, starter, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    os.set_inheritable(line, False)  # noqa: FBT003 - the standard library's
    _prctl(_SET_SUBREAPER, 1)
    _prctl(_SET_PDEATHSIG, signal.SIGTERM)
    bell_r, bell_w = os.pipe()
    os.set_blocking(bell_w, False)
    signal.set_wakeup_fd(bell_w, warn_on_full_buffer=False)
    for one in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(one, _ring)
    if os.getppid() != starter:
        return  # it died before it could be noticed
    server = _start(command)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # they are the server's alone
        os.dup2(nothing, descriptor)
    keeper = _Supervisor(server, line, bell_r)
    code = keeper.wait()
    keeper.sweep()
    with contextlib.suppress(OSError):
        os.write(line, str(code).encode())


def _start(command: list[str]) -> int:
    keeper = os.getpid()
    server = os.fork()
    if server:
        return server
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for one in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(one, signal.SIG_DFL)
        _prctl(_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == keeper:
            os.execvp(command[0], command)  # noqa: S606 - what the configuration says
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(_CANNOT_RUN)


class _Supervisor:
    """Waits for the end of a server, and brings it where need be."""

    def __init__(self, server: int, line: int, bell: int) -> None:
        self._server = server
        self._line = line
        self._bell = bell
        self._code: int | None = None

    def wait(self) -> int:
        """Return how the server exited. Once nobody wants it any more, make it."""
        while not (self._has_exited() or _TERMINATED or self._listen(None)):
            pass
        for push in (None, signal.SIGTERM, signal.SIGKILL):
            if push is not None and not self._has_exited():
                with contextlib.suppress(OSError):
                    os.killpg(self._server, push)
            ends_s = time.monotonic() + EXIT_S
            while not self._has_exited() and time.monotonic() < ends_s:
                self._listen(ends_s - time.monotonic())
        return -signal.SIGKILL if self._code is None else self._code

    def _listen(self, timeout_s: float | None) -> bool:
        """Wait for a signal. Return whether the line has broken, where there is no time-out."""
        watched = [self._bell, self._line] if timeout_s is None else [self._bell]
        ready = select.select(watched, [], [], None if timeout_s is None else max(0.0, timeout_s))
        if self._bell in ready[0]:
            os.read(self._bell, 4096)
        return self._line in ready[0]

    def _has_exited(self) -> bool:
        self._reap()
        return self._code is not None

    def _reap(self) -> bool:
        """Take notice of all that have exited. Return whether any others are left."""
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if process == 0:
                return True
            if process == self._server:
                self._code = os.waitstatus_to_exitcode(status)

    def sweep(self) -> None:
        """Kill all that the server has started, and what these have."""
        with contextlib.suppress(OSError):
            os.killpg(self._server, signal.SIGKILL)
        ends_s = time.monotonic() + _SWEEP_S
        while self._reap() and time.monotonic() < ends_s:
            # The children of a killed one become this one's, so each round digs deeper.
            for child in _children():
                with contextlib.suppress(OSError):
                    os.kill(child, signal.SIGKILL)
            self._listen(_ROUND_S)


_TERMINATED: list[int] = []


def _ring(number: int, _frame: object) -> None:
    if number == signal.SIGTERM:
        _TERMINATED.append(number)


def _children() -> list[int]:
    """Return this process's children, where the system tells."""
    own = os.getpid()
    found = []
    try:
        # pathlib would take longer to import than all else here.
        processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    except OSError:
        return []
    for process in processes:
        try:
            with open(f"/proc/{process}/stat", "rb") as file:  # noqa: PTH123
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == own:
            found.append(process)
    return found


def _prctl(option: int, value: int) -> None:
    """Ask the kernel for what only Linux has."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
