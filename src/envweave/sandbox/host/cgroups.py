"""Making cgroups for sessions, pooling them, and removing those of hosts that died.

    found = find_cgroups()
    if found.cgroups is not None:
        group = found.cgroups.create("box", CgroupLimits(memory_bytes=1 << 30, processes=64))
        group.add(pid)
        ...
        group.remove()

Whether they can be made is determined by making one, with a process in it.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envweave.errors import OptionError, SandboxError
from envweave.sandbox.host.cleanup import is_stale, mark
from envweave.sandbox.host.session_cgroups import (
    HOST_SUFFIX,
    Cgroup,
    CgroupLimits,
    CgroupPaths,
    CgroupsUnavailableError,
    CgroupV1,
    CgroupV2,
    find_cgroup_paths,
    find_v1,
    find_v2,
)

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_SIBLINGS = 1000
_PROBE_S = 10.0
_PROBE = CgroupLimits(memory_bytes=64 << 20, processes=8)


@dataclass(frozen=True, slots=True)
class FoundCgroups:
    """The result of `find_cgroups`.

    Attributes:
        cgroups: Makes them; `None` if this process cannot.
        reason: Why it cannot, as a sentence; empty if it can.
    """

    cgroups: Cgroups | None
    reason: str = ""


_serial = itertools.count()
"""Numbers all cgroups of this process."""


class Cgroups:
    """Makes cgroups below the one that this process is in. Thread-safe.

    Attributes:
        version: The version of the kernel's interface: 1 or 2.
        has_cpus: Whether `CgroupLimits(cpus=…)` is supported.
    """

    def __init__(self, folders: dict[str, Path], version: Literal[1, 2]) -> None:
        self.version = version
        self.has_cpus = "cpu" in folders
        self._folders = folders

    def create(self, name: str, limits: CgroupLimits) -> Cgroup:
        """Make an empty cgroup. Names need not be unique.

        Raises:
            SandboxError: The kernel refused.
            OSError: This process has no descriptors left.
        """
        if not _NAME.fullmatch(name):
            raise OptionError(
                f"Invalid cgroup name {name!r}: expected at most 64 letters, digits, '-' and '_'."
            )
        if limits.cpus is not None and not self.has_cpus:
            raise OptionError(
                f"CgroupLimits(cpus={limits.cpus!r}) is not supported: the cpu controller is not "
                "delegated to this process."
            )
        group = self._group(f"{mark()}-{next(_serial)}-{name}", limits)
        try:
            for folder in group.folders:
                folder.mkdir()
            group.limit(limits)
        except OSError as error:
            group.remove(0)
            if error.errno == errno.EMFILE:  # reported with advice where sessions are made
                raise
            raise SandboxError(
                f"A cgroup for the session {name!r} could not be made in "
                f"{self._folders['memory']}: {error.strerror}."
            ) from error
        return group

    def sweep(self) -> int:
        """Remove cgroups of hosts that died without closing; return how many.

        Looks where this process makes its own, and in the siblings of that folder.
        """
        names = {
            (folder, stale.name)
            for own in set(self._folders.values())
            for folder in _with_siblings(own)
            for stale in _stale_in(folder)
        }
        for folder, name in names:
            if name.endswith(HOST_SUFFIX):  # may contain other processes than those of a session
                with contextlib.suppress(OSError):
                    (folder / name).rmdir()
            else:
                CgroupV2([folder / name]).remove(0.5)
        return len({name for _, name in names if not name.endswith(HOST_SUFFIX)})

    def _group(self, name: str, limits: CgroupLimits) -> Cgroup:
        if self.version == 2:
            return CgroupV2([self._folders["memory"] / name])
        controllers = {"memory", "pids"} | ({"cpu"} if limits.cpus is not None else set())
        folders = self._folders.items()
        return CgroupV1({one: folder / name for one, folder in folders if one in controllers})


def find_cgroups(paths: CgroupPaths | None = None) -> FoundCgroups:
    """Find out whether this process can limit its sessions by cgroups, and sweep stale ones.

    This starts one process.
    """
    if sys.platform != "linux":
        return FoundCgroups(None, "Cgroups need Linux.")
    paths = paths or find_cgroup_paths()
    reasons = []
    for version in (2, 1):
        try:
            made = _v2(paths) if version == 2 else Cgroups(find_v1(paths), 1)
            _try_out(made)
        except (CgroupsUnavailableError, SandboxError) as error:
            reasons.append(str(error))
        else:
            made.sweep()
            return FoundCgroups(made)
    return FoundCgroups(None, f"Sessions have no cgroup. {' '.join(reasons)}")


def _v2(paths: CgroupPaths) -> Cgroups:
    folder = find_v2(paths, f"{mark()}{HOST_SUFFIX}")
    controllers = (folder / "cgroup.subtree_control").read_text().split()
    return Cgroups({one: folder for one in ("memory", "pids", "cpu") if one in controllers}, 2)


def _try_out(cgroups: Cgroups) -> None:
    """Do everything with a child process that is done with a session."""
    group = cgroups.create("probe", _PROBE)
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={},
    )
    try:
        group.add(child.pid)
        if child.pid not in group.pids():
            raise CgroupsUnavailableError("A process that was added to a cgroup is not in it.")
        group.kill_all()
        child.wait(_PROBE_S)
    except OSError as error:
        raise CgroupsUnavailableError(
            f"Processes cannot be added to a cgroup: {error.strerror}."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise CgroupsUnavailableError("The processes in a cgroup cannot be killed.") from error
    finally:
        child.kill()
        child.communicate()
        is_removed = group.remove(_PROBE_S)
    if not is_removed:
        raise CgroupsUnavailableError(f"A new cgroup cannot be removed: {group.folders[0]}.")


def _with_siblings(own: Path) -> Iterator[Path]:
    """Yield `own` and its siblings."""
    yield own
    if not (own / "cgroup.sane_behavior").exists() and (own.parent / "cgroup.procs").exists():
        with contextlib.suppress(OSError):
            for sibling in itertools.islice(own.parent.iterdir(), _MAX_SIBLINGS):
                if sibling != own and sibling.is_dir():
                    yield sibling


def _stale_in(folder: Path) -> Iterator[Path]:
    """Yield the cgroups in `folder` whose host is dead."""
    with contextlib.suppress(OSError):
        yield from [entry for entry in folder.iterdir() if is_stale(entry.name)]


_MAX_READY = 32
_EMPTY_S = 2.0
"""How long the processes of a session may take to end before they are killed again."""


@dataclass(slots=True)
class _Emptying:
    """A released cgroup.

    Attributes:
        is_discarded: Whether it is not used again: after `kill_all` it can never hold processes,
            and one that is removed in part limits less than it should.
    """

    cgroup: Cgroup
    deadline_s: float
    is_discarded: bool


class CgroupPool:
    """A pool of cgroups. Thread-safe.

    Args:
        cgroups: Makes them.
        limits: The limits of each.
        is_reused: Whether one may be used again. If not, whatever is in it is killed when it is
            released.

    Attributes:
        released: Set when `clean_up` has something to do.
    """

    def __init__(self, cgroups: Cgroups, limits: CgroupLimits, *, is_reused: bool) -> None:
        self._cgroups = cgroups
        self._limits = limits
        self._is_reused = is_reused
        self._names = itertools.count()
        # Single operations on these are atomic. A lock could deadlock with finalizers of sessions.
        self._ready: deque[Cgroup] = deque()
        self._emptying: deque[_Emptying] = deque()
        self.released = threading.Event()

    def acquire(self) -> Cgroup:
        """Return an empty cgroup.

        Raises:
            SandboxError: The kernel refused to make one.
        """
        try:
            return self._ready.pop()
        except IndexError:
            return self._cgroups.create(f"session-{next(self._names)}", self._limits)

    def release(self, cgroup: Cgroup) -> None:
        """Take back a cgroup whose session was killed; its processes may not be gone yet."""
        if not self._is_reused:
            cgroup.kill_all()
        deadline_s = time.monotonic() + _EMPTY_S
        self._emptying.append(_Emptying(cgroup, deadline_s, is_discarded=not self._is_reused))
        if not self.released.is_set():  # faster than setting it again
            self.released.set()

    def clean_up(self) -> bool:
        """Keep or remove the cgroups that have become empty; return whether some have not."""
        for _ in range(len(self._emptying)):
            one = self._emptying.popleft()
            is_late = time.monotonic() > one.deadline_s
            if is_late or one.cgroup.is_drained():
                if (
                    not one.is_discarded
                    and len(self._ready) < _MAX_READY
                    and one.cgroup.is_reusable()
                ):
                    self._ready.append(one.cgroup)
                    continue
                if one.cgroup.try_remove():
                    continue
                one.is_discarded = True
            if is_late:
                one.cgroup.kill_all()
                one.is_discarded = True
            self._emptying.append(one)
        return bool(self._emptying)

    def close(self) -> None:
        """Remove all that were released. Harmless twice."""
        while self._ready:
            self._ready.pop().remove()
        while self._emptying:
            self._emptying.pop().cgroup.remove()
