"""One session's cgroup: everything that its processes use together stays below one bound.

It stops what limits of single processes let through: a hundred processes that each keep to their
own memory limit, and a family that forks faster than anybody can kill it.
"""

from __future__ import annotations

import abc
import contextlib
import math
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envweave.errors import OptionError
from envweave.sandbox.processes.process_group import signal_each

_PERIOD_US = 100_000
_BATCH_BYTES = 1 << 20  # the kernel charges for several pages at once
_LEFT_BYTES = 1 << 20  # the kernel keeps some of its own memory for a while
_READ_BYTES = 64 << 10
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLimits:
    """What the processes of one session may use together.

    Attributes:
        memory_bytes: Memory, the files of its work folder included. No swap on top.
        processes: Processes and threads at once.
        cpus: Processor time, as a number of cores; `None` for no bound.
    """

    memory_bytes: int
    processes: int
    cpus: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("memory_bytes", 1 << 20), ("processes", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(
                    f"CgroupLimits({name}={value!r}): expected a whole number, at least {least}."
                )
        if self.cpus is not None and not (math.isfinite(self.cpus) and self.cpus >= 0.01):
            raise OptionError(
                f"CgroupLimits(cpus={self.cpus!r}): expected a number of cores, at least 0.01."
            )


class Cgroup(abc.ABC):
    """The cgroup of one session.

    Attributes:
        own_file: Where a process with one thread adds itself.
    """

    own_file = "cgroup.procs"

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders

    @property
    def folders(self) -> list[Path]:
        """Where it is; version 1 has one for each controller."""
        return list(self._folders)

    @abc.abstractmethod
    def limit(self, limits: CgroupLimits) -> None:
        """Set the bounds.

        Raises:
            OSError: The kernel refused.
        """

    @abc.abstractmethod
    def memory_hit(self) -> bool:
        """Say whether the kernel ended a process because they used too much memory together."""

    @abc.abstractmethod
    def kill_all(self) -> None:
        """Kill every process in it, however fast they fork. Harmless when it is empty or gone."""

    @abc.abstractmethod
    def is_drained(self) -> bool:
        """Say whether next to no memory is counted in it."""

    @abc.abstractmethod
    def is_as_new(self) -> bool:
        """Say whether it is drained and empty, and never met its limit."""

    def add(self, pid: int) -> None:
        """Put a process in it. What that process starts from then on is in it too.

        Raises:
            ProcessLookupError: It is gone already.
            OSError: The kernel refused.
        """
        for folder in self._folders:
            write(folder / "cgroup.procs", str(pid))

    @contextlib.contextmanager
    def open_files(self) -> Iterator[list[int]]:
        """Open what puts a thread into it that writes "0" to each.

        Raises:
            OSError: The kernel refused.
        """
        opened: list[int] = []
        try:
            flags = os.O_WRONLY | os.O_CLOEXEC
            opened.extend(os.open(folder / self.own_file, flags) for folder in self._folders)
            yield opened
        finally:
            for one in opened:
                os.close(one)

    def pids(self) -> list[int]:
        """Return the processes in it; none when it is gone."""
        found: set[int] = set()
        for folder in self._folders:
            with contextlib.suppress(OSError):
                found.update(map(int, _read(folder / "cgroup.procs").split()))
        return sorted(found - {0})

    def try_remove(self) -> bool:
        """Remove it if it is empty, and return whether it is gone."""
        self._folders = [folder for folder in self._folders if not _removed(folder)]
        return not self._folders

    def remove(self, timeout_s: float = 2.0) -> bool:
        """Kill what is left in it, and remove it as soon as it is empty.

        Returns:
            Whether it is gone. What is not, the next start of a sandbox removes.
        """
        deadline = time.monotonic() + timeout_s
        pause = _FIRST_PAUSE_S
        while True:
            if self.try_remove():
                return True
            if time.monotonic() > deadline:
                return False
            self.kill_all()
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)


