"""Environments to export with `to_verifiers`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import envweave as ew


class Riddles(ew.Environment):
    """One question a task; texts as actions."""

    tasks = ew.Tasks(
        {
            "train": [
                ew.Task(f"sum-{n}", data={"n": n}, private={"answer": str(n + 3)}) for n in range(4)
            ],
            "test": [ew.Task("sum-9", "test", {"n": 9}, private={"answer": "12"})],
        }
    )

    def reset(self, *, task: ew.Task) -> str:
        self._task = task
        return f"What is {task.data['n']}+3?"

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        if action == "crash":
            raise RuntimeError("a bug")
        if action == "forbidden":
            raise ew.errors.ActionError("That word is forbidden.")
        right = float(action == self._task.private["answer"])
        parts = {"right": right, "style": 0.5}
        info = {"reward_parts": parts, "metrics": {"length": len(action)}}
        return ("Right." if right else "Wrong."), right + 0.5, True, False, info


@dataclass
class Say(ew.Action):
    text: str
    loudly: bool = False


@dataclass
class Heard(ew.Observation):
    text: str
    steps: list[int] = field(default_factory=list)


class Parrot(ew.Environment):
    """A dataclass with one text field as action; ends at the third step. It takes no seed."""

    def reset(self) -> Heard:
        self._count = 0
        return Heard("ready")

    def step(self, action: Say) -> Heard:
        self._count += 1
        return Heard(action.text, [self._count], reward=1.0, truncated=self._count == 3)


class Coin(ew.Environment):
    """One of two words."""

    def reset(self, *, seed: int | None = None) -> str:
        return "Heads or tails?"

    def step(self, action: Literal["heads", "tails"]) -> tuple[str, float, bool, bool, dict]:
        return "Done.", float(action == "heads"), True, False, {}
