"""Memory that processes share, and that the kernel frees with the last of them."""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self, TypeAlias, final

import numpy as np

from envweave.codec import Spec
from envweave.codec.scalars import ArraySpec, IntSpec
from envweave.vector.columns import Arrays, Columns, Fields, Layout, Listed, Numbers

AnyArray: TypeAlias = np.ndarray[Any, Any]

_REWARD = np.dtype(np.float64), ()
_LINE = 64
"""Columns begin at a cache line of their own."""


@final
class SharedMemory:
    """A block of shared memory without a name: it can be passed on, and never be left behind."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)

    @classmethod
    def of(cls, size: int) -> Self:
        """Make a block of `size` bytes, all of them zero."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("envweave")
        else:
            with tempfile.TemporaryFile() as file:  # it has no name either
                fd = os.dup(file.fileno())
        os.ftruncate(fd, max(size, 1))
        return cls(fd)

    def words(self) -> memoryview:
        """Return the block as unsigned numbers of 64 bits."""
        return memoryview(self._map).cast("Q")

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> AnyArray:
        """Return the part that begins at `offset` as an array."""
        return np.ndarray(shape, dtype, self._map, offset)

    def close(self) -> None:
        """Let go of the block; arrays of it that are still around keep it. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1
        with contextlib.suppress(BufferError):
            self._map.close()


@final
class SharedColumns:
    """What is numeric of the rows of a vector: rewards, actions, and a column a field.

    Actions have a column if each is a number, or an array of one shape.

    A row belongs to whoever steps it, from the moment its action is there until its outcome is.
    """

    def __init__(self, memory: SharedMemory, layout: Layout, acts: Layout, num_envs: int) -> None:
        self.layout = layout
        self.acts = acts
        place = _places(memory, num_envs)
        self.rewards = place(*_REWARD)
        self.actions = [place(dtype, shape) for dtype, shape in _numeric(acts)]
        self.leaves = [place(dtype, shape) for dtype, shape in _numeric(layout)]

    @staticmethod
    def size(layout: Layout, acts: Layout, num_envs: int) -> int:
        """Return how many bytes they take."""
        kinds = [_REWARD, *_numeric(acts), *_numeric(layout)]
        return sum(_room(dtype, shape, num_envs) for dtype, shape in kinds)

    def read_actions(self, rows: slice) -> list[Any]:
        """Return the actions of some rows, as authors take them."""
        column = self.actions[0][rows]
        return column.tolist() if isinstance(self.acts, Numbers) else list(column.copy())

    def put(self, rows: slice | list[int], columns: Columns) -> list[list[Any]]:
        """Write the columns of some rows; return those that are lists, which do not fit in."""
        lists: list[list[Any]] = []
        leaves = iter(self.leaves)
        for leaf, column in _walk(self.layout, columns):
            if isinstance(leaf, Numbers | Arrays):
                next(leaves)[rows] = column
            else:
                lists.append(column)
        return lists


def action_layout(spec: Spec) -> Layout:
    """Return how the actions make columns: one if each is a number or an array, else none."""
    if isinstance(spec, IntSpec):
        return Numbers(np.dtype(np.int64))
    if isinstance(spec, ArraySpec) and spec.dtype is not None and spec.shape is not None:
        return Arrays(spec.dtype, spec.shape)
    return Listed()


def _places(
    memory: SharedMemory, count: int
) -> Callable[[np.dtype[Any], tuple[int, ...]], AnyArray]:
    """Return a function that gives out one column after the other."""
    offset = 0

    def place(dtype: np.dtype[Any], shape: tuple[int, ...]) -> AnyArray:
        nonlocal offset
        array = memory.array(offset, (count, *shape), dtype)
        offset += _room(dtype, shape, count)
        return array

    return place


def _room(dtype: np.dtype[Any], shape: tuple[int, ...], count: int) -> int:
    size = count * int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return -(-size // _LINE) * _LINE


def _numeric(layout: Layout) -> Iterator[tuple[np.dtype[Any], tuple[int, ...]]]:
    if isinstance(layout, Fields):
        for column in layout.columns.values():
            yield from _numeric(column)
    elif isinstance(layout, Numbers):
        yield layout.dtype, ()
    elif isinstance(layout, Arrays):
        yield layout.dtype, layout.shape


def _walk(layout: Layout, columns: Columns) -> Iterator[tuple[Layout, Columns]]:
    """Go through columns leaf by leaf."""
    if isinstance(layout, Fields):
        for name, column in layout.columns.items():
            yield from _walk(column, columns[name])
    else:
        yield layout, columns


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
class EventFd:
    """Something to sleep on: rung by one process, heard by another."""

    def __init__(self, listen: int, ring: int) -> None:
        self.fds: tuple[int, ...] = (listen, ring)
        self._ring = ring
        self._is_event = listen == ring

    @classmethod
    def new(cls) -> EventFd:
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


class TurnSlot(NamedTuple):
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
    def of(cls, index: int) -> TurnSlot:
        """Return the place of one worker."""
        return cls(*range(index * WIDTH, index * WIDTH + 6))

    @property
    def place(self) -> int:
        """Which worker's it is."""
        return self.go // WIDTH


MESSAGE, STEP_ALL = range(2)
"""Kinds of turns: a message says it; every environment's action is in its shared column."""


@final
class TurnTable:
    """The turns of all workers, in memory that everybody sees."""

    def __init__(self, memory: SharedMemory) -> None:
        self.memory = memory
        self.words = memory.words()

    @classmethod
    def of(cls, workers: int) -> TurnTable:
        """Make one for so many workers."""
        return cls(SharedMemory.of(workers * WIDTH * 8))

    def clear(self, turn: TurnSlot) -> None:
        """Forget what a worker that is gone had written."""
        for index in turn:
            self.words[index] = 0

    def begin(self, turn: TurnSlot, row: int) -> None:
        """Note that an environment's code begins to run."""
        self.words[turn.row] = row
        self.words[turn.since] = time.monotonic_ns()

    def end(self, turn: TurnSlot) -> None:
        """Note that it has come back."""
        self.words[turn.since] = 0

    def close(self) -> None:
        """Let go of the memory. May be called twice."""
        self.words.release()
        self.memory.close()
