"""Environments whose `state` is a coroutine; worker processes and servers import them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import envweave as ew


@dataclass
class Mood(ew.State):
    told: str = ""


class Moody(ew.Environment):
    """Tells after a while what it was told last; whoever is told to hang has no state."""

    def __init__(self) -> None:
        self.told = ""

    async def reset(self, *, seed: int | None = None) -> ew.Observation:
        self.told = ""
        return ew.Observation()

    async def step(self, action: str) -> ew.Observation:
        self.told = action
        return ew.Observation(reward=1.0)

    @property
    async def state(self) -> Mood:
        await asyncio.sleep(0)
        if self.told == "raise":
            raise RuntimeError("not in the mood")
        if self.told == "hang":
            await asyncio.Event().wait()
        self.emit(ew.LogEvent("looked"))
        return Mood(told=self.told)


class SyncMoody(ew.Environment):
    """The same, but for its `state` in plain functions."""

    def __init__(self) -> None:
        self.inside = Moody()

    def reset(self, *, seed: int | None = None) -> ew.Observation:
        self.inside.told = ""
        return ew.Observation()

    def step(self, action: str) -> ew.Observation:
        self.inside.told = action
        return ew.Observation(reward=1.0)

    @property
    async def state(self) -> Mood:
        return await self.inside.state


def wrapped() -> Any:
    """Return one inside a wrapper."""
    return ew.wrappers.TimeLimit(Moody(), max_steps=100)
