"""A shell that lives as long as its session. It runs inside sessions.

The shell is interactive, since only such a one goes back to its prompt when it is interrupted. It
reads from a pipe. Each command is run by `eval` with no input, with the two pipes of output, and
with nothing else: a program that it starts holds neither the pipe by which the shell is told what
to do, nor the one by which it tells how that went. When it reads on, it is asked for the status,
by a word that is drawn anew each time. Its prompts go nowhere.

None of the agent's code runs in this process: what is told here is not the agent's word, but for
the status, which a shell is free to set.
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

_OWN_FILES = 10
"""The pipes of this process are kept above what every shell can name."""
_READ_BYTES = 1 << 16


def make_pipe() -> tuple[int, int]:
    """Return the two ends of a pipe, out of the way of the numbers that a shell uses."""
    low = os.pipe()
    try:
        reading, writing = (fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, _OWN_FILES) for one in low)
    finally:
        for one in low:
            os.close(one)
    return reading, writing


def unread(descriptor: int) -> int:
    """Return how many bytes stand in a pipe."""
    counted = fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4)
    return int.from_bytes(counted, "little")


class Output:
    """One stream of all commands. What background jobs write between two stands in its pipe.

    Attributes:
        reading: Where this process reads.
        writing: What programs are given.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.reading, self.writing = make_pipe()
        os.set_blocking(self.reading, False)
        self._limit = limit_bytes
        self._kept = bytearray()
        self._lost = 0

    def fetch(self, most: int = _READ_BYTES) -> int:
        """Read what is there, and keep what there is room for; return how much it was."""
        try:
            data = os.read(self.reading, min(most, _READ_BYTES))
        except BlockingIOError:
            return 0
        room = self._limit - len(self._kept)
        self._kept += data[:room]
        self._lost += max(len(data) - room, 0)
        return len(data)

    def take(self) -> tuple[bytes, int]:
        """Return what was written until now, and how many bytes of it were cut."""
        # A job in the background may write faster than anybody reads.
        there = unread(self.reading)
        while there > 0:
            got = self.fetch(there)
            there -= got or there
        taken = bytes(self._kept), self._lost
        self._kept.clear()
        self._lost = 0
        return taken


def as_text(data: bytes, lost: int) -> str:
    """Return what was written as text: bytes that are none are shown by their numbers."""
    # Only what is whole, if more followed.
    text = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode(data, final=not lost)
    return f"{text}\n... [{lost} bytes cut]" if lost else text


LATE = 124
"""The status of a command that took too long."""

_AGAIN_S = 0.1
"""How long after an interrupt another is sent: a loop may take the first for its command's."""
_LOOK_S = 0.02
_SOON_S = 0.0002
_START_S = 5.0
_SAID_BYTES = 4096
_NO_TERMINAL = re.compile(rb"^bash: \[\d+: \d+ \(\d+\)\] tcsetattr: [^\n]*\n", re.MULTILINE)
"""What an interactive bash complains of when a signal ended a program."""
_BASH = ("--norc", "--noprofile", "--noediting", "+H")
_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_BEGAN = "A new one began, in the work folder: files are as they were, variables are gone."

Report = tuple[int, str, str, list[str]]
"""Status, stdout, stderr, and the limits that were hit."""


class _LateError(Exception):
    """The time is over."""


class _GoneError(Exception):
    """The shell has ended."""


