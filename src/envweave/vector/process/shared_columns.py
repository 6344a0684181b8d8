"""Columns of a vector in memory that it shares with its workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy as np

from envweave.vector.columns import Arrays, Columns, Fields, Layout, Numbers
from envweave.vector.process.action_columns import ActionColumns
from envweave.workers.shared_memory import AnyArray, SharedMemory

_REWARD = np.dtype(np.float64), ()
_LINE = 64
"""Columns begin at a cache line of their own."""


@final
class SharedColumns:
    """The numeric part of the rows of a vector: rewards, actions, and a column for each field.

    A row belongs to the process that steps it, from when its action is written until its outcome
    is.
    """

    def __init__(
        self, memory: SharedMemory, layout: Layout, acts: ActionColumns, num_envs: int
    ) -> None:
        self.layout = layout
        self.acts = acts
        allocate = _allocator(memory, num_envs)
        self.rewards = allocate(*_REWARD)
        self.actions = [allocate(dtype, shape) for dtype, shape in acts.kinds]
        self.leaves = [allocate(dtype, shape) for dtype, shape in _numeric(layout)]

    @staticmethod
    def size(layout: Layout, acts: ActionColumns, num_envs: int) -> int:
        """Return how many bytes the columns take."""
        kinds = [_REWARD, *acts.kinds, *_numeric(layout)]
        return sum(_bytes(dtype, shape, num_envs) for dtype, shape in kinds)

    def write_actions(self, first: int, columns: Sequence[AnyArray]) -> None:
        """Write the actions of the rows from the first one on."""
        for column, values in zip(self.actions, columns, strict=True):
            column[first:] = values

    def read_actions(self, rows: slice) -> list[Any]:
        """Return the actions of some rows, in the form that an author's `step` takes."""
        return self.acts.read([column[rows] for column in self.actions])

    def pack(self, rows: slice | list[int]) -> bytes:
        """Return the rewards and observations of some rows as bytes."""
        return b"".join([column[rows].tobytes() for column in (self.rewards, *self.leaves)])

    def unpack(self, rows: slice | list[int], packed: memoryview) -> None:
        """Write the rewards and observations of some rows that were packed."""
        offset = 0
        for column in (self.rewards, *self.leaves):
            chosen = column[rows]
            size = chosen.nbytes
            values = np.frombuffer(packed[offset : offset + size], column.dtype)
            column[rows] = values.reshape(chosen.shape)
            offset += size

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


def _allocator(
    memory: SharedMemory, count: int
) -> Callable[[np.dtype[Any], tuple[int, ...]], AnyArray]:
    """Return a function that allocates one column after the other."""
    offset = 0

    def allocate(dtype: np.dtype[Any], shape: tuple[int, ...]) -> AnyArray:
        nonlocal offset
        array = memory.array(offset, (count, *shape), dtype)
        offset += _bytes(dtype, shape, count)
        return array

    return allocate


def _bytes(dtype: np.dtype[Any], shape: tuple[int, ...], count: int) -> int:
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
    """Iterate over columns leaf by leaf."""
    if isinstance(layout, Fields):
        for name, column in layout.columns.items():
            yield from _walk(column, columns[name])
    else:
        yield layout, columns
