"""Environments that crash, block, fill the memory or end their process.

Workers, servers and containers import them by name; a container gets a copy of this file.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import envweave as ew
from envweave.examples import CounterEnv

(GO, END, RAISE, KILL, SEGV, EXIT, LEAVE, HANG, WAIT, MEMORY, TRICKY, LOCK, LAMBDA, BLOCK) = range(
    14
)


class TrickyError(Exception):
    """Can be pickled, and not unpickled."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


class Crashing(ew.Environment):
    """Shows the process it runs in, the seed of its episode, and the step; `at` is a directory.

    An instance that gets `WAIT`, or is the first to find a file `at/hold-make` or `at/hold-reset`,
    writes its process id to the pipe `at/here` and blocks forever.
    """

    def __init__(self, at: str = "", fail_at: int = -1, how: str = "raise") -> None:
        self.at = Path(at)
        if fail_at >= 0 and self._count() == fail_at:
            crash(how)
        self.seed, self.step_count = -1, 0
        self._hold("make")

    def _count(self) -> int:
        """Return how many were made before this one, in all processes."""
        for k in range(1000):
            try:
                (self.at / f"made-{k}").touch(exist_ok=False)
            except FileExistsError:
                continue
            return k
        raise AssertionError

    def _hold(self, what: str) -> None:
        """Block here if there is a file `at/hold-…`; one instance does."""
        if self.at.name and self._takes_down(f"hold-{what}"):
            self._held()

    def _takes_down(self, sign: str) -> bool:
        """Remove a marker file; return whether this process did."""
        try:
            (self.at / sign).unlink()
        except FileNotFoundError:
            return False
        return True

    def _held(self) -> None:
        with (self.at / "here").open("w") as pipe:
            pipe.write(f"{os.getpid()}\n")
        threading.Event().wait()

    def reset(self, *, seed: int | None = None) -> Any:
        self.seed, self.step_count = seed or 0, 0
        self._hold("reset")
        if self.at.name and (self.at / f"hang-reset-{seed}").exists():
            time.sleep(3600)
        return self._show(), {}

    def step(self, action: int) -> Any:
        self.step_count += 1
        info: dict[str, Any] = {}
        if action == RAISE:
            raise OSError("no more")
        if action == WAIT:
            self._held()
        if action == HANG:
            time.sleep(3600)
        if action == MEMORY:
            raise MemoryError
        if action == TRICKY:
            raise TrickyError(1, 2)
        if action == LOCK:
            info["lock"] = threading.Lock()
        if action == LAMBDA:
            info["double"] = lambda x: 2 * x
        if action in (KILL, SEGV, EXIT, LEAVE):
            crash({KILL: "kill", SEGV: "segfault", EXIT: "exit", LEAVE: "leave"}[action])
        return self._show(), 1.0, action == END, False, info

    def _show(self) -> Any:
        return np.array([os.getpid(), self.seed, self.step_count])

    @property
    def state(self) -> ew.State:
        return ew.State(step_count=self.step_count)


def kill(pid: Any) -> None:
    """Kill a process, and wait until it is dead."""
    process = os.pidfd_open(int(pid))
    os.kill(int(pid), signal.SIGKILL)
    select.select([process], [], [])
    os.close(process)


def crash(how: str) -> None:
    if how == "raise":
        raise OSError("out of machines")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "exit":
        os._exit(3)
    if how == "leave":
        sys.exit(4)


class AsyncCrashing(Crashing):
    """The same with coroutines; `BLOCK` holds up the whole event loop."""

    async def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)

    async def step(self, action: int) -> Any:  # type: ignore[override]
        if action == HANG:
            await asyncio.sleep(3600)
        if action == BLOCK:
            time.sleep(3600)
        return super().step(action)


class Parent(Crashing):
    """Starts a process of its own."""

    def __init__(self, at: str = "") -> None:
        super().__init__(at)
        self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        (self.at / f"child-{self.child.pid}").touch()


class LeavesAThread(Crashing):
    """Holds a thread that never ends."""

    def __init__(self, at: str = "") -> None:
        super().__init__(at)
        threading.Thread(target=threading.Event().wait).start()


class ClosesBadly(Crashing):
    def close(self) -> None:
        (self.at / f"closed-{self.seed}").touch()
        raise OSError("socket")


class NeverCloses(Crashing):
    def close(self) -> None:
        time.sleep(3600)


