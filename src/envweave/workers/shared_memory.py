"""Anonymous memory that processes share; the kernel frees it with the last of them."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from typing import Any, Self, TypeAlias, final

import numpy as np

AnyArray: TypeAlias = np.ndarray[Any, Any]


@final
class SharedMemory:
    """A block of shared memory without a name: passed on as a descriptor, never left behind."""

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
        """Return the block as unsigned 64-bit integers."""
        return memoryview(self._map).cast("Q")

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> AnyArray:
        """Return the part that begins at `offset` as an array."""
        return np.ndarray(shape, dtype, self._map, offset)

    def close(self) -> None:
        """Release the block; arrays that still refer to it keep it. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1
        with contextlib.suppress(BufferError):
            self._map.close()
