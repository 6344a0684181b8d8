"""A shell that lives as long as its session. It runs inside sessions.

The shell is interactive: only then does it return to its prompt when it is interrupted. It reads
commands from a pipe. Each command runs by `eval`, with an empty stdin and the two output pipes. A
program that it starts inherits neither the command pipe nor the status pipe. After the command,
the shell writes its status to the status pipe, marked with a random token that is new each time.
Its prompts are discarded.

None of the agent's code runs in this process. So its reports can be trusted, except for the exit
status, which a shell can set to anything.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import random
import re
import select
import shutil
import signal
import sys
import termios
import time
from pathlib import Path
from typing import Any, NoReturn, final

_LOWEST_FD = 10
"""The pipes of this process are above the descriptors that every shell can name."""
_READ_BYTES = 1 << 16


def make_pipe() -> tuple[int, int]:
    """Return the two ends of a pipe, above the descriptors that a shell uses."""
    low = os.pipe()
    try:
        read_end, write_end = (fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD) for one in low)
    finally:
        for one in low:
            os.close(one)
    return read_end, write_end


def count_unread(descriptor: int) -> int:
    """Return the number of unread bytes in a pipe."""
    counted = fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4)
    return int.from_bytes(counted, "little")


class Output:
    """One output stream of all commands. Between two commands, background jobs fill its pipe.

    Attributes:
        read_end: The end that this process reads.
        write_end: The end that programs inherit.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.read_end, self.write_end = make_pipe()
        os.set_blocking(self.read_end, False)
        self._limit = limit_bytes
        self._kept = bytearray()
        self._dropped = 0

    def fetch(self, limit: int = _READ_BYTES) -> int:
        """Read what is available, and keep it up to the limit; return the number of bytes."""
        try:
            data = os.read(self.read_end, min(limit, _READ_BYTES))
        except BlockingIOError:
            return 0
        room = self._limit - len(self._kept)
        self._kept += data[:room]
        self._dropped += max(len(data) - room, 0)
        return len(data)

    def take(self) -> tuple[bytes, int]:
        """Return what was written until now, and how many bytes of it were dropped."""
        # Only what is there now: a background job may write faster than this reads.
        left = count_unread(self.read_end)
        while left > 0:
            count = self.fetch(left)
            left -= count or left
        taken = bytes(self._kept), self._dropped
        self._kept.clear()
        self._dropped = 0
        return taken


def decode_output(data: bytes, dropped: int) -> str:
    """Return output as text, with invalid UTF-8 as backslash escapes."""
    # If more followed, the last character may be incomplete: drop it.
    text = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode(data, final=not dropped)
    return f"{text}\n... [{dropped} bytes cut]" if dropped else text


TIMEOUT_STATUS = 124
"""The status of a command that exceeded its time limit."""

_INTERRUPT_EVERY_S = 0.1
"""How often the interrupt is repeated: the first may end only one command of a loop."""
_STATUS_POLL_S = 0.02
_PIPE_POLL_S = 0.0002
_START_S = 5.0
_STATUS_BYTES = 4096
_TERMINAL_WARNING = re.compile(rb"^bash: \[\d+: \d+ \(\d+\)\] tcsetattr: [^\n]*\n", re.MULTILINE)
"""The warning of an interactive bash without a terminal when a signal ended a program."""
_BASH_OPTIONS = ("--norc", "--noprofile", "--noediting", "+H")
_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_RESTARTED = "A new one was started in the work folder: files are kept, variables are lost."

Report = tuple[int, str, str, list[str]]
"""Status, stdout, stderr, and the limits that were hit."""


class _CommandTimeoutError(Exception):
    """The command exceeded its time limit."""


class _ShellExitedError(Exception):
    """The shell has exited."""