class Unsendable(Crashing):
    """Its state, and what its reset tells, cannot be sent."""

    def reset(self, *, seed: int | None = None) -> Any:
        observation, _ = super().reset(seed=seed)
        return observation, {"lock": threading.Lock()}

    @property
    def state(self) -> Any:
        return Locked()


class Locked:
    """Can be copied, and not be sent."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __deepcopy__(self, memo: Any) -> Locked:
        return self


class Unreadable(Crashing):
    """Tells at `RAISE` what can be sent, and not be read."""

    def step(self, action: int) -> Any:
        *outcome, _ = super().step(GO)
        return *outcome, {"error": TrickyError(1, 2)} if action == RAISE else {}


class SendsInterrupts(Crashing):
    """Interrupts its trainer, as Ctrl-C does: at `WAIT`, and at signs in its reset and state."""

    def reset(self, *, seed: int | None = None) -> Any:
        self._press_at("press-reset")
        return super().reset(seed=seed)

    def step(self, action: int) -> Any:
        if action == WAIT:
            os.kill(os.getppid(), signal.SIGINT)
        return super().step(GO)

    @property
    def state(self) -> ew.State:
        self._press_at("press-state")
        return ew.State(step_count=self.step_count)

    def _press_at(self, sign: str) -> None:
        if self.at.name and self._takes_down(sign):
            os.kill(os.getppid(), signal.SIGINT)


class LeavesACopy(Crashing):
    """Forks at its first reset; the copy holds every connection of its process, and stays."""

    def reset(self, *, seed: int | None = None) -> Any:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        return super().reset(seed=seed)


class DiesAtReset(Crashing):
    """Kills its process in `reset`, while there is a file `at/die`."""

    def reset(self, *, seed: int | None = None) -> Any:
        if (self.at / "die").exists():
            crash("kill")
        return super().reset(seed=seed)


class WithTasks(Crashing):
    """Has tasks, which are asked for over a connection of their own."""

    tasks = ew.Tasks({"train": [ew.Task("a"), ew.Task("b")]})

    def reset(self, *, task: ew.Task, seed: int | None = None) -> Any:
        return super().reset(seed=seed)


class Exits(CounterEnv):
    """Ends its process while it is made."""

    def __init__(self) -> None:
        super().__init__()
        sys.stderr.write("no good today\n")
        sys.stderr.flush()
        os._exit(7)


class Sleeps(CounterEnv):
    """Is not made for a long time."""

    def __init__(self) -> None:
        super().__init__()
        time.sleep(60)


class FailsOnce(CounterEnv):
    """Cannot be made, once a file is there; it is gone then."""

    def __init__(self, sign: str) -> None:
        super().__init__()
        if Path(sign).exists():
            Path(sign).unlink()
            raise RuntimeError("no licence")


_BOOT = """
import os, sys
os.mkdir("/tmp/environments")
with open("/tmp/environments/crashing.py", "w") as file:
    file.write(os.environ["SOURCE"])
os.execv(sys.executable, [sys.executable, "-m", "envweave.cli.container_main"])
"""


@dataclass
class Allocated(ew.Observation):
    mebibytes: int = 0


@dataclass
class Allocate(ew.Action):
    """How much memory to allocate, and the code to exit with."""

    mebibytes: int = 0
    exit: int | None = None


class MemoryHog(ew.Environment):
    """Allocates as much memory as an action says; ends its server when an action says so."""

    def __init__(self) -> None:
        self._memory: list[bytes] = []

    def reset(self) -> Allocated:
        self._memory.clear()
        return Allocated()

    def step(self, action: Allocate) -> Allocated:
        if action.exit is not None:
            os._exit(action.exit)
        self._memory += [b"1" * 2**20 for _ in range(action.mebibytes)]
        return Allocated(len(self._memory))


MEMORY_HOG = "pkg://environments.crashing:MemoryHog"


def copy_into(folder: Path) -> None:
    """Copy this module, so that a container that mounts the folder can import it."""
    package = folder / "environments"
    package.mkdir()
    (package / "crashing.py").write_text(Path(__file__).read_text())


def pod_options(**options: Any) -> dict[str, Any]:
    """Return options of a provider whose pods can import this module."""
    variables = {"SOURCE": Path(__file__).read_text(), "PYTHONPATH": "/tmp"}
    return {"command": ["python", "-c", _BOOT], "env_vars": variables, **options}
