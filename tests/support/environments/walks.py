"""Random walks of many steps, whose episodes tests lose, bring back and fork."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import envweave as ew

Returned = tuple[dict[str, Any], float, bool, bool, dict[str, Any]]


class LongWalk(ew.Environment):
    """Takes 8 to 20 steps; what a step earns depends on the task's private part."""

    tasks = ew.Tasks({"train": [ew.Task(f"walk-{i}", private={"pay": i}) for i in range(3)]})

    def reset(self, *, task: ew.Task, seed: int | None = None) -> tuple[dict[str, Any], dict]:
        self.rng, self.x, self.taken = random.Random(seed), 0.0, 0
        self.pay, self.length = task.private["pay"], self.rng.randint(8, 20)
        return {"x": 0.0, "pad": b""}, {"length": self.length}

    def step(self, action: int) -> Returned:
        self.taken += 1
        self.x += action * self.rng.random()
        over = self.taken == self.length
        return {"x": self.x, "pad": b""}, self.x * self.pay, over, False, {"taken": self.taken}


class CopyableLongWalk(LongWalk):
    """The same walk, whose state can be copied."""

    copyable = True


class UnrepeatableWalk(LongWalk):
    """Takes its randomness from elsewhere, and does not say so."""

    def step(self, action: int) -> Returned:
        self.rng = random.Random(random.SystemRandom().random())
        return super().step(action)


class UndeterministicWalk(UnrepeatableWalk):
    """The same, and says so."""

    deterministic = False


class CopyableUndeterministicWalk(UndeterministicWalk):
    """The same, whose state can be copied."""

    copyable = True


class AskingWalk(LongWalk):
    """Asks its caller for a number in every step, with a call id that is never the same."""

    def step(self, action: int) -> Returned:
        call_id = f"call-{random.SystemRandom().random()}"
        self.emit(ew.ToolCallRequest(call_id, "number", {}))
        return {"x": self.x, "pad": b""}, 0.0, False, False, {}

    def answer(self, result: ew.ToolResult) -> Returned:
        return super().step(int(result.value))


class CopyableAskingWalk(AskingWalk):
    """The same, whose state can be copied."""

    copyable = True


class Dying(LongWalk):
    """Ends its own process at a step, every time."""

    def step(self, action: int) -> Returned:
        if self.taken == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Struck(LongWalk):
    """Loses its process once in each episode, and marks that in a directory."""

    def __init__(self, marks: str) -> None:
        self.marks = Path(marks)

    def reset(self, *, task: ew.Task, seed: int | None = None) -> tuple[dict[str, Any], dict]:
        self.mark = self.marks / str(seed)
        return super().reset(task=task, seed=seed)

    def step(self, action: int) -> Returned:
        if self.taken == 4 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)
