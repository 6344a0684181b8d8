"""An environment whose author is careless with the private parts of its tasks."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field
from typing import Any

import envweave as ew

MARKER = hashlib.sha256(b"only the environment and its graders").hexdigest()
"""What nobody else may see. It stands in no source, and is the same in every process."""

PUBLIC = "what everybody may see"

logger = logging.getLogger("private_worlds")


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
    """Shows, logs and raises its tasks wherever it can; pays whoever says what is expected."""

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
        if how == "in words":
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
