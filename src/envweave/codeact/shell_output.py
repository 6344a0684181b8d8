"""A stream that the programs of a shell write to, kept up to a limit. It runs inside sessions."""

from __future__ import annotations

import codecs
import fcntl
import os
import termios

_OWN_FILES = 10
"""The pipes of this process are kept above what every shell can name."""
_READ_BYTES = 1 << 16


def make_pipe() -> tuple[int, int]:
    """Return the two ends of a pipe, out of the way of the numbers that a shell uses."""
    low = os.pipe()
    try:
        reading, writing = (fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, _OWN_FILES) for one in low)
    finally:
        for one in low:
            os.close(one)
    return reading, writing


def unread(descriptor: int) -> int:
    """Return how many bytes stand in a pipe."""
    counted = fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4)
    return int.from_bytes(counted, "little")


class Output:
    """One stream of all commands. What background jobs write between two stands in its pipe.

    Attributes:
        reading: Where this process reads.
        writing: What programs are given.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.reading, self.writing = make_pipe()
        os.set_blocking(self.reading, False)
        self._limit = limit_bytes
        self._kept = bytearray()
        self._lost = 0

    def fetch(self, most: int = _READ_BYTES) -> int:
        """Read what is there, and keep what there is room for; return how much it was."""
        try:
            data = os.read(self.reading, min(most, _READ_BYTES))
        except BlockingIOError:
            return 0
        room = self._limit - len(self._kept)
        self._kept += data[:room]
        self._lost += max(len(data) - room, 0)
        return len(data)

    def take(self) -> tuple[bytes, int]:
        """Return what was written until now, and how many bytes of it were cut."""
        # A job in the background may write faster than anybody reads.
        there = unread(self.reading)
        while there > 0:
            got = self.fetch(there)
            there -= got or there
        taken = bytes(self._kept), self._lost
        self._kept.clear()
        self._lost = 0
        return taken


def as_text(data: bytes, lost: int) -> str:
    """Return what was written as text: bytes that are none are shown by their numbers."""
    # Only what is whole, if more followed.
    text = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode(data, final=not lost)
    return f"{text}\n... [{lost} bytes cut]" if lost else text
