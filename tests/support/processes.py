"""Processes, threads and file descriptors that a test starts or leaves behind."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

_SET_SUBREAPER, _GET_SUBREAPER = 36, 37


@dataclass(frozen=True, slots=True)
class Process:
    """A process, identified by its id and start time."""

    pid: int
    started: int
    parent: int
    name: str
    state: str

    def __str__(self) -> str:
        return f"{self.pid} ({self.name}, {self.state})"

    @property
    def is_dead(self) -> bool:
        """Whether it only waits for its parent to take notice."""
        return self.state in "ZX"

    def reap(self) -> None:
        """Reap a dead child of this process that is not waited for elsewhere."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)

    def kill(self) -> None:
        """End it, unless it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def read_process(pid: int) -> Process | None:
    """Return the process with this number; `None` if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - read by the thousand
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name is in brackets, and may have brackets and spaces in it.
    name, _, rest = text.partition(b"(")[2].rpartition(b")")
    fields = rest.split()
    started, parent, state = int(fields[19]), int(fields[1]), fields[0].decode()
    return Process(pid, started, parent, name.decode(errors="replace"), state)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    process = read_process(pid)
    return process is not None and not process.is_dead


def cpu_s(pid: int) -> float:
    """Return the CPU time that all threads of a process have used."""
    return time.clock_gettime(~pid << 3 | 2)  # CPUCLOCK_SCHED of another process


def descendants(of: int | None = None) -> set[Process]:
    """Return the processes below one, this one by default."""
    of = os.getpid() if of is None else of
    children: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - read by the thousand
        process = read_process(int(name)) if name.isdigit() else None
        if process is not None:
            children.setdefault(process.parent, []).append(process)
    found: set[Process] = set()
    row = [of]
    while row:
        below = [child for pid in row for child in children.get(pid, [])]
        found.update(below)
        row = [child.pid for child in below]
    return found


@contextlib.contextmanager
def keeping_orphans() -> Iterator[None]:
    """Become the parent of descendants whose parents die, so that none gets out of sight."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before = ctypes.c_int()
    prctl(_GET_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(_SET_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_SET_SUBREAPER, before.value, 0, 0, 0)


@final
class Leftovers:
    """Knows what was there when it was made, and tells what has come since and is still there.

    What earlier tests dropped without closing it is gone before: it cannot go in mid-test.
    """

    def __init__(self) -> None:
        gc.collect()
        self._threads = set(threading.enumerate())
        self._descriptors = _descriptors()

    def threads(self, named: str = "") -> list[threading.Thread]:
        """Return the threads that have come, or those of them with this in their name."""
        new = set(threading.enumerate()) - self._threads
        return [one for one in new if named in one.name]

    def descriptors(self) -> list[tuple[int, str]]:
        """Return the descriptors that have come, and of what: also where the number is old."""
        return sorted(_descriptors() - self._descriptors)


def _descriptors() -> set[tuple[int, str]]:
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a name, and no path
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))  # noqa: PTH115
    return found
