"""User ids for sessions: each has its own where the host may give ids away.

Two sessions with one user id could signal each other and share what the kernel counts per user. So
a host that is root, or has CAP_SETUID and CAP_SETGID, lends each session an id that no account of
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
    # Above what systemd-nspawn and container managers hand out (524288 to 1879048191) and every
    # usual /etc/subuid, below systemd's foreign ids and what 32 bits with a sign can hold.
    range(0x7000_0000, 0x7FFE_0000),
    # A container with ids of its own has 65536 of them: above its accounts, below homed's.
    range(40_000, 60_000),
)
_MOST = 16_384
_LEAST = 64
_HOSTS = 16
"""How many hosts an area must at least have room for, where it is small."""
_CAP_SETGID, _CAP_SETUID = 6, 7
_MOST_LINKS = 40


@dataclass(frozen=True, slots=True)
class Span:
    """A run of ids, of which `count` follow on `first`."""

    first: int
    count: int

    @property
    def end(self) -> int:
        """The id after the last one."""
        return self.first + self.count

    def meets(self, other: Span) -> bool:
        """Say whether they have an id in common."""
        return self.first < other.end and other.first < self.end


@dataclass(frozen=True, slots=True)
class Users:
    """What `find_users` found.

    Attributes:
        range: The ids; `None` if there are none to give away.
        reason: Why there are none, as a sentence; empty if there are.
    """

    range: UserRange | None
    reason: str = ""


class UserRange:
    """Ids that belong to this host process until it closes or dies, each lent to one at a time.

    An id is a user id and the group id of the same number. May be used by several threads.

    Attributes:
        first: The first of them, as this process's user namespace has it.
        count: How many there are.
    """

    def __init__(self, span: Span, claim: socket.socket | None = None) -> None:
        self.first = span.first
        self.count = span.count
        self._claim = claim
        self._fresh = span.first
        self._returned: deque[int] = deque()
        self._lent: set[int] = set()
        # Protects what is lent. A finalizer may give an id back while this thread holds it.
        self._lock = threading.RLock()

    def take(self) -> int:
        """Lend an id that nobody has.

        Ids that were never lent come first, then those given back longest ago, so that a session
        that is slow to die does not meet the next one.

        Raises:
            SandboxError: All of them are lent.
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
            self._lent.add(user)
            return user

    def give_back(self, user: int) -> None:
        """Take an id back, when no process has it any more.

        Raises:
            ValueError: It was not lent.
        """
        with self._lock:
            if user not in self._lent:
                raise ValueError(f"User id {user} was not lent, or has been given back.")
            self._lent.remove(user)
            self._returned.append(user)

    def close(self) -> None:
        """Let another host process have these ids. Harmless twice."""
        if self._claim is not None:
            self._claim.close()


def find_users(proc: Path = Path("/proc"), accounts: Iterable[Span] | None = None) -> Users:
    """Choose ids that this process may give away and that nobody on this machine has.

    Args:
        proc: Where to look this process up.
        accounts: The ids that are taken; by default those of users, groups, /etc/subuid and
            /etc/subgid.
    """
    if not may_change_users(proc):
        return Users(
            None,
            "Sessions share the user id of this process: it is not root, and has not both "
            "CAP_SETUID and CAP_SETGID.",
        )
    mapped = _common(_read_map(proc / "self/uid_map"), _read_map(proc / "self/gid_map"))
    taken = list(known_accounts() if accounts is None else accounts)
    for area in _AREAS:
        for span in mapped:
            room = _overlap(span, Span(area.start, len(area)))
            found = None if room is None else _claim(room, taken)
            if found is not None:
                return Users(found)
    ids = sum(span.count for span in mapped)
    return Users(
        None,
        f"Sessions share the user id of this process: of the {ids} ids that its user namespace "
        f"maps, no {_LEAST} in a row are free between {_AREAS[1].start} and {_AREAS[1].stop - 1}.",
    )


def may_change_users(proc: Path = Path("/proc")) -> bool:
    """Say whether this process may take any user and group id that its namespace maps."""
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
    """Return the ids that this machine's accounts and their subordinate ranges have."""
    files = [("passwd", 2, None), ("group", 2, None), ("subuid", 1, 2), ("subgid", 1, 2)]
    return [span for name, first, count in files for span in _spans(etc / name, first, count)]


def obstacle(path: str | Path, user: int) -> Path | None:
    """Return what keeps an ordinary user from reading `path`; `None` if nothing does.

    `user` is taken to be in no group but its own. Symbolic links are followed, and every folder on
    the way must let it pass. A path that does not exist is its own obstacle.
    """
    done = Path("/")
    todo = list(Path(path).absolute().parts[1:])
    links = 0
    while True:
        try:
            about = os.lstat(done)
            if stat.S_ISLNK(about.st_mode):
                links += 1
                if links > _MOST_LINKS:
                    return done
                target = done.readlink()
                done = Path("/") if target.is_absolute() else done.parent
                todo = [*target.parts[target.is_absolute() :], *todo]
                about = os.lstat(done)
        except OSError:
            return done
        wanted = stat.S_IXOTH if todo else stat.S_IROTH
        if not todo and stat.S_ISDIR(about.st_mode):
            wanted |= stat.S_IXOTH
        if not _allows(about, wanted, user):
            return done
        if not todo:
            return None
        step = todo.pop(0)
        done = done.parent if step == ".." else done / step


def may_read(path: str | Path, user: int) -> bool:
    """Say whether an ordinary user may read a file or folder once it is reached."""
    about = Path(path).stat()
    wanted = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(about.st_mode) else 0)
    return _allows(about, wanted, user)


def _allows(about: os.stat_result, wanted: int, user: int) -> bool:
    """Say whether `user` has the rights `wanted`, which are given as those of others."""
    if about.st_uid == user:
        wanted <<= 6
    elif about.st_gid == user:
        wanted <<= 3
    return about.st_mode & wanted == wanted


def _claim(room: Span, taken: Sequence[Span]) -> UserRange | None:
    """Return a part of `room` that no account and no other host has.

    Which part comes from the process id. The claim is a name in the kernel that dies with its
    holder: an abstract socket, which nobody can connect to as it does not listen.
    """
    size = min(_MOST, room.count // _HOSTS)
    if size < _LEAST:
        size = min(room.count, _LEAST)
    if size < _LEAST:
        return None
    parts = room.count // size
    for step in range(min(parts, 1024)):
        span = Span(room.first + (os.getpid() + step) % parts * size, size)
        if any(span.meets(one) for one in taken):
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
    """Return what both have. Lines that touch stay apart: no namespace below may span two."""
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
