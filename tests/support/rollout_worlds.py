"""Environments and agents for tests of pools and rollouts."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import envweave as ew


@dataclass
class Move(ew.Action):
    by: int = 1


@dataclass
class Seen(ew.Observation):
    at: int
    noise: float = 0.0


TASKS = ew.Tasks({"train": [ew.Task(name) for name in "abcdef"], "test": [ew.Task("z", "test")]})


class Walk(ew.Environment):
    """Takes as many steps as its seed says, from 1 to 6, and earns a drawn reward each time."""

    tasks = TASKS

    def reset(self, *, task: ew.Task, seed: int | None = None) -> Seen:
        self.rng, self.at = random.Random(f"{task.id}-{seed}"), 0
        self.length = self.rng.randint(1, 6)
        return Seen(0, self.rng.random())

    def step(self, action: Move) -> Seen:
        self.at += 1
        noise = self.rng.random()
        return Seen(self.at, noise, reward=noise * action.by, done=self.at == self.length)


def forward(result: ew.StepResult[Any]) -> dict[str, int]:
    return {"by": 1}


class Counted(ew.Environment):
    """Three steps an episode; every instance notes what becomes of it in `log`."""

    log: Counter[str]

    def __init__(self) -> None:
        self.log["made"] += 1

    def reset(self, *, seed: int | None = None) -> Seen:
        self.at = 0
        return Seen(0)

    async def step(self, action: Move) -> Seen:
        await asyncio.sleep(0)
        self.at += 1
        return Seen(self.at, reward=1.0, done=self.at == 3)

    async def close(self) -> None:
        self.log["closed"] += 1


def counted() -> type[Counted]:
    """Return a class with a log of its own."""
    return type("Counted", (Counted,), {"log": Counter()})


def flaky(fails: Callable[[str, int], str | None]) -> tuple[type[ew.Environment], list[str]]:
    """Return an environment that fails when told to, and the log of who played what.

    Args:
        fails: Takes a task's id and how often it has been tried before; returns `"reset"`,
            `"step"`, `"agent"` (the agent's own failure), or `None` for an ordinary episode.
    """
    tried: Counter[str] = Counter()
    log: list[str] = []

    class Flaky(ew.Environment):
        tasks = TASKS
        made = 0

        def __init__(self) -> None:
            Flaky.made += 1
            self.name = f"env{Flaky.made}"

        def reset(self, *, task: ew.Task, seed: int | None = None) -> Seen:
            self.how = fails(task.id, tried[task.id])
            tried[task.id] += 1
            log.append(f"{self.name} {task.id} {seed}")
            if self.how == "reset":
                raise OSError("the disk is full")
            return Seen(0)

        def step(self, action: Move) -> Seen:
            if self.how == "step":
                raise ValueError("the world broke")
            if self.how == "agent":
                self.emit(ew.EpisodeEnd("error", "agent", "its own loop"))
                return Seen(1, reward=-1.0)
            return Seen(1, reward=1.0, done=True)

    return Flaky, log


class Endless(Walk):
    """The same walks without end, each about a task of its own."""

    tasks = ew.Tasks.endless(lambda split, index: ew.Task(f"{split}-{index}", split))


class ManyTasks(Walk):
    """The same walks about more tasks than a page holds."""

    tasks = ew.Tasks({"train": [ew.Task(f"train-{i}") for i in range(1200)]})
