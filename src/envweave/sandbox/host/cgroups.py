"""Cgroups for sessions: found where this process may make them, and swept after hosts that died.

    found = find_cgroups()
    if found.cgroups is not None:
        group = found.cgroups.create("box", CgroupLimits(memory_bytes=1 << 30, processes=64))
        group.add(pid)
        ...
        group.remove()

Whether they can be made is found out by making one, with a process in it.
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
from envweave.sandbox.host.cleanup import is_left, mark
from envweave.sandbox.host.session_cgroups import (
    ASIDE,
    Cgroup,
    CgroupLimits,
    NewCgroup,
    OldCgroup,
    Places,
    UnusableError,
    find_new,
    find_old,
    find_places,
)

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST_NEIGHBOURS = 1000
_PATIENCE_S = 10.0
_PROBE = CgroupLimits(memory_bytes=64 << 20, processes=8)


@dataclass(frozen=True, slots=True)
class FoundCgroups:
    """What `find_cgroups` found.

    Attributes:
        cgroups: What makes them; `None` if this process cannot.
        reason: Why it cannot, as a sentence; empty if it can.
    """

    cgroups: Cgroups | None
    reason: str = ""


_serial = itertools.count()
"""Of all cgroups of this process, whoever makes them."""


class Cgroups:
    """Makes cgroups below the one that this process is in. May be used by several threads.

    Attributes:
        version: Of the kernel's interface: 1 or 2.
        has_cpus: Whether `CgroupLimits(cpus=…)` can be kept.
    """

    def __init__(self, folders: dict[str, Path], version: Literal[1, 2]) -> None:
        self.version = version
        self.has_cpus = "cpu" in folders
        self._folders = folders

    def create(self, name: str, limits: CgroupLimits) -> Cgroup:
        """Make an empty cgroup. The names of two may be the same.

        Raises:
            SandboxError: The kernel refused.
            OSError: This process has no descriptors left.
        """
        if not _NAME.fullmatch(name):
            raise OptionError(
                f"A cgroup cannot be called {name!r}: at most 64 letters, digits, '-' and '_'."
            )
        if limits.cpus is not None and not self.has_cpus:
            raise OptionError(
                f"CgroupLimits(cpus={limits.cpus!r}) cannot be kept: the cpu controller is not "
                "delegated to this process."
            )
        group = self._group(f"{mark()}-{next(_serial)}-{name}", limits)
        try:
            for folder in group.folders:
                folder.mkdir()
            group.limit(limits)
        except OSError as error:
            group.remove(0)
            if error.errno == errno.EMFILE:  # whose way out is known where sessions are made
                raise
            raise SandboxError(
                f"A cgroup for the session {name!r} could not be made in "
                f"{self._folders['memory']}: {error.strerror}."
            ) from error
        return group

    def sweep(self) -> int:
        """Remove what hosts left that died without closing, and return how many it was.

        Looks where this process makes its own, and where its neighbours do.
        """
        names = {
            (folder, left.name)
            for own in set(self._folders.values())
            for folder in _neighbourhood(own)
            for left in _left_in(folder)
        }
        for folder, name in names:
            if name.endswith(ASIDE):  # processes that the host left are in it, and not a session's
                with contextlib.suppress(OSError):
                    (folder / name).rmdir()
            else:
                NewCgroup([folder / name]).remove(0.5)
        return len({name for _, name in names if not name.endswith(ASIDE)})

    def _group(self, name: str, limits: CgroupLimits) -> Cgroup:
        if self.version == 2:
            return NewCgroup([self._folders["memory"] / name])
        wanted = {"memory", "pids"} | ({"cpu"} if limits.cpus is not None else set())
        folders = self._folders.items()
        return OldCgroup({one: folder / name for one, folder in folders if one in wanted})


def find_cgroups(places: Places | None = None) -> FoundCgroups:
    """Find out whether this process can bound its sessions by cgroups, and sweep up.

    Costs the start of one process.
    """
    if sys.platform != "linux":
        return FoundCgroups(None, "Cgroups are a part of Linux.")
    places = places or find_places()
    reasons = []
    for version in (2, 1):
        try:
            made = _new(places) if version == 2 else Cgroups(find_old(places), 1)
            _try_out(made)
        except (UnusableError, SandboxError) as error:
            reasons.append(str(error))
        else:
            made.sweep()
            return FoundCgroups(made)
    return FoundCgroups(None, f"Sessions have no cgroup. {' '.join(reasons)}")


def _new(places: Places) -> Cgroups:
    folder = find_new(places, f"{mark()}{ASIDE}")
    controllers = (folder / "cgroup.subtree_control").read_text().split()
    return Cgroups({one: folder for one in ("memory", "pids", "cpu") if one in controllers}, 2)


def _try_out(cgroups: Cgroups) -> None:
    """Do with a process of our own all that is done with a session's."""
    group = cgroups.create("probe", _PROBE)
    waiter = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={},
    )
    try:
        group.add(waiter.pid)
        if waiter.pid not in group.pids():
            raise UnusableError("A process that was put into a cgroup is not in it.")
        group.kill_all()
        waiter.wait(_PATIENCE_S)
    except OSError as error:
        raise UnusableError(f"No process can be put into a cgroup: {error.strerror}.") from error
    except subprocess.TimeoutExpired as error:
        raise UnusableError("The processes in a cgroup cannot be killed.") from error
    finally:
        waiter.kill()
        waiter.communicate()
        gone = group.remove(_PATIENCE_S)
    if not gone:
        raise UnusableError(f"A cgroup that was made cannot be removed: {group.folders[0]}.")


