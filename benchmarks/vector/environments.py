"""The environments of the vector benchmark, the same classes for every library."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

import envweave as ew

EPISODE_STEPS = 200
CPU_STEP_S, IO_STEP_S = 200e-6, 1e-3
STRAGGLER_S, STRAGGLER_SHARE = 50e-3, 0.05


class OwnBuffer(gym.Env[Any, Any]):
    """Does almost nothing: returns its own buffer and an empty info."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.buffer = np.zeros(4, np.float32)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self.buffer, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.buffer, 1.0, False, self.steps >= EPISODE_STEPS, {}


class FreshArrays(OwnBuffer):
    """Returns a new array at each step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.buffer.copy(), 1.0, False, self.steps >= EPISODE_STEPS, {}


class WithInfos(OwnBuffer):
    """Returns an info with an entry at each step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.buffer, 1.0, False, self.steps >= EPISODE_STEPS, {"steps": self.steps}


class Computing(OwnBuffer):
    """Computes for 200 µs at each step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        # CPU time of this thread, not wall-clock time: a second process on the same core must make
        # it take longer, as it does any computation.
        until_s = time.thread_time() + CPU_STEP_S
        while time.thread_time() < until_s:
            pass
        return super().step(action)


class Waiting(OwnBuffer):
    """Waits for 1 ms at each step, as for a network."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(IO_STEP_S)
        return super().step(action)


class Straggling(OwnBuffer):
    """Takes 50 ms at one step in twenty, and almost no time at the others."""

    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.random.seed(seed)
        return super().reset()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.random.random() < STRAGGLER_SHARE:
            time.sleep(STRAGGLER_S)
        return super().step(action)


class _Async(ew.Environment):
    """An environment above with async methods."""

    inner: type[OwnBuffer] = OwnBuffer

    def __init__(self) -> None:
        self.env = self.inner()
        self.action_spec = ew.from_gymnasium(self.env).action_spec
        self.observation_spec = ew.from_gymnasium(self.env).observation_spec

    async def reset(self, *, seed: int | None = None) -> Any:
        return self.env.reset(seed=seed)


class AsyncWaiting(_Async):
    """`Waiting` with async methods."""

    async def step(self, action: Any) -> Any:
        await asyncio.sleep(IO_STEP_S)
        return OwnBuffer.step(self.env, action)


class AsyncStraggling(_Async):
    """`Straggling` with async methods."""

    inner = Straggling

    async def step(self, action: Any) -> Any:
        if self.env.random.random() < STRAGGLER_SHARE:  # type: ignore[attr-defined] # see `inner`
            await asyncio.sleep(STRAGGLER_S)
        return OwnBuffer.step(self.env, action)


@dataclass(frozen=True, slots=True)
class Kind:
    """An environment to measure.

    Attributes:
        title: A description.
        plain: The class that every library steps.
        with_async: The same with async methods, if it waits for something.
    """

    title: str
    plain: type[gym.Env[Any, Any]]
    with_async: type[ew.Environment] | None = None


KINDS = {
    "own": Kind("near-empty, returns its own buffer", OwnBuffer),
    "fresh": Kind("near-empty, returns fresh arrays", FreshArrays),
    "infos": Kind("near-empty, with infos", WithInfos),
    "cartpole": Kind("CartPole", CartPoleEnv),
    "cpu": Kind("200 µs of computing", Computing),
    "io": Kind("1 ms of waiting", Waiting, AsyncWaiting),
    "stragglers": Kind("5 % of steps take 50 ms", Straggling, AsyncStraggling),
}


@dataclass
class Move(ew.Action):
    """An action of `Dataclasses`."""

    by: int = 1


@dataclass
class Position(ew.Observation):
    """An observation of `Dataclasses`."""

    position: int = 0


class Dataclasses(ew.Environment):
    """Does almost nothing, with dataclasses."""

    def reset(self, *, seed: int | None = None) -> Position:
        self.position = 0
        return Position(0)

    def step(self, action: Move) -> Position:
        self.position += action.by
        return Position(self.position, reward=1.0, truncated=self.position >= EPISODE_STEPS)
