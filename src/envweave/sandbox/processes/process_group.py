"""A session and its branches as one group, and signals and resource use of process trees."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envweave.sandbox.processes.process import SessionProcess


class ProcessGroup:
    """A session and its branches, which live in one PID namespace whose first process it is.

    The kernel kills them all with the first. So if the first is closed while branches live, it is
    only stopped, and killed together with the last of them.
    """

    def __init__(self) -> None:
        # Protects `_living` and `first`. A finalizer may run in the thread that holds it.
        self._lock = threading.RLock()
        self._living: dict[int, int] = {}
        self.first: SessionProcess | None = None
        self.copying = threading.Lock()  # held while one of them is copied

    def join(self, member: SessionProcess) -> None:
        """Add a member."""
        with self._lock:
            self._living[id(member)] = member.pid
            if self.first is None:
                self.first = member

    def has_dependents(self, member: SessionProcess) -> bool:
        """Whether branches still depend on this process."""
        with self._lock:
            return member is self.first and len(self._living.keys() - {id(member)}) > 0

    def pids(self) -> set[int]:
        """Return the process ids of the members, including a first one that is only stopped."""
        with self._lock:
            first = set() if self.first is None else {self.first.pid}
            return first.union(self._living.values())

    def leave(self, member: SessionProcess) -> None:
        """Remove a member; kill the first process with the last one."""
        with self._lock:
            self._living.pop(id(member), None)
            if self._living:
                return
            first, self.first = self.first, None
        if first is not None:
            first.finish()


_PAGE = os.sysconf("SC_PAGE_SIZE")
_READ_ONLY_BYTES = 64 << 20
"""How much private memory a process may have besides what its limit counts: libraries have some
that they write to once."""


# Of <linux/pidfd.h>: `PIDFD_INFO_EXIT` asks `PIDFD_GET_INFO` for the status.
_EXIT_INFO = 1 << 3
_GET_INFO_BYTES = 64
_GET_INFO = 3 << 30 | _GET_INFO_BYTES << 16 | 0xFF << 8 | 11


def cpu_s(pid: int) -> float:
    """Return the CPU time of all threads of a process, from the kernel's clock.

    Raises:
        OSError: There is no such process.
    """
    return time.clock_gettime(~pid << 3 | 2)  # CPUCLOCK_SCHED of another process


def exceed_memory(pids: Iterable[int], memory_bytes: int) -> bool:
    """Whether one of the processes has more memory than its limit should allow.

    The kernel's limit does not count memory that was written and then made read-only.
    """
    return any(_private_bytes(pid) > memory_bytes + _READ_ONLY_BYTES for pid in pids)


def _private_bytes(pid: int) -> int:
    """Return the anonymous memory of a process; 0 if there is no such process."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * _PAGE


def descendants(pid: int) -> list[int]:
    """Return the process ids of all descendants of a process, except orphans."""
    found: list[int] = []
    todo = [pid]
    while todo:
        one = todo.pop()
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{task}/children") as file:
                    children = list(map(int, file.read().split()))
                found += children
                todo += children
    return found


def signal_each(pids: Callable[[], Iterable[int]], number: int) -> None:
    """Signal all processes whose ids `pids` returns, until it returns no new ones."""
    signalled: set[int] = set()
    while True:
        handles: dict[int, int] = {}
        for pid in set(pids()) - signalled:
            with contextlib.suppress(OSError):
                handles[pid] = os.pidfd_open(pid)
        # A process still listed now was opened before: no reused id is signalled.
        members = set(pids())
        for pid, handle in handles.items():
            if pid in members:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, number)
            os.close(handle)
        signalled |= set(handles)
        if not handles:
            return


def exit_status(pidfd: int) -> int | None:
    """Return the `waitpid` status of a process that is gone, even if another process reaped it.

    `None` if it lives, or if the kernel is older than Linux 6.15.
    """
    info = bytearray(_GET_INFO_BYTES)
    info[:8] = _EXIT_INFO.to_bytes(8, sys.byteorder)
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:
        return None
    found, *_, status = struct.unpack("QQ11Ii", info)
    return status if found & _EXIT_INFO else None


def are_stopped(pids: Iterable[int]) -> bool:
    """Whether all of these processes are stopped or gone."""
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
            # In bytes: it contains the name of the process, which need not be valid text.
            if file.read().rpartition(b")")[2].split()[0] not in b"TtZX":
                return False
    return True
