"""Cores that stay awake while others wait for each other.

On a virtual machine an idle core may be given away, and to wake it up takes longer than the whole
round trip that is measured: then everybody is as slow as the number of times that it waits. A
program of the lowest priority on each core keeps it, and makes room for anybody else at once.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

_SPIN = """
import os, sys
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while os.getppid() == int(sys.argv[1]):
    for _ in range(100_000):
        pass
"""


@contextlib.contextmanager
def awake() -> Iterator[None]:
    """Keep every core awake while the block runs, where the system can."""
    spinning: list[subprocess.Popen[bytes]] = []
    cores = os.cpu_count() or 1 if hasattr(os, "SCHED_IDLE") else 0
    command = [sys.executable, "-c", _SPIN, str(os.getpid())]
    try:
        spinning += [subprocess.Popen(command) for _ in range(cores)]
        yield
    finally:
        for one in spinning:
            one.kill()
            one.wait()
