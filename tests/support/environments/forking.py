"""Environments that can be forked, and some that cannot."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import envweave as ew
from envweave.errors import ForkError


@dataclass(kw_only=True)
class Place(ew.State):
    """The process that an environment is in."""

    pid: int


class Walk(ew.Environment):
    """A random walk that can be copied; its state has its process, and a tool may be called."""

    copyable = True

    def __init__(self) -> None:
        self.secret = "the answer is 42"
        self.at = 0.0
        self.rng = random.Random(0)

    def reset(self, *, seed: int | None = None) -> Any:
        self.rng = random.Random(seed)
        self.at = 0.0
        return self.at, {}

    def step(self, action: float) -> Any:
        if action < 0:
            raise ValueError("no way back")
        if action == 99:
            self.emit(ew.ToolCallRequest("call-1", "look", {}))
        self.at += action + self.rng.random()
        return self.at, action, self.at > 100, False, {}

    def answer(self, result: ew.ToolResult) -> Any:
        self.at += float(result.value)
        return self.at, 0.5, False, False, {}

    @property
    def state(self) -> Place:
        return Place(pid=os.getpid())


class AsyncWalk(ew.Environment):
    """The same in coroutines."""

    copyable = True

    def __init__(self) -> None:
        self.walk = Walk()

    async def reset(self, *, seed: int | None = None) -> Any:
        return self.walk.reset(seed=seed)

    async def step(self, action: float) -> Any:
        await asyncio.sleep(0)
        return self.walk.step(action)


class UncopiedWalk(Walk):
    """Does not say how it can be copied."""

    copyable = False


class FixedWalk(Walk):
    """Its `snapshot` and `restore` are its author's, and can be told to fail."""

    copyable = False

    def snapshot(self) -> Any:
        if self.at == 0.0:
            raise ForkError("nothing to see before the first step")
        return self.at, self.rng.getstate(), self.secret

    def restore(self, snapshot: Any) -> None:
        self.at, state, self.secret = snapshot
        if self.at > 50:
            raise RuntimeError("too far")
        self.rng.setstate(state)


class Race(ew.MultiAgentEnvironment):
    """Two agents; the second leaves after the first step."""

    copyable = True
    possible_agents = ("ann", "bob")
    action_spec = {"ann": int, "bob": int}  # noqa: RUF012 - a spec
    observation_spec = {"ann": int, "bob": int}  # noqa: RUF012 - a spec

    def __init__(self) -> None:
        self.at = {"ann": 0, "bob": 0}

    def reset(self, *, seed: int | None = None) -> Any:
        self.at = {"ann": 0, "bob": 0}
        return dict(self.at), {}

    def step(self, action: dict[str, int]) -> Any:
        for name, by in action.items():
            self.at[name] += by
        shown = {name: self.at[name] for name in action}
        over = {name: name == "bob" or self.at[name] > 50 for name in action}
        return shown, dict.fromkeys(action, 1.0), over, dict.fromkeys(action, False), {}


class Copy:
    """What a snapshot of `CountsSnapshots` is."""


class CountsSnapshots(ew.Environment):
    """Shows how many of its snapshots are kept in its process."""

    snapshots: ClassVar[weakref.WeakSet[Copy]] = weakref.WeakSet()

    def reset(self) -> tuple[dict[str, int], dict[str, Any]]:
        return {"snapshots": 0}, {}

    def step(self, action: int) -> tuple[dict[str, int], float, bool, bool, dict[str, Any]]:
        gc.collect()
        return {"snapshots": len(self.snapshots)}, 0.0, False, False, {}

    def snapshot(self) -> Copy:
        copy = Copy()
        self.snapshots.add(copy)
        return copy

    def restore(self, snapshot: Copy) -> None:
        assert snapshot in self.snapshots
