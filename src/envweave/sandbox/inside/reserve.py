"""Memory kept back, so that a session that has used up all it may can still say so."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import final

from envweave.sandbox.own_builtins import OWN

__builtins__ = OWN

_BYTES = 4 << 20
_map = mmap.mmap


@final
class Reserve:
    """A few megabytes that count against the limit and, never touched, take none."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self.fill()

    def fill(self) -> None:
        """Take it again, if it was spent and there is room."""
        if self._memory is None:
            with suppress(OSError, MemoryError):
                self._memory = _map(-1, _BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def spend(self) -> None:
        """Give it back to whoever asks for memory next."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()
