"""Where this process sits among the cgroups, and where below it others can be made.

The old kind of cgroup (version 1) has a tree for each controller; the new (version 2) has one for
all of them, in which a folder that limits its children may hold no process itself.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NEEDED = frozenset({"memory", "pids"})
"""The controllers without which a cgroup bounds nothing that matters here."""

ASIDE = "-host"
"""How the name of a folder ends that a host stepped into."""

_INITIAL_NAMESPACE = 0xEFFF_FFFB  # the inode number that the kernel gives the first one


class UnusableError(Exception):
    """No cgroup can be made here; the message is a sentence that says why."""


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of this process's cgroups, as far as they are mounted here.

    Attributes:
        old: For each controller of version 1, the folder.
        new: The folder of version 2; `None` if it is not mounted.
        top: Where version 2 is mounted; `None` likewise.
    """

    old: dict[str, Path]
    new: Path | None
    top: Path | None


def find_places(proc: Path = Path("/proc")) -> Places:
    """Look up the cgroups of this process."""
    try:
        memberships = (proc / "self/cgroup").read_text().splitlines()
        mounts = (proc / "self/mountinfo").read_text().splitlines()
    except OSError:
        return Places({}, None, None)
    paths: dict[str, str] = {}
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    old: dict[str, Path] = {}
    new: Path | None = None
    top: Path | None = None
    for line in mounts:
        left, _, right = line.partition(" - ")
        root, where = left.split(" ")[3:5]
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup2" and "" in paths and new is None:
            top = Path(_unescaped(where))
            new = _folder(top, _unescaped(root), paths[""])
        elif kind == "cgroup":
            for controller in set(options.split(",")) & set(paths) - set(old):
                folder = _folder(Path(_unescaped(where)), _unescaped(root), paths[controller])
                if folder is not None:
                    old[controller] = folder
    return Places(old, new, top)


def _folder(mount: Path, root: str, path: str) -> Path | None:
    """Return where the cgroup `path` appears under a mount that shows the tree from `root` on."""
    try:
        inside = Path(path).relative_to(root)
    except ValueError:
        return None
    folder = mount / inside
    return folder if ".." not in inside.parts and folder.is_dir() else None


def _unescaped(text: str) -> str:
    """Undo the octal escapes of /proc/self/mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def find_old(places: Places) -> dict[str, Path]:
    """Return the folders of version 1 below which cgroups can be made.

    Raises:
        UnusableError: The controllers are not there, or not for this process to use.
    """
    missing = NEEDED - set(places.old)
    if missing:
        raise UnusableError(f"No cgroup tree has {_listed(missing)}.")
    usable = {name: places.old[name] for name in ("memory", "pids", "cpu") if name in places.old}
    for name, folder in usable.items():
        if name in NEEDED and not os.access(folder, os.W_OK | os.X_OK):
            raise UnusableError(f"{folder} is not for this process to write in.")
    return {name: folder for name, folder in usable.items() if os.access(folder, os.W_OK)}


def find_new(places: Places, mark: str) -> Path:
    """Return the folder of version 2 below which cgroups can be made, its controllers turned on.

    Where only this process and its children sit in a folder that was given to it, they step into
    a new one below, named by `mark`, for the sake of the rule about processes in folders. Others
    that they start find themselves there, and use the same folder.

    Raises:
        UnusableError: There is no such folder.
    """
    own, top = places.new, places.top
    if own is None or top is None:
        raise UnusableError("Cgroups of version 2 are not mounted where this process sees its own.")
    reasons = []
    for folder in _candidates(own, top):
        try:
            _turn_on(folder, own, mark)
        except UnusableError as error:
            reasons.append(str(error))
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}.")
        else:
            return folder
    raise UnusableError(reasons[0])


def _candidates(own: Path, top: Path) -> list[Path]:
    """Return the folders to try: where an earlier host stepped aside, the one it stepped out of."""
    if own == top:
        return [own]
    return [own.parent] if own.name.endswith(ASIDE) else [own, own.parent]


def _turn_on(folder: Path, own: Path, mark: str) -> None:
    available = set((folder / "cgroup.controllers").read_text().split())
    if not available >= NEEDED:
        raise UnusableError(f"{folder} has not {_listed(NEEDED - available)} to pass on.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UnusableError(f"{folder} is not for this process to write in.")
    if not _is_delegated(folder, own):
        raise UnusableError(f"{folder} belongs to the system's manager of cgroups: not delegated.")
    switch = folder / "cgroup.subtree_control"
    wanted = NEEDED | ({"cpu"} & available)
    if set(switch.read_text().split()) >= wanted:
        return
    with _stepped_aside(folder, own, mark):
        switch.write_text(" ".join(f"+{name}" for name in sorted(wanted)))


def _is_delegated(folder: Path, own: Path) -> bool:
    """Say whether whoever manages cgroups here has left this folder to its users.

    A cgroup outside would escape the limits that an operator set on this process's own.
    """
    if Path("/proc/self/ns/cgroup").stat().st_ino != _INITIAL_NAMESPACE:
        return True
    for attribute in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(folder, attribute) == b"1":
                return True
    if not (folder / "cgroup.events").exists():  # the root of all, on a machine without a manager
        return os.geteuid() == 0 and folder == own
    is_own = folder == own or own.name.endswith(ASIDE)
    return is_own and 0 != folder.stat().st_uid == os.geteuid()


@contextlib.contextmanager
def _stepped_aside(folder: Path, own: Path, mark: str) -> Iterator[None]:
    """Move the processes of `folder` into one below; back again if what follows fails."""
    procs = folder / "cgroup.procs"
    pids = [int(line) for line in procs.read_text().split()]
    if not pids or not (folder / "cgroup.events").exists():
        yield
        return
    family = _family()
    if folder != own or not family.issuperset(pids):
        others = len(set(pids) - family)
        raise UnusableError(f"{folder} holds {others} processes of others, so it cannot be shared.")
    leaf = folder / mark
    leaf.mkdir(exist_ok=True)
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (leaf / "cgroup.procs").write_text(str(pid))
        yield
    except OSError:
        for pid in pids:
            with contextlib.suppress(OSError):
                procs.write_text(str(pid))
        with contextlib.suppress(OSError):
            leaf.rmdir()
        raise


def _family() -> set[int]:
    """Return the ids of this process and of all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, todo = set(), [os.getpid()]
    while todo:
        one = todo.pop()
        found.add(one)
        todo += children.get(one, [])
    return found


def _listed(names: frozenset[str] | set[str]) -> str:
    return " and ".join(f"the {name} controller" for name in sorted(names))
