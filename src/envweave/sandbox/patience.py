"""Waits for a session's socket without an event loop, and never longer than may be."""

from __future__ import annotations

import os
import select
import socket
import struct
from typing import final

WATCH_S = 0.1
"""The longest wait. The limits that nobody but the host watches are looked at as often."""

_LEAST_S = 0.001
_TIMEVAL = struct.Struct("ll")


@final
class Patience:
    """Reads from a blocking socket, for so long.

    The kernel keeps the time, by an option of the socket: that costs nothing as long as the option
    can stay as it is, so a wait may end a little early, and is then gone on with.
    """

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._descriptor = line.fileno()
        self._wait_s = 0.0

    def read(self, room: int, left_s: float) -> bytes | None:
        """Return what was sent; nothing at the end, `None` if it is time to look at the clock."""
        wait_s = self._wait_s
        if wait_s > left_s or (wait_s < WATCH_S and 4 * wait_s < left_s):
            # A little less than what is left: the next call has a little less left too.
            self._set(min(WATCH_S, max(0.9 * left_s, _LEAST_S)))
        try:
            return os.read(self._descriptor, room)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def wait_for_room(self, left_s: float) -> None:
        """Wait until something can be sent, or it is time to look at the clock."""
        waiting = select.poll()
        waiting.register(self._descriptor, select.POLLOUT)
        waiting.poll(1000 * max(min(left_s, WATCH_S), _LEAST_S))

    def lend(self) -> None:
        """Let the socket wait for ever: another reads it, by a clock of their own."""
        self._set(0.0)

    def _set(self, wait_s: float) -> None:
        wait = _TIMEVAL.pack(0, int(wait_s * 1e6))
        self._line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
        self._wait_s = wait_s
