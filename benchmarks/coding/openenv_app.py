"""A coding environment written for OpenEnv, and the app for uvicorn.

OpenEnv's own coding environment is not on the package index, but its executor is part of OpenEnv:
`PyExecutor`, around the interpreter of smolagents. This is that executor behind OpenEnv's server,
without the transform that the original also applies. Runs in OpenEnv's virtual environment.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.tools import PyExecutor

MAX_SESSIONS = 128


class CodeAction(Action):
    code: str


class CodeObservation(Observation):
    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0


class CodeState(State):
    last_exit_code: int = 0


class Coding(Environment):
    SUPPORTS_CONCURRENT_SESSIONS: bool = True

    def __init__(self) -> None:
        super().__init__()
        self._executor = PyExecutor()
        self._state = CodeState(episode_id=str(uuid4()), step_count=0)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **_: Any
    ) -> CodeObservation:
        self._executor = PyExecutor()
        self._state = CodeState(episode_id=episode_id or str(uuid4()), step_count=0)
        return CodeObservation()

    def step(self, action: CodeAction, **_: Any) -> CodeObservation:
        outcome = self._executor.run(action.code)
        self._state.step_count += 1
        self._state.last_exit_code = outcome.exit_code
        return CodeObservation(
            stdout=outcome.stdout, stderr=outcome.stderr, exit_code=outcome.exit_code
        )

    @property
    def state(self) -> CodeState:
        return self._state


app = create_app(
    Coding, CodeAction, CodeObservation, env_name="coding", max_concurrent_envs=MAX_SESSIONS
)
