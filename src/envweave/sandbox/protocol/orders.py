"""What the host tells a template, and what it answers, over their own socket.

The template runs no code of an agent's, but it runs in the agent's neighbourhood: the host reads
its answers as strictly as a session's.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from envweave.sandbox.protocol.messages import SpawnRequest

Isolation = Literal["namespace", "landlock", "none"]
"""What keeps sessions apart from the host and each other."""


class TemplatePlan(msgspec.Struct, frozen=True):
    """How a template is to be. It travels on the command's standard input.

    Attributes:
        isolation: The walls to put up.
        shell: Whether sessions may start processes.
        preload: The modules that every session finds imported.
        path: Where modules are looked for: the whole `sys.path`, but without walls, where it is
            added to the interpreter's own.
        visible: Folders and files of the host of which sessions may read at least something, at
            their own paths.
        hidden: What sessions may not read below these. For `namespace`.
        shown: What they may read nevertheless, or besides. For `landlock`, which knows no
            exceptions: all that they may read.
        listings: The names in folders of `path` that sessions may not list, by folder. For
            `landlock`.
        listed: The folders below which files may be listed, and not read. For `landlock`.
        place: An empty folder, for the root to be mounted on.
        work: The folder in which the work folders of sessions are, without namespaces.
        cpu: The one core to run on; `None` for any.
        host: The process id of the host, whose end is the template's.
        users: How many user ids the host gives away to sessions; 0 where it may not.
        first_user: The first of them in the host's namespace.
        native: Whether the compiled extension may be used.
        memory_counted: Whether the host puts each session into a cgroup that counts its memory.
        memory_bytes: As in `Limits`, as all that follow.
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
    """Make sessions. For each a descriptor of its socket comes along, and then those of its cgroup.

    Attributes:
        cgroup_files: How many files each writes to so that it is in its cgroup.
    """

    births: list[SpawnRequest]
    cgroup_files: int = 0


class Ask(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """Say how this process ended."""

    pid: int


class CopyFiles(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """Give a branch a copy of its work folder. Descriptors of it and of its parent come along.

    Attributes:
        pid: Of the branch.
        user: Whose the files are, in the template's namespace.
        inodes: Whose paths to report: the files that the process has open.
    """

    pid: int
    user: int
    inodes: list[int]


Order = Spawn | Ask | CopyFiles


class MapUsers(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """Map the user ids of this process's namespace, then answer with a byte."""


class Up(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """The template stands. With branches, the gate's descriptor comes along.

    Attributes:
        missing: What this tier has not got here, as sentences.
        native: Whether the compiled extension is used.
    """

    missing: list[str]
    native: bool


class Down(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """The template could not be made, or an order not carried out.

    Attributes:
        wall: What it was about: the name of a wall, or `preload`.
    """

    wall: str
    errno: int
    text: str


class Spawned(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """The process ids of the new sessions; descriptors of them come along."""

    pids: list[int]


class ProcessEnded(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """How a process ended: what `waitpid` told, or `None` while it lives."""

    status: int | None


class Copied(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """The work folder is copied: the paths of the files asked about, by their old inodes."""

    paths: dict[int, str]


Report = MapUsers | Up | Down | Spawned | ProcessEnded | Copied

MESSAGE_BYTES = 1 << 18
"""The largest message between host and template. A sequenced packet arrives whole or not at all."""
