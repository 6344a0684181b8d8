"""A connection whose answers have one deadline each, however slowly their bytes drip in."""

from __future__ import annotations

import io
import socket
import time
from typing import Any, final


@final
class BoundedSocket:
    """A socket for `http.client`, which otherwise grants every single read its full time."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._ends_s: float | None = None

    def bound(self, timeout_s: float | None) -> None:
        """Let all that follows take so long, in all; `None` for as long as it takes."""
        self._ends_s = None if timeout_s is None else time.monotonic() + timeout_s

    def hurry(self) -> None:
        """Let the next thing take no longer than is left.

        Raises:
            TimeoutError: Nothing is left.
        """
        if self._ends_s is None:
            self._socket.settimeout(None)
            return
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left_s)

    # What `http.client` and `select` call

    def sendall(self, data: Any) -> None:
        """Send everything."""
        self.hurry()
        self._socket.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return a file to read an answer from."""
        assert mode == "rb"
        return io.BufferedReader(_Reader(self, self._socket.makefile("rb", buffering=0)))

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket, once its files are closed too."""
        self._socket.close()


@final
class _Reader(io.RawIOBase):
    def __init__(self, bounded: BoundedSocket, raw: socket.SocketIO) -> None:
        self._bounded = bounded
        self._raw = raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._bounded.hurry()
        return self._raw.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()
