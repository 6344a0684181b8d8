"""Processes of a session that nobody holds: found by the namespace of their ids, and ended.

A session that is asked to copy itself may fork as it was let, and say that it could not. The fork
would run on unseen, with memory and time of its own, until the last of its family is closed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Collection

_LOOKS = 10
_PAUSE_S = 0.002


def end_strays(member: int, known: Collection[int], is_gone: Callable[[], bool]) -> int:
    """Kill every process that has the PID namespace of `member` and is not `known`.

    It looks more than once: a fork that was let through may not have happened yet.

    Args:
        member: Whose namespace it is.
        known: The process ids of those that are to live.
        is_gone: Says whether the member has ended, and its number may be another's.

    Returns:
        How many were found.
    """
    try:
        namespace = os.open(f"/proc/{member}/ns/pid", os.O_RDONLY)
    except OSError:
        return 0
    try:
        family = os.fstat(namespace).st_ino  # nobody else's as long as this is open
        if is_gone() or family == _namespace(os.getpid()):
            return 0
        for _ in range(_LOOKS):
            pids = map(int, filter(str.isdigit, os.listdir("/proc")))
            strays = [one for one in pids if one not in known and _namespace(one) == family]
            if ended := sum(_end(one, family) for one in strays):
                return ended
            time.sleep(_PAUSE_S)
        return 0
    finally:
        os.close(namespace)


def _end(pid: int, family: int) -> bool:
    with contextlib.suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            # Else the number is another's by now, or nobody buried it.
            if _namespace(pid) == family and not _is_gone(process):
                signal.pidfd_send_signal(process, signal.SIGKILL)
                return True
        finally:
            os.close(process)
    return False


def _is_gone(process: int) -> bool:
    waiting = select.poll()
    waiting.register(process, select.POLLIN)
    return bool(waiting.poll(0))


def _namespace(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return None
