"""An OpenEnv server with many environments, run by `openenv_peer.py`.

`/echo` is OpenEnv's own, as `openenv init` writes it; `/staged` does what its actions say; the
others are those of `openenv_environments.py`. `/exam` is `/quiz`, by a server that declares what
its reset shows.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(sys.prefix)))

import uvicorn
from echo_world.models import EchoWorldAction, EchoWorldObservation
from echo_world.server.echo_world_environment import EchoWorldEnvironment
from fastapi import FastAPI
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from openenv_environments import ZOO, Task
from pydantic import field_validator
from pydantic_core import PydanticCustomError

ROOM = 64


class StagedAction(Action):
    do: Literal["count", "end", "raise", "hang", "exit"] = "count"
    amount: int = 1
    pay: bool | int | float | None = 0.5

    @field_validator("amount")
    @classmethod
    def is_lucky(cls, amount: int) -> int:
        if amount == 13:
            raise PydanticCustomError("unlucky", "thirteen is unlucky")
        if amount == 14:
            raise ValueError("fourteen is no better")
        return amount


class StagedObservation(Observation):
    total: int = 0
    seed: int | None = None
    note: str = ""


class StagedState(State):
    total: int = 0


class Staged(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = StagedState()

    def reset(self, seed: int | None = None, episode_id: str | None = None, note: str = "") -> Any:
        self._state = StagedState(episode_id=episode_id)
        return StagedObservation(seed=seed, note=note, metadata={"begun": True})

    def step(self, action: StagedAction, timeout_s: float | None = None, **_: Any) -> Any:
        self._state.step_count += 1
        self._state.total += action.amount
        if action.do == "raise":
            raise RuntimeError("as requested")
        if action.do == "hang":
            threading.Event().wait(60)
        if action.do == "exit":
            os._exit(3)
        return StagedObservation(
            total=self._state.total,
            reward=action.pay,
            done=action.do == "end",
            metadata={"step": self._state.step_count},
        )

    @property
    def state(self) -> StagedState:
        return self._state


def run(listener: socket.socket, on_ready: Callable[[], Any]) -> None:
    """Serve until the process ends."""
    app = FastAPI()
    environments: dict[str, Any] = {
        "/echo": (EchoWorldEnvironment, EchoWorldAction, EchoWorldObservation),
        "/staged": (Staged, StagedAction, StagedObservation),
        **{f"/{name}": classes for name, classes in ZOO.items()},
    }
    for path, classes in environments.items():
        app.mount(path, create_fastapi_app(*classes, max_concurrent_envs=ROOM))
    exam = create_fastapi_app(*ZOO["quiz"], max_concurrent_envs=ROOM, reset_observation_cls=Task)
    app.mount("/exam", exam)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    startup = server.startup

    async def start(sockets: Any = None) -> None:
        await startup(sockets)
        on_ready()

    server.startup = start  # type: ignore[method-assign]
    server.run(sockets=[listener])
