"""Supervises one MCP server, and outlives its parent just long enough to stop the server.

This file runs as a script, in a process between the client and the server. The server inherits
this process's stdin, stdout and stderr. The script needs only the standard library.

A server exits when its stdin is closed. Programs that start others (`npx`, `uvx`, a browser) often
leave some of them running, and a killed process cannot clean up. So this process is the subreaper
of everything that the server starts, and kills all of it when the server exits, when the socket to
the parent is closed, or when the parent dies.

    python -I -S supervisor.py <socket> <parent pid> <command> <argument> …

The parent sends nothing over the socket and closes it to stop the server. The supervisor sends the
exit code of the server as a decimal number; a negative one is a signal.
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

_KILL_ALL_S, _ROUND_S = 5.0, 0.05
_SET_PDEATHSIG, _SET_SUBREAPER = 1, 36
_CANNOT_RUN = 127


def main(arguments: list[str]) -> None:
    """Start the server, and run until all of its processes are gone."""
    control, parent, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    os.set_inheritable(control, False)  # noqa: FBT003 - the standard library's
    _prctl(_SET_SUBREAPER, 1)
    _prctl(_SET_PDEATHSIG, signal.SIGTERM)
    wakeup_r, wakeup_w = os.pipe()
    os.set_blocking(wakeup_w, False)
    signal.set_wakeup_fd(wakeup_w, warn_on_full_buffer=False)
    for one in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(one, _on_signal)
    if os.getppid() != parent:
        return  # it died before the death signal was set up
    server = _start(command)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # only the server may hold the pipes
        os.dup2(null, descriptor)
    supervisor = _Supervisor(server, control, wakeup_r)
    code = supervisor.wait()
    supervisor.kill_descendants()
    with contextlib.suppress(OSError):
        os.write(control, str(code).encode())


def _start(command: list[str]) -> int:
    supervisor = os.getpid()
    server = os.fork()
    if server:
        return server
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for one in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(one, signal.SIG_DFL)
        _prctl(_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == supervisor:
            os.execvp(command[0], command)  # noqa: S606 - the configured command
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(_CANNOT_RUN)


class _Supervisor:
    """Waits until a server exits, and stops it when asked to."""

    def __init__(self, server: int, control: int, wakeup: int) -> None:
        self._server = server
        self._control = control
        self._wakeup = wakeup
        self._code: int | None = None

    def wait(self) -> int:
        """Return the exit code of the server. Stop it when the parent no longer needs it."""
        while not (self._has_exited() or _TERMINATED or self._wait_for_event(None)):
            pass
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None and not self._has_exited():
                with contextlib.suppress(OSError):
                    os.killpg(self._server, number)
            ends_s = time.monotonic() + EXIT_S
            while not self._has_exited() and time.monotonic() < ends_s:
                self._wait_for_event(ends_s - time.monotonic())
        return -signal.SIGKILL if self._code is None else self._code

    def _wait_for_event(self, timeout_s: float | None) -> bool:
        """Wait for a signal. Without a timeout, return whether the parent closed the socket."""
        watched = [self._wakeup, self._control] if timeout_s is None else [self._wakeup]
        ready = select.select(watched, [], [], None if timeout_s is None else max(0.0, timeout_s))
        if self._wakeup in ready[0]:
            os.read(self._wakeup, 4096)
        return self._control in ready[0]

    def _has_exited(self) -> bool:
        self._reap()
        return self._code is not None

    def _reap(self) -> bool:
        """Reap all children that have exited. Return whether others are left."""
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if process == 0:
                return True
            if process == self._server:
                self._code = os.waitstatus_to_exitcode(status)

    def kill_descendants(self) -> None:
        """Kill all processes that the server started, and their descendants."""
        with contextlib.suppress(OSError):
            os.killpg(self._server, signal.SIGKILL)
        ends_s = time.monotonic() + _KILL_ALL_S
        while self._reap() and time.monotonic() < ends_s:
            # Killed processes leave their children to this one, so each round reaches deeper.
            for child in _list_children():
                with contextlib.suppress(OSError):
                    os.kill(child, signal.SIGKILL)
            self._wait_for_event(_ROUND_S)


_TERMINATED: list[int] = []


def _on_signal(number: int, _frame: object) -> None:
    if number == signal.SIGTERM:
        _TERMINATED.append(number)


def _list_children() -> list[int]:
    """Return the children of this process; empty without `/proc`."""
    own = os.getpid()
    found = []
    try:
        # pathlib takes longer to import than everything else here.
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
    """Call `prctl`, which only Linux has."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
