"""Environments whose `state` is a coroutine; worker processes and servers import them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import envweave as ew


@dataclass
class LastAction(ew.State):
    last_action: str = ""


class AsyncState(ew.Environment):
    """Its state is the last action, after a while; after the action `hang` it has no state."""

    def __init__(self) -> None:
        self.last_action = ""

    async def reset(self, *, seed: int | None = None) -> ew.Observation:
        self.last_action = ""
        return ew.Observation()

    async def step(self, action: str) -> ew.Observation:
        self.last_action = action
        return ew.Observation(reward=1.0)

    @property
    async def state(self) -> LastAction:
        await asyncio.sleep(0)
        if self.last_action == "raise":
            raise RuntimeError("not in the mood")
        if self.last_action == "hang":
            await asyncio.Event().wait()
        self.emit(ew.LogEvent("looked"))
        return LastAction(last_action=self.last_action)


class SyncWithAsyncState(ew.Environment):
    """The same, but for its `state` in plain functions."""

    def __init__(self) -> None:
        self.inside = AsyncState()

    def reset(self, *, seed: int | None = None) -> ew.Observation:
        self.inside.last_action = ""
        return ew.Observation()

    def step(self, action: str) -> ew.Observation:
        self.inside.last_action = action
        return ew.Observation(reward=1.0)

    @property
    async def state(self) -> LastAction:
        return await self.inside.state


def wrapped() -> Any:
    """Return one inside a wrapper."""
    return ew.wrappers.TimeLimit(AsyncState(), max_steps=100)
