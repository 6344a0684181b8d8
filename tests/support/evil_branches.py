"""Code for sessions that misbehave when they are to be copied, and a look at their processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

PRELUDE = """
import array, ctypes, os, select, socket, struct, threading, time
import envweave.sandbox.inside.branch as branching
from envweave.sandbox.protocol.messages import Failure, Ready, Replied
from envweave.sandbox.walls import kernel
import msgspec
usual = branching.BranchServer.__call__
become_session = branching.BranchServer._become_session

def frame(message):
    data = msgspec.msgpack.encode(message)
    return struct.pack("<I", len(data)) + data

def descriptor():
    line = socket.socket(fileno=os.dup(3))
    _, ancillary, _, _ = line.recvmsg(1, socket.CMSG_SPACE(4))
    line.close()
    return array.array("i", ancillary[0][2][:4])[0]

def begin(self, message):
    self._runner.send(Replied(message.id, None, None))
    return descriptor()

def wait():
    time.sleep(60)
"""


def family(pid: int) -> set[int]:
    """Return the processes, but for unburied ones, that have the process ids of this one."""
    ours = _namespace(Path(f"/proc/{pid}"))
    processes = [one for one in Path("/proc").iterdir() if one.name.isdigit()]
    return {int(one.name) for one in processes if ours and _namespace(one) == ours}


def _namespace(process: Path) -> int:
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        return 0 if state in "ZX" else (process / "ns/pid").stat().st_ino
    except OSError:
        return 0


def soon(holds: Callable[[], bool]) -> bool:
    """Say whether something comes true before long: who is killed takes a moment to be gone."""
    ends_s = time.monotonic() + 5.0
    while not holds():
        if time.monotonic() > ends_s:
            return False
        time.sleep(0.005)
    return True
