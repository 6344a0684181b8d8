"""The environment of the sessions benchmark, for envweave: a step waits as long as asked."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import envweave as ew


@dataclass
class WaitAction(ew.Action):
    wait_seconds: float


@dataclass
class WaitObservation(ew.Observation):
    waited_seconds: float = 0.0


class AsyncWait(ew.Environment):
    """Waits on the event loop."""

    async def reset(self) -> WaitObservation:
        return WaitObservation()

    async def step(self, action: WaitAction) -> WaitObservation:
        await asyncio.sleep(action.wait_seconds)
        return WaitObservation(action.wait_seconds, reward=1.0)


class Wait(ew.Environment):
    """Blocks its thread while it waits."""

    def reset(self) -> WaitObservation:
        return WaitObservation()

    def step(self, action: WaitAction) -> WaitObservation:
        time.sleep(action.wait_seconds)
        return WaitObservation(action.wait_seconds, reward=1.0)
