"""Whether to poll for a message before sleeping, as long as that pays. No I/O."""

from __future__ import annotations

import os
from typing import final

SPIN_S = 0.0001
"""How long to poll: a process that sleeps needs about that long to wake up."""

_MAX_SKIPPED = 256


@final
class SpinBackoff:
    """When to poll: always, as long as messages come within `SPIN_S`.

    After a miss it is not tried for the next 4 times, after another one for 16, up to 256, unless
    most of the tries between them were worth it.
    """

    __slots__ = ("_last_skip", "_skip")

    def __init__(self) -> None:
        self._skip, self._last_skip = 0, 1

    def is_due(self) -> bool:
        """Whether to poll now."""
        if self._skip:
            self._skip -= 1
            return False
        return True

    def record(self, *, arrived: bool) -> None:
        """Record whether a message came while polling."""
        if arrived:
            self._last_skip = max(self._last_skip // 2, 1)
        else:
            self._skip = self._last_skip = min(4 * self._last_skip, _MAX_SKIPPED)


def has_cores() -> bool:
    """Whether this process can run beside another one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (cores or 1) > 1
