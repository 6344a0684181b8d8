"""The counter of the remote benchmark, written for OpenEnv, and the app for uvicorn.

Runs in OpenEnv's virtual environment. `BENCHMARK_ASYNC_STEP=1` serves it with `step_async`, which
OpenEnv calls on its event loop rather than on a thread per session.
"""

from __future__ import annotations

import os
from typing import Any
from uuid import uuid4

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from benchmarks.remote.libraries import observation_text

TEXT = observation_text()
MAX_SESSIONS = 4096


class CountAction(Action):
    delta: int


class CountObservation(Observation):
    count: int
    text: str


class Count(Environment):
    SUPPORTS_CONCURRENT_SESSIONS: bool = True

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self._state = State(episode_id=str(uuid4()), step_count=0)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **_: Any
    ) -> CountObservation:
        self._count = 0
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return CountObservation(count=0, text=TEXT)

    def step(self, action: CountAction) -> CountObservation:
        self._count += action.delta
        self._state.step_count += 1
        return CountObservation(count=self._count, text=TEXT, reward=1.0)

    @property
    def state(self) -> State:
        return self._state


class AsyncCount(Count):
    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **_: Any
    ) -> CountObservation:
        return self.reset(seed, episode_id)

    async def step_async(self, action: CountAction) -> CountObservation:
        return self.step(action)


app = create_app(
    AsyncCount if os.environ.get("BENCHMARK_ASYNC_STEP") == "1" else Count,
    CountAction,
    CountObservation,
    env_name="count",
    max_concurrent_envs=MAX_SESSIONS,
)
