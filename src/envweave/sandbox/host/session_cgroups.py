"""The cgroup of one session, for versions 1 and 2, and where cgroups can be made.

It limits what the processes of a session use together, and so stops what limits of single processes
let through: a hundred processes that each keep to their own memory limit, and processes that fork
faster than they can be killed.
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
_RESIDUAL_BYTES = 1 << 20  # the kernel keeps some of its own memory for a while
_READ_BYTES = 64 << 10
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.0005, 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLimits:
    """What the processes of one session may use together.

    Attributes:
        memory_bytes: Memory, the files of its work folder included. No swap on top.
        processes: Processes and threads at once.
        cpus: CPU time, as a number of cores; `None` for no limit.
    """

    memory_bytes: int
    processes: int
    cpus: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("memory_bytes", 1 << 20), ("processes", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(
                    f"CgroupLimits({name}={value!r}): expected an integer of at least {least}."
                )
        if self.cpus is not None and not (math.isfinite(self.cpus) and self.cpus >= 0.01):
            raise OptionError(
                f"CgroupLimits(cpus={self.cpus!r}): expected a number of cores, at least 0.01."
            )


class Cgroup(abc.ABC):
    """The cgroup of one session.

    Attributes:
        own_file: Where a process with one thread adds itself by writing "0".
    """

    own_file = "cgroup.procs"

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders

    @property
    def folders(self) -> list[Path]:
        """Its folders; version 1 has one for each controller."""
        return list(self._folders)

    @abc.abstractmethod
    def limit(self, limits: CgroupLimits) -> None:
        """Set the limits.

        Raises:
            OSError: The kernel refused.
        """

    @abc.abstractmethod
    def memory_hit(self) -> bool:
        """Whether the kernel killed a process because they used too much memory together."""

    @abc.abstractmethod
    def kill_all(self) -> None:
        """Kill every process in it, however fast they fork. Harmless when it is empty or gone."""

    @abc.abstractmethod
    def is_drained(self) -> bool:
        """Whether almost no memory is charged to it."""

    @abc.abstractmethod
    def is_reusable(self) -> bool:
        """Whether it is drained and empty, and never reached its limit."""

    def add(self, pid: int) -> None:
        """Add a process. What that process starts from then on is in it too.

        Raises:
            ProcessLookupError: The process is already gone.
            OSError: The kernel refused.
        """
        for folder in self._folders:
            write(folder / "cgroup.procs", str(pid))

    @contextlib.contextmanager
    def open_files(self) -> Iterator[list[int]]:
        """Open the files that a thread joins it by, by writing "0" to each.

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
        """Return the ids of the processes in it; none when it is gone."""
        found: set[int] = set()
        for folder in self._folders:
            with contextlib.suppress(OSError):
                found.update(map(int, _read(folder / "cgroup.procs").split()))
        return sorted(found - {0})

    def try_remove(self) -> bool:
        """Remove it if it is empty; return whether it is gone."""
        self._folders = [folder for folder in self._folders if not _removed(folder)]
        return not self._folders

    def remove(self, timeout_s: float = 2.0) -> bool:
        """Kill what is left in it, and remove it as soon as it is empty.

        Returns:
            Whether it is gone. If not, the next start of a sandbox removes it.
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
            pause = min(pause * 2, _MAX_PAUSE_S)


class CgroupV2(Cgroup):
    """A cgroup of version 2."""

    def limit(self, limits: CgroupLimits) -> None:
        """Set the limits; swap is not allowed."""
        (folder,) = self._folders
        write(folder / "memory.max", str(limits.memory_bytes))
        with contextlib.suppress(FileNotFoundError):  # missing in kernels without swap
            write(folder / "memory.swap.max", "0")
        write(folder / "pids.max", str(limits.processes))
        if limits.cpus is not None:
            write(folder / "cpu.max", f"{round(limits.cpus * _PERIOD_US)} {_PERIOD_US}")

    def memory_hit(self) -> bool:
        """Whether the cgroup hit its own memory limit and reclaim failed."""
        return any(_counters(one / "memory.events").get("oom", 0) > 0 for one in self._folders)

    def is_drained(self) -> bool:
        """Whether almost no memory is charged to it."""
        return all(_number(one / "memory.current") < _RESIDUAL_BYTES for one in self._folders)

    def is_reusable(self) -> bool:
        """Whether a new session can use it."""
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


class CgroupV1(Cgroup):
    """A cgroup of version 1: a folder in the tree of each controller."""

    own_file = "tasks"  # unlike cgroup.procs, writing to it does not wait for other forks

    def __init__(self, by_controller: dict[str, Path]) -> None:
        super().__init__(list(dict.fromkeys(by_controller.values())))
        self._by_controller = by_controller

    def limit(self, limits: CgroupLimits) -> None:
        """Set the limits; swap counts as memory."""
        memory = self._by_controller["memory"]
        write(memory / "memory.limit_in_bytes", str(limits.memory_bytes))
        with contextlib.suppress(FileNotFoundError):  # exists where swap is counted
            write(memory / "memory.memsw.limit_in_bytes", str(limits.memory_bytes))
        write(self._by_controller["pids"] / "pids.max", str(limits.processes))
        if limits.cpus is not None:
            cpu = self._by_controller["cpu"]
            write(cpu / "cpu.cfs_period_us", str(_PERIOD_US))
            write(cpu / "cpu.cfs_quota_us", str(round(limits.cpus * _PERIOD_US)))

    def memory_hit(self) -> bool:
        """Whether it reached its own limit and a process was killed."""
        memory = self._by_controller["memory"]
        # Reclaim may resolve a limit that was reached; a kill may be due to the whole machine.
        if _counters(memory / "memory.oom_control").get("oom_kill") == 0:
            return False
        counters = ("memory.failcnt", "memory.memsw.failcnt")
        # Kernels differ in what they count as a failure; in all, the peak stays below the limit.
        peak = _number(memory / "memory.max_usage_in_bytes")
        limit = _number(memory / "memory.limit_in_bytes")
        at_limit = 0 < limit < peak + _BATCH_BYTES
        return at_limit or any(_number(memory / one) for one in counters)

    def is_drained(self) -> bool:
        """Whether almost no memory is charged to it."""
        return _number(self._by_controller["memory"] / "memory.usage_in_bytes") < _RESIDUAL_BYTES

    def is_reusable(self) -> bool:
        """Whether a new session can use it."""
        memory = self._by_controller["memory"]
        if not self.is_drained() or self.pids() or _number(memory / "memory.failcnt"):
            return False
        return _counters(memory / "memory.oom_control").get("oom_kill", 1) == 0

    def kill_all(self) -> None:
        """Kill every process in it, once none can fork."""
        _kill_each(self, self._by_controller["pids"] / "pids.max")


def _kill_each(group: Cgroup, pids_max: Path) -> None:
    """Forbid `group` to fork, then kill its processes one by one, until no new one appears."""
    with contextlib.suppress(OSError):
        write(pids_max, "0")
    signal_each(group.pids, signal.SIGKILL)


def write(path: Path, text: str) -> None:
    """Write to an existing kernel file, in one call."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _read(path: Path) -> str:
    """Read a kernel file, faster than `Path.read_text`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # One call returns about a page of a list, whatever the size of the buffer.
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


REQUIRED = frozenset({"memory", "pids"})
"""The controllers without which a cgroup is useless here."""

HOST_SUFFIX = "-host"
"""The suffix of the folder that a host moved itself into."""

_INITIAL_NAMESPACE = 0xEFFF_FFFB  # the inode number that the kernel gives the first one


class CgroupsUnavailableError(Exception):
    """No cgroup can be made here; the message says why."""


@dataclass(frozen=True, slots=True)
class CgroupPaths:
    """The folders of this process's cgroups, where they are mounted.

    Attributes:
        v1: The folder of each controller of version 1.
        v2: The folder of version 2; `None` if it is not mounted.
        v2_root: Where version 2 is mounted; `None` likewise.
    """

    v1: dict[str, Path]
    v2: Path | None
    v2_root: Path | None


def find_cgroup_paths(proc: Path = Path("/proc")) -> CgroupPaths:
    """Look up the cgroups of this process."""
    try:
        memberships = (proc / "self/cgroup").read_text().splitlines()
        mounts = (proc / "self/mountinfo").read_text().splitlines()
    except OSError:
        return CgroupPaths({}, None, None)
    members: dict[str, str] = {}
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        members |= dict.fromkeys(controllers.split(","), path)
    v1: dict[str, Path] = {}
    v2: Path | None = None
    v2_root: Path | None = None
    for line in mounts:
        left, _, right = line.partition(" - ")
        root, where = left.split(" ")[3:5]
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup2" and "" in members and v2 is None:
            v2_root = Path(_unescaped(where))
            v2 = _folder(v2_root, _unescaped(root), members[""])
        elif kind == "cgroup":
            for controller in set(options.split(",")) & set(members) - set(v1):
                folder = _folder(Path(_unescaped(where)), _unescaped(root), members[controller])
                if folder is not None:
                    v1[controller] = folder
    return CgroupPaths(v1, v2, v2_root)


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


def find_v1(paths: CgroupPaths) -> dict[str, Path]:
    """Return the folders of version 1 below which cgroups can be made.

    Raises:
        CgroupsUnavailableError: A controller is missing, or this process may not use it.
    """
    missing = REQUIRED - set(paths.v1)
    if missing:
        raise CgroupsUnavailableError(f"No cgroup tree has {_listed(missing)}.")
    usable = {name: paths.v1[name] for name in ("memory", "pids", "cpu") if name in paths.v1}
    for name, folder in usable.items():
        if name in REQUIRED and not os.access(folder, os.W_OK | os.X_OK):
            raise CgroupsUnavailableError(f"{folder} is not writable by this process.")
    return {name: folder for name, folder in usable.items() if os.access(folder, os.W_OK)}


def find_v2(paths: CgroupPaths, mark: str) -> Path:
    """Return the folder of version 2 below which cgroups can be made, with its controllers enabled.

    A cgroup with processes cannot have children with controllers. So if only this process and its
    children are in a folder that is delegated to it, they move to a new one below, named `mark`.
    Processes that they start later are there too, and use the same folder.

    Raises:
        CgroupsUnavailableError: There is no such folder.
    """
    own, top = paths.v2, paths.v2_root
    if own is None or top is None:
        raise CgroupsUnavailableError("The cgroup v2 folder of this process is not mounted.")
    reasons = []
    for folder in _candidates(own, top):
        try:
            _enable_controllers(folder, own, mark)
        except CgroupsUnavailableError as error:
            reasons.append(str(error))
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}.")
        else:
            return folder
    raise CgroupsUnavailableError(reasons[0])


def _candidates(own: Path, top: Path) -> list[Path]:
    """Return the folders to try; if an earlier host moved into `own`, only the one above."""
    if own == top:
        return [own]
    return [own.parent] if own.name.endswith(HOST_SUFFIX) else [own, own.parent]


def _enable_controllers(folder: Path, own: Path, mark: str) -> None:
    available = set((folder / "cgroup.controllers").read_text().split())
    if not available >= REQUIRED:
        raise CgroupsUnavailableError(f"{folder} cannot delegate {_listed(REQUIRED - available)}.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CgroupsUnavailableError(f"{folder} is not writable by this process.")
    if not _is_delegated(folder, own):
        raise CgroupsUnavailableError(
            f"{folder} belongs to the system's cgroup manager and is not delegated."
        )
    switch = folder / "cgroup.subtree_control"
    controllers = REQUIRED | ({"cpu"} & available)
    if set(switch.read_text().split()) >= controllers:
        return
    with _moved_below(folder, own, mark):
        switch.write_text(" ".join(f"+{name}" for name in sorted(controllers)))


def _is_delegated(folder: Path, own: Path) -> bool:
    """Whether the cgroup manager of the system delegated this folder.

    A cgroup outside would escape the limits that an operator set on this process.
    """
    if Path("/proc/self/ns/cgroup").stat().st_ino != _INITIAL_NAMESPACE:
        return True
    for attribute in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(folder, attribute) == b"1":
                return True
    if not (folder / "cgroup.events").exists():  # the root cgroup, on a machine without a manager
        return os.geteuid() == 0 and folder == own
    is_own = folder == own or own.name.endswith(HOST_SUFFIX)
    return is_own and 0 != folder.stat().st_uid == os.geteuid()


@contextlib.contextmanager
def _moved_below(folder: Path, own: Path, mark: str) -> Iterator[None]:
    """Move the processes of `folder` into one below; undo that if the body fails."""
    procs = folder / "cgroup.procs"
    pids = [int(line) for line in procs.read_text().split()]
    if not pids or not (folder / "cgroup.events").exists():
        yield
        return
    own_tree = _process_tree()
    if folder != own or not own_tree.issuperset(pids):
        others = len(set(pids) - own_tree)
        raise CgroupsUnavailableError(f"{folder} contains {others} unrelated processes.")
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


def _process_tree() -> set[int]:
    """Return the ids of this process and all its descendants."""
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
