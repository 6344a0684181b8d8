"""How a trainer and a worker process tell each other that it is their turn.

A turn is a number in shared memory, and a bell. Whoever waits looks at the number for a short
while, since waking a process that sleeps costs a hundred times more than a step, then sleeps
until the bell rings. Every turn rings, so none can be missed.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from typing import NamedTuple, final

from envweave.transports.process.memory import Memory

WIDTH = 16
"""Words a worker, in two cache lines of its own."""

_LOOKS = 3000
"""How often to look before sleeping: for about 0.2 ms."""


def looks(processes: int) -> int:
    """Return how often each of so many processes may look before it sleeps.

    More of them than there are cores would keep each other from working. Where a processor may
    show two writes in another order (all but x86), only the kernel's bell makes sure of it.
    """
    if processes > cores() or platform.machine() not in ("x86_64", "AMD64"):
        return 0
    return _LOOKS


def cores() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@final
class Bell:
    """Something to sleep on: rung by one process, heard by another."""

    def __init__(self, listen: int, ring: int) -> None:
        self.fds: tuple[int, ...] = (listen, ring)
        self._ring = ring
        self._is_event = listen == ring

    @classmethod
    def new(cls) -> Bell:
        """Make one."""
        if hasattr(os, "eventfd"):
            fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            return cls(fd, fd)
        listen, ring = os.pipe()
        os.set_blocking(listen, False)
        os.set_blocking(ring, False)
        return cls(listen, ring)

    def fileno(self) -> int:
        """Return what to poll: it can be read after it has rung."""
        return self.fds[0]

    def ring(self) -> None:
        """Wake whoever sleeps on it."""
        try:
            if self._is_event:
                os.eventfd_write(self._ring, 1)
            else:
                os.write(self._ring, b"\0")
        except BlockingIOError:
            pass  # it has rung more often than anybody can count, so nobody sleeps

    def hush(self) -> None:
        """Forget that it has rung."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fds[0], 8 if self._is_event else 4096)

    def close(self) -> None:
        """Let go of it. May be called twice."""
        for fd in set(self.fds):
            os.close(fd)
        self.fds = ()
        self._ring = -1  # the number may be another file's by now


class Turn(NamedTuple):
    """A worker's place on the board, as indices of words.

    Attributes:
        go: How many turns the trainer has given.
        done: How many of them the worker has finished.
        kind: What the turn is about.
        more: Whether a message goes with what was done.
        row: Which environment's code is running.
        since: Since when, by the system's clock, in nanoseconds; 0 while none is.
    """

    go: int
    done: int
    kind: int
    more: int
    row: int
    since: int

    @classmethod
    def of(cls, index: int) -> Turn:
        """Return the place of one worker."""
        return cls(*range(index * WIDTH, index * WIDTH + 6))

    @property
    def place(self) -> int:
        """Which worker's it is."""
        return self.go // WIDTH


MESSAGE, STEP_ALL = range(2)
"""Kinds of turns: a message says it; every environment's action is in its shared column."""


@final
class Board:
    """The turns of all workers, in memory that everybody sees."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.words = memory.words()

    @classmethod
    def of(cls, workers: int) -> Board:
        """Make one for so many workers."""
        return cls(Memory.of(workers * WIDTH * 8))

    def clear(self, turn: Turn) -> None:
        """Forget what a worker that is gone had written."""
        for index in turn:
            self.words[index] = 0

    def begin(self, turn: Turn, row: int) -> None:
        """Note that an environment's code begins to run."""
        self.words[turn.row] = row
        self.words[turn.since] = time.monotonic_ns()

    def end(self, turn: Turn) -> None:
        """Note that it has come back."""
        self.words[turn.since] = 0

    def close(self) -> None:
        """Let go of the memory. May be called twice."""
        self.words.release()
        self.memory.close()
