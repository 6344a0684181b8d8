"""The gate: the kernel asks the host whether a session may fork, and the host nearly never lets it.

A filter in the template answers every fork of a session with a question to the host (seccomp user
notification). The host says yes once to a process that it has just told to branch, and no to
everybody else. What it decides by, the process id and the call's number, is the kernel's word, and
no memory of the session is read.
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
    """Answers the forks of one template's sessions, on one thread."""

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
        """Let a process `fork` or `unshare` once."""
        with self._lock:
            self._allowed[pid, what] = self._allowed.get((pid, what), 0) + 1

    def forget(self, pid: int) -> bool:
        """Take back what a process was allowed and did not use; say whether it used all of it."""
        with self._lock:
            left = [self._allowed.pop((pid, what), 0) for what in ("fork", "unshare")]
            return not any(left)

    def close(self) -> None:
        """Stop answering; whoever still asks is refused by the kernel."""
        os.close(self._wake)
        self._thread.join()
        os.close(self._waker)
        os.close(self._listener)

    def _answer(self) -> None:
        waiting = select.poll()
        waiting.register(self._listener, select.POLLIN)
        waiting.register(self._waker, select.POLLIN)
        while True:
            events = dict(waiting.poll())
            if self._waker in events or events[self._listener] & select.POLLHUP:
                return
            asked = bytearray(_NOTIFICATION_BYTES)
            try:
                fcntl.ioctl(self._listener, _RECEIVE, asked)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR):  # it died while it asked
                    continue
                return
            number, pid = struct.unpack_from("<QI", asked)
            name = self._names.get(struct.unpack_from("<i", asked, 16)[0], "")
            if self._takes(pid, name):
                answer = struct.pack("<QqiI", number, 0, 0, _CONTINUE)
            else:
                self.refused += 1
                # Whoever asks in a loop waits for it, and not the rest of the host.
                time.sleep(_REFUSAL_S)
                answer = struct.pack("<QqiI", number, 0, -errno.EPERM, 0)
            try:
                fcntl.ioctl(self._listener, _SEND, answer)
            except OSError:  # it died while it waited
                continue

    def _takes(self, pid: int, what: str) -> bool:
        with self._lock:
            left = self._allowed.get((pid, what), 0)
            if left <= 0:
                return False
            if left == 1:
                del self._allowed[pid, what]
            else:
                self._allowed[pid, what] = left - 1
            return True
