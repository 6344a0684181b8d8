"""Resource limits: what one process of a session may use.

They stop a session that exhausts memory, open files, the disk by one file, or processes. Most count
per process (RLIMIT_NPROC and a few others per user), so control groups, where the host may make
them, also limit the session as a whole.
"""

from __future__ import annotations

import contextlib
import os
import resource
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

from envweave.sandbox.walls import kernel

if TYPE_CHECKING:
    from envweave.sandbox.execution import Limits

ADDRESS_SPACE = 1 << 30
"""How much more address space than memory a process may have. Libraries, files mapped for reading
and guard pages use addresses but no memory; shared memory is counted by its addresses only."""

_STACK = 8 << 20
_PENDING_SIGNALS = 64


def for_session(
    limits: Limits, *, counted_with: int, address_space_bytes: int = ADDRESS_SPACE
) -> dict[int, int]:
    """Return the limits of a session's process, by the numbers of `resource`.

    Args:
        limits: The limits of the sandbox.
        counted_with: How many processes and threads this user has besides the session's: 0 where
            those are counted separately, by a separate user id or user namespace.
        address_space_bytes: What its libraries use besides its memory.
    """
    session_limits = {
        # Not 0: a program that the host pipes core dumps to would still get one.
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
    session_limits[resource.RLIMIT_NPROC] = limits.processes + counted_with
    return session_limits


def count_tasks(user: int) -> int:
    """Return how many processes and threads a user has."""
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == user:
                count += len(os.listdir(f"/proc/{pid}/task"))
    return count


def apply(values: Mapping[int, int]) -> None:
    """Set soft and hard limits, so that this process cannot raise them again.

    A hard limit that is already lower stays: raising it needs privileges.
    """
    kernel.perform(apply_calls(values))


def apply_calls(values: Mapping[int, int]) -> list[kernel.Syscall]:
    """Return the calls that `apply` makes, for a process with the current limits of this one."""
    made = []
    for kind, value in values.items():
        _, hard = resource.getrlimit(kind)
        lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
        made.append(kernel.deferred("prlimit64", 0, kind, struct.pack("<QQ", lowest, lowest), 0))
    return made
