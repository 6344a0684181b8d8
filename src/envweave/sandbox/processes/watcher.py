"""Watches sessions from a thread of the host: what they use while no run is open, and their limits.

A step must cost nothing for it, so a session does not tell when a run begins or ends. The watcher
reads the processor clock of every session that is not stopped, some fifty times a second:

- A session that works while no run is open is stopped. The next call on it wakes it.
- A session that was idle for a while is stopped too, and then needs no more looks.
- A session that used processor time may have passed a limit that only the host can see, such as
  the size of a work folder on the host's disk. One that did not cannot have.

It also tends the cgroups of sessions that are gone, so that nobody has to wait for those.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import Protocol

from envweave.sandbox.host.cgroups import CgroupStock

_log = logging.getLogger(__name__)

_INTERVAL_S = 0.02
_CLOSE_LOOK_S = 0.005
"""How long until the next look while an idle session works."""

_IDLE_CPU_S = 0.04
"""How much processor time makes an idle session one that works. With what passes before the first
look and after the last, it comes to no more than 0.1 s on two cores."""

_PARK_S = 0.25
_CHECK_CPU_S = 0.005
"""How much processor time a session uses between two looks at its limits."""

_CHECK_REST, _REST = 10, 4
"""How much longer than its last check a session is not checked again, and how much longer than a
round the watcher rests: so it takes a fifth of a core at most, whatever the sessions do."""


class WatcherCalls(Protocol):
    """The calls on a session, as far as the watcher must know them."""

    start_s: float
    """When the last call began."""

    worked_on: bool
    """Set when the session works while no run is open, so that the next result says so."""


class Watchable(Protocol):
    """The process of a session, as the watcher sees it."""

    def cpu_s(self) -> float | None:
        """Return the processor time that it has used; `None` if it is gone."""

    def check(self) -> bool:
        """End it if it is beyond a limit; return whether it was."""

    def stop(self, in_use: threading.Lock) -> bool:
        """Stop it until the next call on it, unless one is under way; return whether it stopped."""

    def kill(self) -> None:
        """End it."""


class Watched:
    """One session, and what was seen of it last."""

    __slots__ = (
        "body",
        "calls",
        "check_after_s",
        "checked_cpu_s",
        "idle_cpu_s",
        "idle_since_s",
        "in_use",
        "start_s",
    )

    def __init__(self, body: Watchable, calls: WatcherCalls, in_use: threading.Lock) -> None:
        self.body = body
        self.calls = weakref.ref(calls)  # what its tools hold must not live as long as the thread
        self.in_use = in_use
        self.start_s = -1.0
        self.idle_cpu_s = self.idle_since_s = 0.0
        self.checked_cpu_s = self.check_after_s = 0.0


class ProcessWatcher:
    """Watches the sessions of one sandbox. May be used by several threads."""

    def __init__(self, cgroups: CgroupStock | None) -> None:
        # Single operations on these are atomic. A lock would be met by finalizers of sessions,
        # which may run in the middle of any line of this thread.
        self._watched: dict[int, Watched] = {}
        self._cgroups = cgroups
        self._wanted = threading.Event() if cgroups is None else cgroups.returned
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sandbox-watch", daemon=True)
        self._thread.start()

    def add(self, watched: Watched) -> None:
        """Watch a session from now on. Harmless twice."""
        self._watched[id(watched)] = watched
        if not self._wanted.is_set():  # which is quicker than to set it again
            self._wanted.set()

    def forget(self, watched: Watched) -> None:
        """Watch a session no longer. Harmless twice."""
        self._watched.pop(id(watched), None)

    def close(self) -> None:
        """End the thread. Harmless twice."""
        self._closed.set()
        self._wanted.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        pause_s = 0.0
        while not self._closed.wait(pause_s):
            self._wanted.wait()
            self._wanted.clear()
            began_s = time.monotonic()
            pause_s = self._look_at_all(began_s)
            is_tending = self._cgroups is not None and self._cgroups.tend()
            if self._watched or is_tending or self._closed.is_set():
                self._wanted.set()
            pause_s = max(pause_s, _REST * (time.monotonic() - began_s))

    def _look_at_all(self, now_s: float) -> float:
        """Look at every session, and return how long until the next time."""
        pause_s = _INTERVAL_S
        for watched in list(self._watched.values()):
            try:
                if self._look(watched, now_s):
                    pause_s = _CLOSE_LOOK_S
            except Exception:  # noqa: BLE001 - one session must not end the watching of all
                _log.exception("A session could not be watched and is ended.")
                self.forget(watched)
                watched.body.kill()
        return pause_s

    def _look(self, watched: Watched, now_s: float) -> bool:
        """Look at a session; return whether it worked while it was idle."""
        calls, body = watched.calls(), watched.body
        cpu_s = body.cpu_s()
        if calls is None or cpu_s is None:
            self.forget(watched)
            return False
        is_due = cpu_s - watched.checked_cpu_s >= _CHECK_CPU_S and now_s >= watched.check_after_s
        if is_due and self._check(watched, cpu_s):
            return False
        if watched.in_use.locked():
            watched.start_s = -1.0
            return False
        if calls.start_s != watched.start_s:
            watched.start_s, watched.idle_cpu_s = calls.start_s, cpu_s
            watched.idle_since_s = now_s
            return False
        used_s = cpu_s - watched.idle_cpu_s
        if used_s <= _IDLE_CPU_S and now_s < watched.idle_since_s + _PARK_S:
            return used_s > 0
        if used_s > _IDLE_CPU_S:
            calls.worked_on = True
        # Before it stops: the call that wakes it has it watched again.
        self.forget(watched)
        if body.stop(watched.in_use):
            self._check(watched, cpu_s)
        else:
            self.add(watched)
        return False

    def _check(self, watched: Watched, cpu_s: float) -> bool:
        """Check the limits of a session; return whether it was ended."""
        began_s = time.monotonic()
        is_ended = watched.body.check()
        if is_ended:
            self.forget(watched)
        now_s = time.monotonic()
        watched.checked_cpu_s = cpu_s
        watched.check_after_s = now_s + _CHECK_REST * (now_s - began_s)
        return is_ended
