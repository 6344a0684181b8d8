"""The environments of these benchmarks; worker actors import them by name."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import envweave as ew


class Empty(gym.Env[Any, Any]):
    """A step that does next to nothing."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float64)

    def __init__(self) -> None:
        self._shown = np.zeros(self.observation_space.shape)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode, which never ends."""
        super().reset(seed=seed)
        return self._shown, {}

    def step(self, action: int) -> Any:
        """Take a step."""
        return self._shown, 1.0, False, False, {}


class OneMillisecond(Empty):
    """A step that waits for a millisecond."""

    def step(self, action: int) -> Any:
        time.sleep(0.001)
        return self._shown, 1.0, False, False, {}


class Large(Empty):
    """Observations of 64 KiB."""

    observation_space = spaces.Box(-1.0, 1.0, (8192,), np.float64)


class Sleeping(ew.Environment):
    """A step that waits for a second on the event loop, as for an answer from elsewhere."""

    async def reset(self, *, seed: int | None = None) -> Any:
        return np.zeros(4), {}

    async def step(self, action: int) -> Any:
        await asyncio.sleep(1.0)
        return np.zeros(4), 1.0, False, False, {}


class TenSteps(Empty):
    """An episode has ten steps of 2 ms."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        self._count = 0
        return super().reset(seed=seed)

    def step(self, action: int) -> Any:
        """Take a step."""
        time.sleep(0.002)
        self._count += 1
        return self._shown, 1.0, self._count == 10, False, {}


class Where(ew.Environment):
    """Shows its seed and the process that it runs in; an episode has ten steps of 5 ms."""

    async def reset(self, *, seed: int | None = None) -> Any:
        self._seed, self._count = seed or 0, 0
        return np.array([self._seed, os.getpid(), 0]), {}

    async def step(self, action: int) -> Any:
        await asyncio.sleep(0.005)
        self._count += 1
        shown = np.array([self._seed, os.getpid(), self._count])
        return shown, 1.0, self._count == 10, False, {}


KINDS = {"near-empty": Empty, "1 ms": OneMillisecond, "64 KiB": Large}
