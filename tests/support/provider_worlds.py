"""What a server process cannot start with, or not always."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from process_worlds import Place, spoil

import envweave as ew
from envweave.examples import CounterEnv


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


class LeavesACopy(Place):
    """Forks at its first reset; the copy holds every connection of its process, and stays."""

    def reset(self, *, seed: int | None = None) -> Any:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        return super().reset(seed=seed)


class DiesAtReset(Place):
    """Kills its process in `reset`, while there is a file `at/die`."""

    def reset(self, *, seed: int | None = None) -> Any:
        if (self.at / "die").exists():
            spoil("kill")
        return super().reset(seed=seed)


class WithTasks(Place):
    """Has tasks, which are asked for over a connection of their own."""

    tasks = ew.Tasks({"train": [ew.Task("a"), ew.Task("b")]})

    def reset(self, *, task: ew.Task, seed: int | None = None) -> Any:
        return super().reset(seed=seed)
