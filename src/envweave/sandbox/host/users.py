"""User ids for sessions: each gets its own where the host may assign ids.

Two sessions with one user id could signal each other, and share what the kernel counts per user. So
a host that is root, or has CAP_SETUID and CAP_SETGID, assigns each session an id that no account of
this machine has.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from envweave.errors import SandboxError

_AREAS = (
    # Above what systemd-nspawn and container managers assign (524288 to 1879048191) and every
    # usual /etc/subuid, below systemd's foreign ids and the maximum of a signed 32-bit number.
    range(0x7000_0000, 0x7FFE_0000),
    # A container with a user namespace has 65536 ids: above its accounts, below homed's.
    range(40_000, 60_000),
)
_MAX_COUNT = 16_384
_MIN_COUNT = 64
_HOSTS = 16
"""How many hosts a small area must have room for at least."""
_CAP_SETGID, _CAP_SETUID = 6, 7
_MAX_LINKS = 40


@dataclass(frozen=True, slots=True)
class Span:
    """`count` consecutive ids, starting at `first`."""

    first: int
    count: int

    @property
    def end(self) -> int:
        """The id after the last one."""
        return self.first + self.count

    def overlaps(self, other: Span) -> bool:
        """Whether they have an id in common."""
        return self.first < other.end and other.first < self.end


@dataclass(frozen=True, slots=True)
class FoundUsers:
    """The result of `find_users`.

    Attributes:
        range: The ids; `None` if there are none to assign.
        reason: Why there are none, as a sentence; empty if there are.
    """

    range: UserRange | None
    reason: str = ""


class UserRange:
    """Ids that belong to this host process until it closes or dies, each used by one session.

    An id is a user id and the group id of the same number. Thread-safe.

    Attributes:
        first: The first of them, in this process's user namespace.
        count: How many there are.
    """

    def __init__(self, span: Span, claim: socket.socket | None = None) -> None:
        self.first = span.first
        self.count = span.count
        self._claim = claim
        self._fresh = span.first
        self._returned: deque[int] = deque()
        self._used: set[int] = set()
        # Protects the three above. A finalizer may release an id in the thread that holds it.
        self._lock = threading.RLock()

    def acquire(self) -> int:
        """Return an unused id.

        Ids that were never used come first, then those released longest ago, so that a session
        that is slow to die does not share its id with the next one.

        Raises:
            SandboxError: All of them are in use.
        """
        with self._lock:
            if self._fresh < self.first + self.count:
                user, self._fresh = self._fresh, self._fresh + 1
            elif self._returned:
                user = self._returned.popleft()
            else:
                raise SandboxError(
                    f"No user id is left for another session: all {self.count} are in use. "
                    "Close sessions, or spread them over several host processes."
                )
            self._used.add(user)
            return user

    def release(self, user: int) -> None:
        """Take an id back, once no process has it.

        Raises:
            ValueError: It is not in use.
        """
        with self._lock:
            if user not in self._used:
                raise ValueError(f"User id {user} is not in use.")
            self._used.remove(user)
            self._returned.append(user)

    def close(self) -> None:
        """Free these ids for other host processes. Harmless twice."""
        if self._claim is not None:
            self._claim.close()


def find_users(proc: Path = Path("/proc"), accounts: Iterable[Span] | None = None) -> FoundUsers:
    """Choose ids that this process may assign and that no account or host on this machine has.

    Args:
        proc: Where to look this process up.
        accounts: The ids that are taken; by default those of users, groups, /etc/subuid and
            /etc/subgid.
    """
    if not may_change_users(proc):
        return FoundUsers(
            None,
            "Sessions share the user id of this process: it is not root, and does not have "
            "both CAP_SETUID and CAP_SETGID.",
        )
    mapped = _common(_read_map(proc / "self/uid_map"), _read_map(proc / "self/gid_map"))
    taken = list(known_accounts() if accounts is None else accounts)
    for area in _AREAS:
        for span in mapped:
            room = _overlap(span, Span(area.start, len(area)))
            found = None if room is None else _claim(room, taken)
            if found is not None:
                return FoundUsers(found)
    ids = sum(span.count for span in mapped)
    return FoundUsers(
        None,
        f"Sessions share the user id of this process: of the {ids} ids that its user namespace "
        f"maps, no {_MIN_COUNT} consecutive ones are free between {_AREAS[1].start} and "
        f"{_AREAS[1].stop - 1}.",
    )


def may_change_users(proc: Path = Path("/proc")) -> bool:
    """Whether this process may switch to any user and group id that its namespace maps."""
    if sys.platform != "linux":
        return False
    try:
        status = (proc / "self/status").read_text()
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            effective = int(line.split()[1], 16)
            return bool(effective >> _CAP_SETUID & effective >> _CAP_SETGID & 1)
    return False


def known_accounts(etc: Path = Path("/etc")) -> list[Span]:
    """Return the ids of this machine's accounts and their subordinate ranges."""
    files = [("passwd", 2, None), ("group", 2, None), ("subuid", 1, 2), ("subgid", 1, 2)]
    return [span for name, first, count in files for span in _spans(etc / name, first, count)]


