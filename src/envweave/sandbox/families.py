"""A session and its branches: who of them may end, and when."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envweave.sandbox.processes import SessionProcess


class Family:
    """A session and its branches, which live in one PID namespace whose first process it is.

    The kernel ends them all with the first. So one that is closed while branches of it live is
    stopped instead, for good, and ended with the last of them.
    """

    def __init__(self) -> None:
        # Protects who lives. A finalizer may come in while this thread holds it.
        self._lock = threading.RLock()
        self._living: dict[int, int] = {}
        self.first: SessionProcess | None = None
        self.copying = threading.Lock()  # held while one of them is copied

    def join(self, member: SessionProcess) -> None:
        """Count a member in."""
        with self._lock:
            self._living[id(member)] = member.pid
            if self.first is None:
                self.first = member

    def must_wait(self, member: SessionProcess) -> bool:
        """Say whether this member may not die yet."""
        with self._lock:
            return member is self.first and len(self._living.keys() - {id(member)}) > 0

    def pids(self) -> set[int]:
        """Return the process ids of those that live, or are stopped for good."""
        with self._lock:
            first = set() if self.first is None else {self.first.pid}
            return first.union(self._living.values())

    def leave(self, member: SessionProcess) -> None:
        """Count a member out, and end what is left of the family with the last one."""
        with self._lock:
            self._living.pop(id(member), None)
            if self._living:
                return
            first, self.first = self.first, None
        if first is not None:
            first.finish()
