"""Resource limits: what one process of a session may use up.

They stop a session that fills memory, the table of open files, a disk by one file, or the table of
processes. They count by process (by user, where said), so control groups, where the host may make
them, count the session as a whole besides.
"""

from __future__ import annotations

import contextlib
import os
import resource
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

from envweave.sandbox.walls import calls

if TYPE_CHECKING:
    from envweave.sandbox.limits import Limits

ADDRESS_SPACE = 1 << 30
"""How much more address space than memory a process may have. Libraries, files mapped for reading
and guard pages take addresses and no memory; shared memory is counted by its addresses alone."""

_STACK = 8 << 20
_PENDING_SIGNALS = 64


def for_session(
    limits: Limits, *, counted_with: int, address_space_bytes: int = ADDRESS_SPACE
) -> dict[int, int]:
    """Return the limits of a session's process, by the numbers of `resource`.

    Args:
        limits: What the caller asked for.
        counted_with: How many processes and threads this user has beside the session's: 0 where
            those are counted alone, by a user id or a user namespace of their own.
        address_space_bytes: What its libraries take beside its memory.
    """
    wanted = {
        # Not 0: a program that the host pipes its cores to would still be given one.
        resource.RLIMIT_CORE: 1,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_FSIZE: limits.disk_bytes,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_DATA: limits.memory_bytes,
        resource.RLIMIT_AS: limits.memory_bytes + address_space_bytes,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: _PENDING_SIGNALS,
        resource.RLIMIT_STACK: _STACK,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
    }
    wanted[resource.RLIMIT_NPROC] = limits.processes + counted_with
    return wanted


def count_tasks(user: int) -> int:
    """Return how many processes and threads a user has."""
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == user:
                count += len(os.listdir(f"/proc/{pid}/task"))
    return count


def apply(wanted: Mapping[int, int]) -> None:
    """Set limits, hard ones too, so that this process cannot raise them again.

    A limit that this process has and that is lower already stays: it may not be raised by whoever
    has no right to.
    """
    calls.perform(applying(wanted))


def applying(wanted: Mapping[int, int]) -> list[calls.Syscall]:
    """Return the calls of `apply`, for a process with the limits that this one has."""
    made = []
    for kind, value in wanted.items():
        _, hard = resource.getrlimit(kind)
        lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
        made.append(calls.call("prlimit64", 0, kind, struct.pack("<QQ", lowest, lowest), 0))
    return made
