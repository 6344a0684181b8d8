"""The environment of the sessions benchmark, written for OpenEnv, and the app for uvicorn.

Runs in OpenEnv's virtual environment. `BENCHMARK_ASYNC_STEP=1` serves it with `step_async`, which
OpenEnv calls on its event loop rather than on a thread per session.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any
from uuid import uuid4

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class WaitAction(Action):
    wait_seconds: float


class WaitObservation(Observation):
    waited_seconds: float = 0.0


class Wait(Environment):
    SUPPORTS_CONCURRENT_SESSIONS: bool = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State(episode_id=str(uuid4()), step_count=0)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **_: Any
    ) -> WaitObservation:
        return WaitObservation()

    def step(self, action: WaitAction) -> WaitObservation:
        time.sleep(action.wait_seconds)
        return WaitObservation(waited_seconds=action.wait_seconds, reward=1.0)

    @property
    def state(self) -> State:
        return self._state


class AsyncWait(Wait):
    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **_: Any
    ) -> WaitObservation:
        return WaitObservation()

    async def step_async(self, action: WaitAction) -> WaitObservation:
        await asyncio.sleep(action.wait_seconds)
        return WaitObservation(waited_seconds=action.wait_seconds, reward=1.0)


app = create_app(
    AsyncWait if os.environ.get("BENCHMARK_ASYNC_STEP") == "1" else Wait,
    WaitAction,
    WaitObservation,
    env_name="wait",
    max_concurrent_envs=1 << 16,
)
