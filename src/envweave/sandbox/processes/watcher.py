"""Watches sessions from a thread of the host: CPU use while no run is open, and limits.

This must not cost a run anything, so sessions do not report when a run begins or ends. The watcher
reads the CPU clock of every session that is not stopped, some fifty times a second:

- A session that uses CPU while no run is open is stopped. The next call on it wakes it.
- A session that has been idle for a while is stopped too, and then needs no more checks.
- A session that used CPU may have exceeded a limit that only the host can see, such as the size
  of a work folder on the host's disk; one that used none cannot have exceeded any.

It also cleans up the cgroups of sessions that are gone, so that no caller has to wait for that.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import Protocol

from envweave.sandbox.host.cgroups import CgroupPool

_log = logging.getLogger(__name__)

_INTERVAL_S = 0.02
_ACTIVE_INTERVAL_S = 0.005
"""The interval while an idle session uses CPU."""

_IDLE_CPU_S = 0.04
"""How much CPU time an idle session may use before it is stopped. Including the time before the
first check and after the last, it can use at most 0.1 s on two cores."""

_PARK_S = 0.25
_CHECK_CPU_S = 0.005
"""How much CPU time a session uses between two checks of its limits."""

_CHECK_REST, _REST = 10, 4
"""Pauses, as multiples of the time that the work before them took: of a session between two checks
of its limits, and of the watcher between two rounds. They bound the watcher to a fifth of a core,
whatever the sessions do."""


class WatcherCalls(Protocol):
    """The calls on a session, as the watcher sees them."""

    start_s: float
    """When the last call began."""

    worked_while_idle: bool
    """Set when the session uses CPU while no run is open; the next result reports it."""


class Watchable(Protocol):
    """The process of a session, as the watcher sees it."""

    def cpu_s(self) -> float | None:
        """Return the CPU time that it has used; `None` if it is gone."""

    def check(self) -> bool:
        """Kill it if it exceeds a limit; return whether it did."""

    def stop(self, in_use: threading.Lock) -> bool:
        """Stop it until the next call on it, unless one is under way; return whether it stopped."""

    def kill(self) -> None:
        """Kill it."""


class Watched:
    """One session, and the state at its last check."""

    __slots__ = (
        "calls",
        "check_after_s",
        "checked_cpu_s",
        "idle_cpu_s",
        "idle_since_s",
        "in_use",
        "process",
        "start_s",
    )

    def __init__(self, process: Watchable, calls: WatcherCalls, in_use: threading.Lock) -> None:
        self.process = process
        self.calls = weakref.ref(calls)  # weak: the thread must not keep its tools alive
        self.in_use = in_use
        self.start_s = -1.0
        self.idle_cpu_s = self.idle_since_s = 0.0
        self.checked_cpu_s = self.check_after_s = 0.0


class ProcessWatcher:
    """Watches the sessions of one sandbox. Thread-safe."""

    def __init__(self, cgroups: CgroupPool | None) -> None:
        # Single operations on these are atomic. A lock could deadlock with finalizers of sessions,
        # which may run at any point in this thread.
        self._watched: dict[int, Watched] = {}
        self._cgroups = cgroups
        self._wake = threading.Event() if cgroups is None else cgroups.released
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sandbox-watch", daemon=True)
        self._thread.start()

    def add(self, watched: Watched) -> None:
        """Watch a session from now on. Harmless twice."""
        self._watched[id(watched)] = watched
        if not self._wake.is_set():  # faster than setting it again
            self._wake.set()

    def forget(self, watched: Watched) -> None:
        """Stop watching a session. Harmless twice."""
        self._watched.pop(id(watched), None)

    def close(self) -> None:
        """End the thread. Harmless twice."""
        self._closed.set()
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        pause_s = 0.0
        while not self._closed.wait(pause_s):
            self._wake.wait()
            self._wake.clear()
            started_s = time.monotonic()
            pause_s = self._check_all(started_s)
            is_cleaning = self._cgroups is not None and self._cgroups.clean_up()
            if self._watched or is_cleaning or self._closed.is_set():
                self._wake.set()
            pause_s = max(pause_s, _REST * (time.monotonic() - started_s))

    def _check_all(self, now_s: float) -> float:
        """Check every session; return how long to wait until the next round."""
        pause_s = _INTERVAL_S
        for watched in list(self._watched.values()):
            try:
                if self._check_session(watched, now_s):
                    pause_s = _ACTIVE_INTERVAL_S
            except Exception:  # noqa: BLE001 - one session must not stop the watching of others
                _log.exception("A session could not be watched and is killed.")
                self.forget(watched)
                watched.process.kill()
        return pause_s

    def _check_session(self, watched: Watched, now_s: float) -> bool:
        """Check a session; return whether it used CPU while idle."""
        calls, process = watched.calls(), watched.process
        cpu_s = process.cpu_s()
        if calls is None or cpu_s is None:
            self.forget(watched)
            return False
        is_due = cpu_s - watched.checked_cpu_s >= _CHECK_CPU_S and now_s >= watched.check_after_s
        if is_due and self._check_limits(watched, cpu_s):
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
            calls.worked_while_idle = True
        # Before it is stopped: the call that wakes it adds it again.
        self.forget(watched)
        if process.stop(watched.in_use):
            self._check_limits(watched, cpu_s)
        else:
            self.add(watched)
        return False

    def _check_limits(self, watched: Watched, cpu_s: float) -> bool:
        """Check the limits of a session; return whether it was killed."""
        started_s = time.monotonic()
        is_killed = watched.process.check()
        if is_killed:
            self.forget(watched)
        now_s = time.monotonic()
        watched.checked_cpu_s = cpu_s
        watched.check_after_s = now_s + _CHECK_REST * (now_s - started_s)
        return is_killed