class NewCgroup(Cgroup):
    """A cgroup of version 2."""

    def limit(self, limits: CgroupLimits) -> None:
        """Set the bounds; swap is forbidden."""
        (folder,) = self._folders
        write(folder / "memory.max", str(limits.memory_bytes))
        with contextlib.suppress(FileNotFoundError):  # a kernel that has no swap has no such file
            write(folder / "memory.swap.max", "0")
        write(folder / "pids.max", str(limits.processes))
        if limits.cpus is not None:
            write(folder / "cpu.max", f"{round(limits.cpus * _PERIOD_US)} {_PERIOD_US}")

    def memory_hit(self) -> bool:
        """Whether the cgroup hit its own memory limit and reclaim failed."""
        return any(_counters(one / "memory.events").get("oom", 0) > 0 for one in self._folders)

    def is_drained(self) -> bool:
        """Say whether next to no memory is left in it."""
        return all(_number(one / "memory.current") < _LEFT_BYTES for one in self._folders)

    def is_as_new(self) -> bool:
        """Say whether nothing is left in it."""
        if not self._folders or not self.is_drained() or self.pids():
            return False
        events = _counters(self._folders[0] / "memory.events")
        return not any(events.get(name, 1) for name in ("max", "oom", "oom_kill"))

    def kill_all(self) -> None:
        """Kill every process in it at once."""
        for folder in self._folders:
            try:
                write(folder / "cgroup.kill", "1")  # Linux 5.14
            except OSError:
                _kill_each(self, folder / "pids.max")


class OldCgroup(Cgroup):
    """A cgroup of version 1: a folder in the tree of each controller."""

    own_file = "tasks"  # unlike cgroup.procs it has nobody wait for the forks of others

    def __init__(self, by_controller: dict[str, Path]) -> None:
        super().__init__(list(dict.fromkeys(by_controller.values())))
        self._by_controller = by_controller

    def limit(self, limits: CgroupLimits) -> None:
        """Set the bounds; swap counts as memory."""
        memory = self._by_controller["memory"]
        write(memory / "memory.limit_in_bytes", str(limits.memory_bytes))
        with contextlib.suppress(FileNotFoundError):  # there where swap is counted
            write(memory / "memory.memsw.limit_in_bytes", str(limits.memory_bytes))
        write(self._by_controller["pids"] / "pids.max", str(limits.processes))
        if limits.cpus is not None:
            cpu = self._by_controller["cpu"]
            write(cpu / "cpu.cfs_period_us", str(_PERIOD_US))
            write(cpu / "cpu.cfs_quota_us", str(round(limits.cpus * _PERIOD_US)))

    def memory_hit(self) -> bool:
        """Say whether its own limit was met, and a process was killed."""
        memory = self._by_controller["memory"]
        # A limit that is met may be kept by reclaim; a kill may be for the whole machine's sake.
        if _counters(memory / "memory.oom_control").get("oom_kill") == 0:
            return False
        counters = ("memory.failcnt", "memory.memsw.failcnt")
        # Kernels differ in what they count as a failure; none lets the peak pass the limit.
        peak = _number(memory / "memory.max_usage_in_bytes")
        limit = _number(memory / "memory.limit_in_bytes")
        at_limit = 0 < limit < peak + _BATCH_BYTES
        return at_limit or any(_number(memory / one) for one in counters)

    def is_drained(self) -> bool:
        """Say whether next to no memory is left in it."""
        return _number(self._by_controller["memory"] / "memory.usage_in_bytes") < _LEFT_BYTES

    def is_as_new(self) -> bool:
        """Say whether nothing is left in it."""
        memory = self._by_controller["memory"]
        if not self.is_drained() or self.pids() or _number(memory / "memory.failcnt"):
            return False
        return _counters(memory / "memory.oom_control").get("oom_kill", 1) == 0

    def kill_all(self) -> None:
        """Kill every process in it, once none can fork."""
        _kill_each(self, self._by_controller["pids"] / "pids.max")


def _kill_each(group: Cgroup, most: Path) -> None:
    """Forbid `group` to fork, then kill its processes one by one, until no other appears."""
    with contextlib.suppress(OSError):
        write(most, "0")
    signal_each(group.pids, signal.SIGKILL)


def write(path: Path, text: str) -> None:
    """Write to a file of the kernel's, in one call and without making it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _read(path: Path) -> str:
    """Read a file of the kernel's, quicker than `Path.read_text` does."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # One call returns about a page of a list, however much is asked for.
        return b"".join(iter(lambda: os.read(descriptor, _READ_BYTES), b"")).decode()
    finally:
        os.close(descriptor)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _counters(path: Path) -> dict[str, int]:
    try:
        rows = [line.split() for line in _read(path).splitlines()]
    except OSError:
        return {}
    return {name: int(value) for name, value in rows}


def _number(path: Path) -> int:
    try:
        return int(_read(path))
    except OSError:
        return 0


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
