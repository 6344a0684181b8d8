"""The orders of the host to a template, and the template's reports, over their own socket.

The template runs none of the agent's code, but it is close to it: the host decodes its reports as
strictly as a session's messages.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Literal

import msgspec

from envweave.sandbox.protocol.messages import SpawnRequest

Isolation = Literal["namespace", "landlock", "none"]
"""What keeps sessions apart from the host and each other."""


class TemplatePlan(msgspec.Struct, frozen=True):
    """The configuration of a template. It is passed on the standard input of the process.

    Attributes:
        isolation: The walls to set up.
        shell: Whether sessions may start processes.
        preload: The modules that every session finds imported.
        path: Replaces `sys.path`; with isolation `none` it is added to the interpreter's own.
        visible: Folders and files of the host that sessions may read at least in part, at their
            own paths.
        hidden: What sessions may not read below these. For `namespace`.
        shown: What they may read below `hidden`, or outside `visible`. For `landlock`, which has
            no exceptions to its rules: all that they may read.
        listings: The names in folders of `path` that sessions may not list, by folder. For
            `landlock`.
        listed: The folders below which files may be listed but not read. For `landlock`.
        place: An empty folder to mount the root on.
        work: The folder in which the work folders of sessions are, without namespaces.
        cpu: The one core to run on; `None` for any.
        host: The process id of the host; the template ends with it.
        users: How many user ids the host can assign to sessions; 0 where it has no right to.
        first_user: The first of them in the host's namespace.
        native: Whether the compiled extension may be used.
        memory_counted: Whether the host puts each session into a cgroup that counts its memory.
        memory_bytes: As in `Limits`, like all that follow.
    """

    isolation: Isolation
    shell: bool
    preload: list[str]
    path: list[str]
    visible: list[str]
    hidden: list[str]
    shown: list[str]
    listings: dict[str, list[str]]
    listed: list[str]
    place: str
    work: str
    cpu: int | None
    host: int
    users: int
    first_user: int
    native: bool
    memory_counted: bool
    memory_bytes: int
    disk_bytes: int
    files: int
    open_files: int
    processes: int


class Spawn(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """Make sessions. Attached for each: the descriptor of its socket, then those of its cgroup.

    Attributes:
        cgroup_files: How many files each session writes to in order to join its cgroup.
    """

    requests: list[SpawnRequest]
    cgroup_files: int = 0


class GetExitStatus(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """Report how this process ended."""

    pid: int


class CopyFiles(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """Give a branch a copy of its work folder. Attached: descriptors of it and of its parent.

    Attributes:
        pid: The process id of the branch.
        user: The owner of the files, in the template's namespace.
        inodes: The files whose paths to report: those that the process has open.
    """

    pid: int
    user: int
    inodes: list[int]


Order = Spawn | GetExitStatus | CopyFiles


class MapUsers(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """Map the user ids of this process's namespace, then answer with a byte."""


class TemplateReady(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """The template is ready. Attached, where branching works: the descriptor of the fork gate.

    Attributes:
        missing: What this tier lacks here, as sentences.
        native: Whether the compiled extension is used.
        compact: Whether it reads compact orders, after one that is not.
    """

    missing: list[str]
    native: bool
    compact: bool = False


class OrderFailed(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """The template could not be made, or an order could not be carried out.

    Attributes:
        wall: The failed part: the name of a wall, or `preload`.
    """

    wall: str
    errno: int
    text: str


class Spawned(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """The process ids of the new sessions. Attached: their pidfds."""

    pids: list[int]


class ExitStatus(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """How a process ended: its `waitpid` status, or `None` while it lives."""

    status: int | None


class Copied(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """The work folder is copied: the paths of the requested files, by their old inodes."""

    paths: dict[int, str]


Report = MapUsers | TemplateReady | OrderFailed | Spawned | ExitStatus | Copied

_COMPACT_MARK = 0xC1  # no MessagePack message begins with it
_compact_header = struct.Struct("<BBBB")


def encode_compact(users: Sequence[int | None], each: int) -> bytes:
    """Return a `Spawn` order whose requests equal those of the last one but for the users.

    The compiled extension reads it, and answers with process ids in the same form: see `struct
    compact` in `_spawn.c`. Attached is the same as to a `Spawn` order.

    Args:
        users: The user id of each session; `None` for all or for none.
        each: How many descriptors are attached for each.
    """
    has_user = users[0] is not None
    ids = [-1 if one is None else one for one in users]
    header = _compact_header.pack(_COMPACT_MARK, len(ids), each, has_user)
    return header + struct.pack(f"<{len(ids)}i", *ids)


def is_compact(data: bytes) -> bool:
    """Whether it is a compact order or report."""
    return data[:1] == b"\xc1"


def decode_compact(data: bytes) -> tuple[list[int | None], int]:
    """Return the users of an order, or the process ids of a report; and `each` of an order.

    Raises:
        ValueError: It is not valid.
    """
    try:
        _, count, each, has_user = _compact_header.unpack_from(data)
        numbers = struct.unpack(f"<{count}i", data[_compact_header.size :])
    except struct.error as error:
        raise ValueError(f"An invalid compact message: {error}") from None
    is_report = each == 0
    return [one if has_user or is_report else None for one in numbers], each


MESSAGE_BYTES = 1 << 18
"""The largest message between host and template. A sequenced packet arrives complete or not."""
