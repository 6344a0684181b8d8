"""The machine that a benchmark runs on: its load, its sleeping cores, its limits, its memory."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from envweave.bench.memory import children_of, describe_machine, tree_bytes, usable_cores, weigh

__all__ = [
    "NOTABLE_LOAD",
    "OtherLoad",
    "children_of",
    "describe_machine",
    "keep_cores_awake",
    "private_bytes",
    "raise_file_limit",
    "tree_bytes",
    "usable_cores",
    "weigh",
]

NOTABLE_LOAD = 0.05
"""A share of the cores from which on the load of other programs is reported."""

_SPIN = """
import os, sys
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while os.getppid() == int(sys.argv[1]):
    for _ in range(100_000):
        pass
"""


@contextlib.contextmanager
def keep_cores_awake() -> Iterator[None]:
    """Keep every core busy with a process of the lowest priority, where the system supports it.

    A virtual machine may give an idle core away, and to wake it up takes longer than a round trip
    between two processes. Without this, the benchmark would count wake-ups.
    """
    spinning: list[subprocess.Popen[bytes]] = []
    cores = os.cpu_count() or 1 if hasattr(os, "SCHED_IDLE") else 0
    command = [sys.executable, "-c", _SPIN, str(os.getpid())]
    try:
        spinning += [subprocess.Popen(command) for _ in range(cores)]
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


class OtherLoad:
    """The share of all cores that other programs use, from the creation of this object."""

    def __init__(self) -> None:
        self._start = self._readings()

    def share(self) -> float | None:
        """Return the share, or `None` where the system does not report it.

        The children of this process must have ended: only then is their time known.
        """
        now = self._readings()
        if now is None or self._start is None:
            return None
        wall_s, busy_s, own_s = (new - old for new, old in zip(now, self._start, strict=True))
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


def private_bytes(pid: int) -> int:
    """Return the memory of a process that no other process shares."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))
    return 0


def raise_file_limit() -> None:
    """Allow as many open files as the system lets us: processes, pipes and sessions need them."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
