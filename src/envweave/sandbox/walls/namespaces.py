"""Namespaces: a session sees no process, network, queue, host name or user but its own.

They stop: signals to and looks at other processes, every connection (the one network that the
sessions of a template share has not even a loopback device that is up), abstract sockets, System V
memory and message queues. Inside them user id 0 of the host is nobody.
"""

from __future__ import annotations

import os
from pathlib import Path

from envweave.sandbox.walls import calls, kernel

TEMPLATE = (
    kernel.NEW_MOUNTS
    | kernel.NEW_NETWORK
    | kernel.NEW_IPC
    | kernel.NEW_HOST_NAME
    | kernel.NEW_CGROUPS
)
"""What the sessions of one template share. A network costs half a millisecond to make, and one
that is empty can be shared."""

SESSION = kernel.NEW_PIDS | kernel.NEW_MOUNTS
"""What each session has to itself."""

USER = 1000
"""A session's user id as the template's namespace has it, where the host may not map more."""

HOST_NAME = b"sandbox"


def enter(identity: tuple[int, int]) -> None:
    """Enter the namespaces of a template as an ordinary user does: as root of one's own.

    Args:
        identity: The user and group id that this process has on the host. One of each is all
            that the kernel lets it map.
    """
    kernel.unshare(kernel.NEW_USERS | TEMPLATE)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{USER} {identity[0]} 1")
    Path("/proc/self/gid_map").write_text(f"{USER} {identity[1]} 1")
    name_host()


def enter_as_root() -> None:
    """Enter the namespaces of a template with the rights of root, who keeps them for now."""
    kernel.unshare(TEMPLATE)
    name_host()


def name_host() -> None:
    """Hide the host's name."""
    kernel.call("sethostname", HOST_NAME, len(HOST_NAME))


def leaving_users(processes: int, free: int) -> list[calls.Syscall]:
    """Return the calls by which a session enters a user namespace of its own.

    There its threads are counted apart: else the sessions of an ordinary user, who has but one id
    to give, would share one count and could use up each other's. The id is mapped to itself:
    without a map, a session could not be branched.

    Args:
        processes: A descriptor of the host's `/proc`, which is not seen from here.
        free: The lowest number that no open descriptor has.
    """
    user, group = os.getuid(), os.getgid()
    made = [calls.call("unshare", kernel.NEW_USERS)]
    for name, line in (
        (b"self/setgroups", b"deny"),
        (b"self/gid_map", b"%d %d 1" % (group, group)),
        (b"self/uid_map", b"%d %d 1" % (user, user)),
    ):
        made += [
            calls.call("openat", processes, name, os.O_WRONLY, result=free),
            calls.call("write", free, line, len(line), result=len(line)),
            calls.call("close", free),
        ]
    return made