def blocking_path(path: str | Path, user: int) -> Path | None:
    """Return what prevents an ordinary user from reading `path`; `None` if nothing does.

    `user` is assumed to be in no group but its own. Symbolic links are followed, and every folder
    on the way must be traversable. A path that does not exist blocks itself.
    """
    done = Path("/")
    todo = list(Path(path).absolute().parts[1:])
    links = 0
    while True:
        try:
            status = os.lstat(done)
            if stat.S_ISLNK(status.st_mode):
                links += 1
                if links > _MAX_LINKS:
                    return done
                target = done.readlink()
                done = Path("/") if target.is_absolute() else done.parent
                todo = [*target.parts[target.is_absolute() :], *todo]
                status = os.lstat(done)
        except OSError:
            return done
        mode = stat.S_IXOTH if todo else stat.S_IROTH
        if not todo and stat.S_ISDIR(status.st_mode):
            mode |= stat.S_IXOTH
        if not _allows(status, mode, user):
            return done
        if not todo:
            return None
        step = todo.pop(0)
        done = done.parent if step == ".." else done / step


def may_read(path: str | Path, user: int) -> bool:
    """Whether an ordinary user may read a file or folder, apart from the folders above it."""
    status = Path(path).stat()
    mode = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(status.st_mode) else 0)
    return _allows(status, mode, user)


def _allows(status: os.stat_result, mode: int, user: int) -> bool:
    """Whether `user` has the permissions `mode`, given as those of others."""
    if status.st_uid == user:
        mode <<= 6
    elif status.st_gid == user:
        mode <<= 3
    return status.st_mode & mode == mode


def _claim(room: Span, taken: Sequence[Span]) -> UserRange | None:
    """Return a part of `room` that no account and no other host has.

    The process id selects the part. The claim is an abstract socket address, which the kernel
    frees with its holder; the socket does not listen, so that nothing can connect to it.
    """
    size = min(_MAX_COUNT, room.count // _HOSTS)
    if size < _MIN_COUNT:
        size = min(room.count, _MIN_COUNT)
    if size < _MIN_COUNT:
        return None
    parts = room.count // size
    for step in range(min(parts, 1024)):
        span = Span(room.first + (os.getpid() + step) % parts * size, size)
        if any(span.overlaps(one) for one in taken):
            continue
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(f"\0envweave-users-{span.first}")
        except OSError:
            claim.close()
            continue
        return UserRange(span, claim)
    return None


def _read_map(path: Path) -> list[Span]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    rows = [line.split() for line in lines]
    return [Span(int(row[0]), int(row[2])) for row in rows if len(row) == 3]


def _common(users: Iterable[Span], groups: Sequence[Span]) -> list[Span]:
    """Return what both have. Adjacent lines are not joined: no child namespace may span two."""
    overlaps = [_overlap(user, group) for user in users for group in groups]
    return [one for one in overlaps if one is not None]


def _overlap(one: Span, other: Span) -> Span | None:
    first, end = max(one.first, other.first), min(one.end, other.end)
    return Span(first, end - first) if first < end else None


def _spans(path: Path, first: int, count: int | None) -> list[Span]:
    """Return the ids in a file like /etc/passwd, from the columns `first` and, if any, `count`."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        row = line.split(":")
        try:
            found.append(Span(int(row[first]), 1 if count is None else int(row[count])))
        except (IndexError, ValueError):
            continue
    return found
