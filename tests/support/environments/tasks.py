"""Environments with tasks, for pools and rollouts, and a backend for them that loses calls.

`Careless` leaks the private parts of its tasks wherever it can.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import envweave as ew
from envweave.registry import EnvSpec, MakeOptions, load_plugin


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
    """Three steps an episode; every instance is counted in `log`."""

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
    """Return an environment that fails on demand, and the log of which instance played what.

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
                raise ValueError("the simulator broke")
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


class LossyConnection:
    """An environment in this process, the next call of which the backend may lose."""

    def __init__(self, backend: LossyBackend, inner: Any) -> None:
        self.backend, self.inner = backend, inner
        self.number = next(backend.numbers)
        self.interface, self.tasks = inner.interface, inner.tasks

    @property
    def agents(self) -> list[str]:
        return self.inner.agents

    async def reset(self, **options: Any) -> Any:
        self.backend.begun.append((self.number, options["task"] and options["task"].id))
        self.backend.lose("reset")
        return await self.inner.reset(**options)

    async def step(self, action: Any) -> Any:
        self.backend.lose("step")
        return await self.inner.step(action)

    async def state(self) -> Any:
        return await self.inner.state()

    async def close(self) -> None:
        await self.inner.close()


class LossyBackend:
    """A backend that connects one environment at a time, and whose calls may be lost.

    Attributes:
        lost_calls: The calls to lose, each once: `"reset"`, `"step"`.
        begun: Which connection began an episode of which task, in order.
    """

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.lost_calls: list[str] = []
        self.begun: list[tuple[int, str]] = []

    def lose(self, call: str) -> None:
        if call in self.lost_calls:
            self.lost_calls.remove(call)
            raise ConnectionError("the line went dead")

    def connect_async(
        self, spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions
    ) -> LossyConnection:
        inproc = load_plugin("envweave.backends", "inproc")
        return LossyConnection(self, inproc.connect_async(spec, kwargs, options))


LOSSY_BACKEND = LossyBackend()
"""What the entry point of `tests/rollouts/conftest.py` names."""


MARKER = hashlib.sha256(b"only the environment and its graders").hexdigest()
"""A secret: not in any source file, and the same in every process."""

PUBLIC = "a public prompt"

logger = logging.getLogger("environments.tasks")


def secret_task(task_id: str, split: str = "train") -> ew.Task:
    private = {"answer": MARKER, "deep": [{MARKER: MARKER.encode()}]}
    return ew.Task(task_id, split, {"prompt": PUBLIC, "shape": (1, 2)}, private=private)


@dataclass
class Do(ew.Action):
    what: str


CHECK = Do("check the answer")


@dataclass(kw_only=True)
class CarelessState(ew.State):
    task: ew.Task | None = None
    private: Any = None


@dataclass(kw_only=True)
class Shown(ew.Observation):
    task: Any = None
    parts: dict[str, Any] = field(default_factory=dict)


class Careless(ew.Environment):
    """Shows, logs and raises its tasks wherever it can; pays for the expected answer."""

    tasks = ew.Tasks(
        {"train": [secret_task("a"), secret_task("b")], "test": [secret_task("c", "test")]}
    )

    def reset(
        self, *, task: ew.Task, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Shown:
        self._task = task
        self._left = 5
        if options:
            self._fail(options["fail"])
        return self._shown()

    def step(self, action: Do) -> Shown:
        logger.error("stepping %s with %r, %s", self._task, self._task, self._task.private)
        self.emit(ew.LogEvent(f"{self._task}", "info", {"task": self._task}))
        if action == CHECK:
            shown = self._shown()
            shown.reward = float(self._task.private["answer"] == MARKER)
            shown.done = True
            return shown
        self._fail(action.what)
        self._left -= 1
        shown = self._shown()
        shown.truncated = not self._left
        return shown

    def _shown(self) -> Shown:
        return Shown(
            task=self._task,
            parts={"task": self._task, "private": self._task.private, "tasks": type(self).tasks},
            metadata={"task": self._task, "private": self._task.private},
        )

    def _fail(self, how: str) -> None:
        if how == "message":
            raise ValueError(f"{self._task!r} cannot be posed: {self._task.private}")
        if how == "with the task":
            raise ValueError(self._task, self._task.private)
        if how == "key":
            self._task.private["no such key"]
        if how == "action":
            raise ew.errors.ActionError(f"not for {self._task}")

    @property
    def state(self) -> CarelessState:
        return CarelessState(task=self._task, private=self._task.private)


def make_secret_task(split: str, index: int) -> ew.Task:
    return secret_task(f"{split}-{index}", split)


class EndlessCareless(Careless):
    tasks = ew.Tasks.endless(make_secret_task, splits=("train", "test"))
