"""Whether others used the machine while we measured."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

NOTABLE = 0.05
"""From which share on it is worth telling."""


class Company:
    """What other programs take of the cores, from when this is made."""

    def __init__(self) -> None:
        self._began = self._readings()

    def share(self) -> float | None:
        """Return which share of all cores others took; `None` where the system does not tell.

        The children of this process must have ended, since only then their time is known.
        """
        now = self._readings()
        if now is None or self._began is None:
            return None
        wall_s, busy_s, own_s = (new - old for new, old in zip(now, self._began, strict=True))
        cores = os.cpu_count() or 1
        return min(1.0, max(0.0, (busy_s - own_s) / (wall_s * cores)))

    @staticmethod
    def _readings() -> tuple[float, float, float] | None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            first = Path("/proc/stat").read_text().partition("\n")[0].split()[1:]
            user, nice, system, _, _, interrupt, soft = map(int, first[:7])
            busy_s = (user + nice + system + interrupt + soft) / os.sysconf("SC_CLK_TCK")
            return time.monotonic(), busy_s, sum(os.times()[:4])
        return None