@final
class Shell:
    """Runs commands, one after the other, in one shell.

    Args:
        output_bytes: The most bytes of each stream that are kept of a command.
        grace_s: How long a command may take to end after it was interrupted.
        open_files: The limit on open descriptors of a process.
        program: The shell; `sh` if it is not installed.
    """

    def __init__(
        self, output_bytes: int, grace_s: float, open_files: int, program: str = "bash"
    ) -> None:
        self._grace_s = grace_s
        found = shutil.which(program, path=_search_path())
        self._program = found or shutil.which("sh", path=_search_path()) or "/bin/sh"
        self._is_bash = Path(self._program).name == "bash"
        # Other shells than bash support only descriptors of one digit.
        first = open_files - 3 if self._is_bash else 7
        self._descriptors = first, first + 1, first + 2
        self._is_pid_1 = os.getpid() == 1
        self._stdout, self._stderr = Output(output_bytes), Output(output_bytes)
        self._pid = 0
        self._pipes: list[int] = []
        self._status_data = b""
        self._status = 0
        # Without process groups, an interrupt of the commands reaches this process, too.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._start()

    def run(self, command: str, timeout_s: float) -> Report:
        """Run a command, and return its outcome."""
        if "\0" in command:
            return 2, "", "[shell] A command cannot contain the character NUL.\n", []
        limits, note = [], ""
        self._reap()
        if not self._pid:
            note = f"The shell had exited with status {self._status}. {_RESTARTED} "
            self._start()
        token = os.urandom(16).hex()
        try:
            status = self._run(command, token, time.monotonic() + timeout_s)
        except _CommandTimeoutError:
            limits.append("time")
            note += f"The command took longer than {timeout_s:g} s, and was {self._stop(token)}"
            status = TIMEOUT_STATUS
        except KeyboardInterrupt:  # sent by the host
            note += f"The command was {self._stop(token)}"
            status = TIMEOUT_STATUS
        except _ShellExitedError:
            status, self._status = self._status, 0
            note += f"The shell exited with status {status}. {_RESTARTED}"
        if not self._pid:
            self._start()
        stdout, stdout_dropped = self._stdout.take()
        stderr, stderr_dropped = self._stderr.take()
        if stdout_dropped or stderr_dropped:
            limits.append("output")
        errors = decode_output(_TERMINAL_WARNING.sub(b"", stderr), stderr_dropped)
        return status, decode_output(stdout, stdout_dropped), _append_note(errors, note), limits

    def _run(self, command: str, token: str, until_s: float) -> int:
        stdout, stderr, status = self._descriptors
        # Sets `$?` for the command. A failing subshell before `||` does not end the shell.
        set_status = f"(exit {self._status}) || " if self._status else ""
        streams = f"</dev/null >&{stdout} 2>&{stderr} {stdout}>&- {stderr}>&- {status}>&-"
        self._send(f"{set_status}\\command eval {_quote(command)} {streams}\n", until_s)
        # Not earlier: after an error the shell drops what it has read, and sometimes one line more.
        report = f"\\command printf '\\000{token} %d\\000' \"$?\" >&{status}"
        self._send(f"\n{{ {report}; }} >/dev/null 2>&1\n", until_s)
        self._status = self._await_status(token, until_s)
        return self._status

    def _send(self, line: str, until_s: float) -> None:
        """Write a line to the shell, and wait until it has read it."""
        _, commands = self._pipes
        rest = line.encode("utf-8", "backslashreplace")
        while rest:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                rest = rest[os.write(commands, rest) :]
                continue
            self._poll(_PIPE_POLL_S, until_s)
        while count_unread(commands):
            self._poll(_PIPE_POLL_S, until_s)

    def _await_status(self, token: str, until_s: float) -> int:
        pattern = re.compile(rf"\x00{token} (\d{{1,3}})\x00".encode())
        while True:
            found = pattern.search(self._status_data)
            if found is not None:
                self._status_data = b""
                return int(found[1])
            self._poll(_STATUS_POLL_S, until_s)

    def _poll(self, wait_s: float, until_s: float) -> None:
        """Wait for at most `wait_s`, and read the output that arrives.

        Raises:
            _ShellExitedError: The shell has exited.
            _CommandTimeoutError: The time limit is exceeded.
        """
        if not self._pid:
            raise _ShellExitedError
        wait_s = min(wait_s, until_s - time.monotonic())
        if wait_s <= 0:
            raise _CommandTimeoutError
        statuses, _ = self._pipes
        streams = (self._stdout, self._stderr)
        ready, _, _ = select.select([statuses, *(one.read_end for one in streams)], [], [], wait_s)
        for stream in streams:
            if stream.read_end in ready:
                stream.fetch()
        if statuses in ready:
            # Programs may write any amount of other data there: keep only the end.
            self._status_data = (self._status_data + os.read(statuses, _STATUS_BYTES))[
                -_STATUS_BYTES:
            ]
        self._reap()

    def _stop(self, token: str) -> str:
        """Interrupt the command, or kill it after the grace period; describe what was done."""
        until_s = time.monotonic() + self._grace_s
        while time.monotonic() < until_s:
            # The processes of a pipeline may be gone already.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid if self._is_pid_1 else os.getpgrp(), signal.SIGINT)
            try:
                next_s = min(time.monotonic() + _INTERRUPT_EVERY_S, until_s)
                self._status = self._await_status(token, next_s)
            except _CommandTimeoutError:
                continue
            except _ShellExitedError:
                self._status = 0
                return f"interrupted, and the shell exited. {_RESTARTED}"
            return "interrupted."
        if not self._is_pid_1:
            self._wait_for_host()
        self._kill_all()
        return f"killed with all other processes here, including the shell. {_RESTARTED}"

    def _wait_for_host(self) -> NoReturn:
        """Wait until the host ends the session: it is not known here which processes to kill."""
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(1.0)

    def _kill_all(self) -> None:
        """Kill every process of the PID namespace except this one, which is PID 1."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        until_s = time.monotonic() + _START_S
        while self._pid and time.monotonic() < until_s:
            self._reap()
            time.sleep(_PIPE_POLL_S)
        self._pid = self._status = 0

    def _reap(self) -> None:
        """Reap the processes that exited: the shell, or orphans of it."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._pid:
                    code = os.waitstatus_to_exitcode(status)
                    self._pid, self._status = 0, code if code >= 0 else 128 - code

    def _start(self) -> None:
        """Start a shell, in the work folder."""
        for one in self._pipes:
            os.close(one)
        commands = make_pipe()
        statuses = make_pipe()
        self._pipes = [statuses[0], commands[1]]
        os.set_blocking(commands[1], False)
        try:
            self._pid = self._spawn(commands[0], statuses[1])
        except BlockingIOError:  # background jobs have reached the process limit
            if not self._is_pid_1:
                raise
            self._kill_all()
            self._pid = self._spawn(commands[0], statuses[1])
        finally:
            os.close(commands[0])
            os.close(statuses[1])
        seed = f"RANDOM={random.getrandbits(15)}; " if self._is_bash else ""
        self._status_data, self._status = b"", 0
        self._send(f"{seed}set +o history\n", time.monotonic() + _START_S)

    def _spawn(self, commands: int, statuses: int) -> int:
        inherited = zip(
            self._descriptors,
            (self._stdout.write_end, self._stderr.write_end, statuses),
            strict=True,
        )
        group: dict[str, Any] = {"setpgroup": 0} if self._is_pid_1 else {}
        return os.posix_spawn(
            self._program,
            [Path(self._program).name, *(_BASH_OPTIONS if self._is_bash else ()), "-i"],
            {**os.environ, "PATH": _search_path(), "SHELL": self._program, "PS1": "", "PS2": ""},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, commands, 0),
                (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
                *((os.POSIX_SPAWN_DUP2, ours, theirs) for theirs, ours in inherited),
            ],
            setsigmask=[],
            setsigdef=_SIGNALS,  # Python ignores some, which children inherit
            **group,
        )


def _search_path() -> str:
    own = [f"{prefix}/bin" for prefix in (sys.prefix, sys.base_prefix)]
    system = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    return os.pathsep.join(dict.fromkeys([*own, *system]))


def _quote(command: str) -> str:
    return "'" + command.replace("'", "'\\''") + "'"


def _append_note(text: str, note: str) -> str:
    if not note:
        return text
    separator = "\n" if text and not text.endswith("\n") else ""
    return f"{text}{separator}[shell] {note.rstrip()}\n"