@final
class Shell:
    """Runs commands, one after the other, in one shell.

    Args:
        output_bytes: How much of each stream a command may show.
        grace_s: How long a command may take to end once it is interrupted.
        open_files: How many descriptors a process may have here.
        program: The shell, where it is installed; `sh` elsewhere.
    """

    def __init__(
        self, output_bytes: int, grace_s: float, open_files: int, program: str = "bash"
    ) -> None:
        self._grace_s = grace_s
        found = shutil.which(program, path=_path())
        self._program = found or shutil.which("sh", path=_path()) or "/bin/sh"
        self._is_bash = Path(self._program).name == "bash"
        # Others than bash can only name descriptors of one digit.
        first = open_files - 3 if self._is_bash else 7
        self._numbers = first, first + 1, first + 2
        self._is_alone = os.getpid() == 1
        self._stdout, self._stderr = Output(output_bytes), Output(output_bytes)
        self._pid = 0
        self._pipes: list[int] = []
        self._said = b""
        self._status = 0
        # Where groups of processes cannot be made, this one is in that of the commands.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._start()

    def run(self, command: str, timeout_s: float) -> Report:
        """Run a command, and return its outcome."""
        if "\0" in command:
            return 2, "", "[shell] A command cannot hold the character NUL.\n", []
        limits, note = [], ""
        self._reap()
        if not self._pid:
            note = f"The shell had ended, with status {self._status}. {_BEGAN} "
            self._start()
        word = os.urandom(16).hex()
        try:
            status = self._run(command, word, time.monotonic() + timeout_s)
        except _LateError:
            limits.append("time")
            note += f"The command took longer than {timeout_s:g} s, and was {self._stop(word)}"
            status = LATE
        except KeyboardInterrupt:  # the host's
            note += f"The command was {self._stop(word)}"
            status = LATE
        except _GoneError:
            status, self._status = self._status, 0
            note += f"The shell ended, with status {status}. {_BEGAN}"
        if not self._pid:
            self._start()
        stdout, cut = self._stdout.take()
        stderr, also_cut = self._stderr.take()
        if cut or also_cut:
            limits.append("output")
        told = as_text(_NO_TERMINAL.sub(b"", stderr), also_cut)
        return status, as_text(stdout, cut), _with_note(told, note), limits

    def _run(self, command: str, word: str, until_s: float) -> int:
        stdout, stderr, status = self._numbers
        # What `$?` is to the command. A subshell's failure before `||` ends no shell.
        before = f"(exit {self._status}) || " if self._status else ""
        streams = f"</dev/null >&{stdout} 2>&{stderr} {stdout}>&- {stderr}>&- {status}>&-"
        self._send(f"{before}\\command eval {_quoted(command)} {streams}\n", until_s)
        # Not sooner: after an error the shell drops what it has read, and at times a line more.
        asking = f"\\command printf '\\000{word} %d\\000' \"$?\" >&{status}"
        self._send(f"\n{{ {asking}; }} >/dev/null 2>&1\n", until_s)
        self._status = self._await_status(word, until_s)
        return self._status

    def _send(self, line: str, until_s: float) -> None:
        """Tell the shell something, and wait until it has read it."""
        _, commands = self._pipes
        rest = line.encode("utf-8", "backslashreplace")
        while rest:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                rest = rest[os.write(commands, rest) :]
                continue
            self._watch(_SOON_S, until_s)
        while unread(commands):
            self._watch(_SOON_S, until_s)

    def _await_status(self, word: str, until_s: float) -> int:
        told = re.compile(rf"\x00{word} (\d{{1,3}})\x00".encode())
        while True:
            found = told.search(self._said)
            if found is not None:
                self._said = b""
                return int(found[1])
            self._watch(_LOOK_S, until_s)

    def _watch(self, wait_s: float, until_s: float) -> None:
        """Wait for a moment, and take what comes meanwhile.

        Raises:
            _GoneError: The shell has ended.
            _LateError: The time is over.
        """
        if not self._pid:
            raise _GoneError
        wait_s = min(wait_s, until_s - time.monotonic())
        if wait_s <= 0:
            raise _LateError
        statuses, _ = self._pipes
        streams = (self._stdout, self._stderr)
        ready, _, _ = select.select([statuses, *(one.reading for one in streams)], [], [], wait_s)
        for stream in streams:
            if stream.reading in ready:
                stream.fetch()
        if statuses in ready:
            # Whatever else is written there is none of ours, and has no end.
            self._said = (self._said + os.read(statuses, _SAID_BYTES))[-_SAID_BYTES:]
        self._reap()

    def _stop(self, word: str) -> str:
        """Interrupt what runs, and end it if that does not help; say which."""
        until_s = time.monotonic() + self._grace_s
        while time.monotonic() < until_s:
            # The processes of a pipeline may be gone already.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid if self._is_alone else os.getpgrp(), signal.SIGINT)
            try:
                self._status = self._await_status(word, min(time.monotonic() + _AGAIN_S, until_s))
            except _LateError:
                continue
            except _GoneError:
                self._status = 0
                return f"interrupted, and the shell ended. {_BEGAN}"
            return "interrupted."
        if not self._is_alone:
            self._wait_for_the_end()
        self._end_all()
        return f"killed with all that ran here, the shell too. {_BEGAN}"

    def _wait_for_the_end(self) -> NoReturn:
        """Wait for the host, which ends the session: here not all can be told from others."""
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(1.0)

    def _end_all(self) -> None:
        """Kill every process in here but this one, which is the first."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        until_s = time.monotonic() + _START_S
        while self._pid and time.monotonic() < until_s:
            self._reap()
            time.sleep(_SOON_S)
        self._pid = self._status = 0

    def _reap(self) -> None:
        """Take note of who ended: the shell, or those it left behind."""
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
        except BlockingIOError:  # what runs in the background leaves no room
            if not self._is_alone:
                raise
            self._end_all()
            self._pid = self._spawn(commands[0], statuses[1])
        finally:
            os.close(commands[0])
            os.close(statuses[1])
        seeded = f"RANDOM={random.getrandbits(15)}; " if self._is_bash else ""
        self._said, self._status = b"", 0
        self._send(f"{seeded}set +o history\n", time.monotonic() + _START_S)

    def _spawn(self, commands: int, statuses: int) -> int:
        wanted = zip(
            self._numbers, (self._stdout.writing, self._stderr.writing, statuses), strict=True
        )
        group: dict[str, Any] = {"setpgroup": 0} if self._is_alone else {}
        return os.posix_spawn(
            self._program,
            [Path(self._program).name, *(_BASH if self._is_bash else ()), "-i"],
            {**os.environ, "PATH": _path(), "SHELL": self._program, "PS1": "", "PS2": ""},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, commands, 0),
                (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
                *((os.POSIX_SPAWN_DUP2, ours, theirs) for theirs, ours in wanted),
            ],
            setsigmask=[],
            setsigdef=_SIGNALS,  # Python ignores some, and children would too
            **group,
        )


def _path() -> str:
    own = [f"{prefix}/bin" for prefix in (sys.prefix, sys.base_prefix)]
    system = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    return os.pathsep.join(dict.fromkeys([*own, *system]))


def _quoted(command: str) -> str:
    return "'" + command.replace("'", "'\\''") + "'"


def _with_note(told: str, note: str) -> str:
    if not note:
        return told
    between = "\n" if told and not told.endswith("\n") else ""
    return f"{told}{between}[shell] {note.rstrip()}\n"
