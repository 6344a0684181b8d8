"""How much memory a process and its children take."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_PROC = Path("/proc")


def tree_bytes(pid: int | None = None) -> int | None:
    """Return the memory of a process and of all that descend from it.

    Memory that processes share counts once, split among those who share it. `None` where the
    system does not tell.
    """
    root = os.getpid() if pid is None else pid
    found = [_process_bytes(one) for one in _tree(root)]
    counted = [one for one in found if one is not None]
    return sum(counted) if counted else None


def children_of(pid: int | None = None) -> list[int]:
    """Return the processes that descend from this one, or from `pid`."""
    root = os.getpid() if pid is None else pid
    return [one for one in _tree(root) if one != root]


def _tree(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in _PROC.glob("[0-9]*/stat") if _PROC.is_dir() else ():
        with contextlib.suppress(OSError, ValueError, IndexError):  # it ended meanwhile
            # The name, in parentheses, may hold blanks and parentheses itself.
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    tree, fresh = [root], [root]
    while fresh:
        fresh = [pid for pid, parent in parents.items() if parent in fresh]
        tree += fresh
    return tree


def _process_bytes(pid: int) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int((_PROC / str(pid) / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return None
