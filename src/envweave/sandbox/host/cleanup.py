"""Cleaning up after hosts that were killed: names identify the owner; the next host cleans up.

The kernel ends processes, mounts and sockets with their host. Temporary folders and cgroups remain.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
import tempfile
from pathlib import Path

from envweave.sandbox.host.work_dirs import remove_tree

_MARK = re.compile(r"envweave-(?P<space>\d+)-(?P<pid>\d+)-(?P<start>\d+)-.*")


def mark() -> str:
    """Return the prefix of the names of this host's resources, unique to this host.

    A process id alone is reused, and means another process in another namespace.
    """
    return _mark_of(os.getpid())


@functools.lru_cache(maxsize=1)  # keyed by the process id, which a fork changes
def _mark_of(pid: int) -> str:
    return f"envweave-{_pid_namespace()}-{pid}-{_start_of(pid)}"


def is_stale(name: str) -> bool:
    """Whether this is the name of a resource whose host is dead.

    Hosts in other PID namespaces cannot be checked; their resources count as in use.
    """
    found = _MARK.fullmatch(name)
    if found is None or int(found["space"]) != _pid_namespace():
        return False
    return _start_of(int(found["pid"])) != int(found["start"])


def new_folder(purpose: str) -> Path:
    """Make a temporary folder with this host's mark, accessible to this user only."""
    return Path(tempfile.mkdtemp(prefix=f"{mark()}-{purpose}-"))


def sweep_folders() -> int:
    """Remove the temporary folders of this user's dead hosts; return how many."""
    swept = 0
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if not is_stale(entry.name):
                continue
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                remove_tree(Path(entry.path))
                swept += 1
    return swept


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _start_of(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; `None` if there is no such process."""
    try:
        stat_line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    state, start = (stat_line.rpartition(b")")[2].split()[at] for at in (0, 19))
    return None if state in b"ZX" else int(start)
