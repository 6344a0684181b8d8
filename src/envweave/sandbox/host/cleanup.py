"""What hosts leave that are killed: names say whose a thing is, and the next host removes it.

Processes, mounts and sockets end with their host, by the kernel's hand. Folders of temporary files
and cgroups have names, and stay.
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
    """Return how the names of this host's things begin: no other host's ever do.

    A process id alone comes again, and means another process in another namespace.
    """
    return _mark_of(os.getpid())


@functools.lru_cache(maxsize=1)  # by the id, which a fork changes
def _mark_of(pid: int) -> str:
    return f"envweave-{_space()}-{pid}-{_start_of(pid)}"


def is_left(name: str) -> bool:
    """Say whether this is the name of something whose host is dead.

    Of hosts in other PID namespaces nobody can tell; what is theirs counts as in use.
    """
    found = _MARK.fullmatch(name)
    if found is None or int(found["space"]) != _space():
        return False
    return _start_of(int(found["pid"])) != int(found["start"])


def new_folder(what: str) -> Path:
    """Make a folder for temporary files with this host's mark, for this user alone."""
    return Path(tempfile.mkdtemp(prefix=f"{mark()}-{what}-"))


def sweep_folders() -> int:
    """Remove the folders for temporary files of this user's dead hosts; return how many."""
    swept = 0
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if not is_left(entry.name):
                continue
            about = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid():
                remove_tree(Path(entry.path))
                swept += 1
    return swept


def _space() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _start_of(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; `None` if there is none."""
    try:
        about = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    state, start = (about.rpartition(b")")[2].split()[at] for at in (0, 19))
    return None if state in b"ZX" else int(start)