def _neighbourhood(own: Path) -> Iterator[Path]:
    """Yield `own` and the folders beside it."""
    yield own
    if not (own / "cgroup.sane_behavior").exists() and (own.parent / "cgroup.procs").exists():
        with contextlib.suppress(OSError):
            for beside in itertools.islice(own.parent.iterdir(), _MOST_NEIGHBOURS):
                if beside != own and beside.is_dir():
                    yield beside


def _left_in(folder: Path) -> Iterator[Path]:
    """Yield the cgroups in `folder` whose host is dead."""
    with contextlib.suppress(OSError):
        yield from [entry for entry in folder.iterdir() if is_left(entry.name)]


_MOST_READY = 32
_EMPTY_S = 2.0
"""How long the processes of a session take to end at most, before they are killed once more."""


@dataclass(slots=True)
class _Emptying:
    """A cgroup that was given back. Killing what is in it forbids it to hold processes for good."""

    cgroup: Cgroup
    deadline_s: float
    was_killed: bool


class CgroupStock:
    """Hands out cgroups and takes them back. May be used by several threads.

    Args:
        cgroups: What makes them.
        limits: Of each of them.
        is_reused: Whether one may be used again. If not, whatever is in it is killed when it is
            taken back.

    Attributes:
        returned: Set when `tend` has something to do.
    """

    def __init__(self, cgroups: Cgroups, limits: CgroupLimits, *, is_reused: bool) -> None:
        self._cgroups = cgroups
        self._limits = limits
        self._is_reused = is_reused
        self._names = itertools.count()
        # Single operations on these are atomic. A lock would be met by finalizers of sessions.
        self._ready: deque[Cgroup] = deque()
        self._emptying: deque[_Emptying] = deque()
        self.returned = threading.Event()

    def take(self) -> Cgroup:
        """Return an empty cgroup.

        Raises:
            SandboxError: The kernel refused to make one.
        """
        try:
            return self._ready.pop()
        except IndexError:
            return self._cgroups.create(f"session-{next(self._names)}", self._limits)

    def give_back(self, cgroup: Cgroup) -> None:
        """Take back a cgroup whose session was killed, though it may not be gone yet."""
        if not self._is_reused:
            cgroup.kill_all()
        deadline_s = time.monotonic() + _EMPTY_S
        self._emptying.append(_Emptying(cgroup, deadline_s, was_killed=not self._is_reused))
        if not self.returned.is_set():  # which is quicker than to set it again
            self.returned.set()

    def tend(self) -> bool:
        """Keep or remove the cgroups that have become empty; return whether some have not."""
        for _ in range(len(self._emptying)):
            one = self._emptying.popleft()
            is_late = time.monotonic() > one.deadline_s
            if is_late or one.cgroup.is_drained():
                if not one.was_killed and len(self._ready) < _MOST_READY and one.cgroup.is_as_new():
                    self._ready.append(one.cgroup)
                    continue
                if one.cgroup.try_remove():
                    continue
            if is_late:
                one.cgroup.kill_all()
                one.was_killed = True
            self._emptying.append(one)
        return bool(self._emptying)

    def close(self) -> None:
        """Remove all that were given back. Harmless twice."""
        while self._ready:
            self._ready.pop().remove()
        while self._emptying:
            self._emptying.pop().cgroup.remove()
