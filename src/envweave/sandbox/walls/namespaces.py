"""Namespaces: a session sees no process, network, queue, host name or user but its own.

They stop: signals to and inspection of other processes, every connection (in the one network that
the sessions of a template share, not even the loopback device is up), abstract sockets, System V
memory and message queues. Inside them user id 0 of the host is unmapped.
"""

from __future__ import annotations

import os
from pathlib import Path

from envweave.sandbox.walls import kernel

TEMPLATE = (
    kernel.NEW_MOUNTS
    | kernel.NEW_NETWORK
    | kernel.NEW_IPC
    | kernel.NEW_HOST_NAME
    | kernel.NEW_CGROUPS
)
"""Shared by the sessions of one template. Making a network takes half a millisecond, and an empty
one can be shared."""

SESSION = kernel.NEW_PIDS | kernel.NEW_MOUNTS
"""Separate for each session."""

USER = 1000
"""A session's user id in the template's namespace, where the host may not map more."""

HOST_NAME = b"sandbox"


def enter(identity: tuple[int, int]) -> None:
    """Enter the namespaces of a template as an ordinary user, through a new user namespace.

    Args:
        identity: The user and group id of this process on the host. The kernel lets it map only
            these.
    """
    kernel.unshare(kernel.NEW_USERS | TEMPLATE)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{USER} {identity[0]} 1")
    Path("/proc/self/gid_map").write_text(f"{USER} {identity[1]} 1")
    name_host()


def enter_as_root() -> None:
    """Enter the namespaces of a template as root, keeping root's rights for now."""
    kernel.unshare(TEMPLATE)
    name_host()


def name_host() -> None:
    """Hide the host's name."""
    kernel.call("sethostname", HOST_NAME, len(HOST_NAME))


def enter_user_namespace_calls(processes: int, free: int) -> list[kernel.Syscall]:
    """Return the calls by which a session enters a new user namespace.

    There its threads are counted separately: otherwise the sessions of an ordinary user, who has
    only one id, would share one count and could exhaust it for each other. The id is mapped to
    itself: without a map, a session could not be branched.

    Args:
        processes: A descriptor of the host's `/proc`, which is not visible here.
        free: The lowest free descriptor number.
    """
    user, group = os.getuid(), os.getgid()
    made = [kernel.deferred("unshare", kernel.NEW_USERS)]
    for name, line in (
        (b"self/setgroups", b"deny"),
        (b"self/gid_map", b"%d %d 1" % (group, group)),
        (b"self/uid_map", b"%d %d 1" % (user, user)),
    ):
        made += [
            kernel.deferred("openat", processes, name, os.O_WRONLY, result=free),
            kernel.deferred("write", free, line, len(line), result=len(line)),
            kernel.deferred("close", free),
        ]
    return made
