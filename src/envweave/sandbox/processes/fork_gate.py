"""The fork gate: the kernel asks the host whether a session may fork, and the host refuses.

A seccomp filter in the template turns every fork of a session into a notification to the host. The
host allows it once to a process that it has just ordered to branch, and refuses all others. It
decides by the process id and the syscall number, which come from the kernel; it reads no memory of
the session.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
import threading
import time

from envweave.sandbox.walls.syscall_numbers import NUMBERS

_RECEIVE = 0xC0502100
_SEND = 0xC0182101
_NOTIFICATION_BYTES = 80
_CONTINUE = 1
_REFUSAL_S = 0.0005


class ForkGate:
    """Answers the fork notifications of one template's sessions, on one thread."""

    def __init__(self, listener: int) -> None:
        self._listener = listener
        self._waker, self._wake = os.pipe()
        self._lock = threading.Lock()  # protects `_allowed`
        self._allowed: dict[tuple[int, str], int] = {}
        self.refused = 0
        self._names = {
            NUMBERS[name]: "fork" if name != "unshare" else "unshare"
            for name in ("clone", "fork", "vfork", "unshare")
            if name in NUMBERS
        }
        self._thread = threading.Thread(target=self._answer, name="sandbox-gate", daemon=True)
        self._thread.start()

    def allow(self, pid: int, what: str) -> None:
        """Allow a process to `fork` or `unshare` once."""
        with self._lock:
            self._allowed[pid, what] = self._allowed.get((pid, what), 0) + 1

    def forget(self, pid: int) -> bool:
        """Revoke unused permissions of a process; return whether it used all of them."""
        with self._lock:
            left = [self._allowed.pop((pid, what), 0) for what in ("fork", "unshare")]
            return not any(left)

    def close(self) -> None:
        """Stop answering; the kernel refuses all later forks."""
        os.close(self._wake)
        self._thread.join()
        os.close(self._waker)
        os.close(self._listener)

    def _answer(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._waker, select.POLLIN)
        while True:
            events = dict(poll.poll())
            if self._waker in events or events[self._listener] & select.POLLHUP:
                return
            notification = bytearray(_NOTIFICATION_BYTES)
            try:
                fcntl.ioctl(self._listener, _RECEIVE, notification)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR):  # it died meanwhile
                    continue
                return
            number, pid = struct.unpack_from("<QI", notification)
            name = self._names.get(struct.unpack_from("<i", notification, 16)[0], "")
            if self._use_permission(pid, name):
                answer = struct.pack("<QqiI", number, 0, 0, _CONTINUE)
            else:
                self.refused += 1
                # Slows down a session that forks in a loop, rather than the host.
                time.sleep(_REFUSAL_S)
                answer = struct.pack("<QqiI", number, 0, -errno.EPERM, 0)
            try:
                fcntl.ioctl(self._listener, _SEND, answer)
            except OSError:  # it died meanwhile
                continue

    def _use_permission(self, pid: int, what: str) -> bool:
        with self._lock:
            left = self._allowed.get((pid, what), 0)
            if left <= 0:
                return False
            if left == 1:
                del self._allowed[pid, what]
            else:
                self._allowed[pid, what] = left - 1
            return True
