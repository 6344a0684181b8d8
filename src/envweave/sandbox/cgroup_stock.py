"""The cgroups of one sandbox: nobody waits for one to be made, to get empty or to be removed.

A cgroup takes longer to make and to remove than to use. So one whose session is gone is used for
another session, if it is as good as new.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from dataclasses import dataclass

from envweave.sandbox.cgroups import Cgroups
from envweave.sandbox.session_cgroups import Cgroup, CgroupLimits

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
