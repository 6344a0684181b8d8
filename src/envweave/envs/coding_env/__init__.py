"""The coding environment: runs an agent's Python or shell commands in the sandbox."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envweave.envs.coding_env.client import CodingEnv as CodingEnv
    from envweave.envs.coding_env.environment import CodingEnvironment as CodingEnvironment
    from envweave.envs.coding_env.models import CodeAction as CodeAction
    from envweave.envs.coding_env.models import CodeObservation as CodeObservation
    from envweave.envs.coding_env.models import CodeState as CodeState
    from envweave.envs.coding_env.terminal import TerminalExecutor as TerminalExecutor

_HOMES = {
    "CodeAction": "models",
    "CodeObservation": "models",
    "CodeState": "models",
    "CodingEnv": "client",
    "CodingEnvironment": "environment",
    "TerminalExecutor": "terminal",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    # A server has no use for the client, nor a client for the environment.
    if name not in _HOMES:
        raise AttributeError(f"module 'envweave.envs.coding_env' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"envweave.envs.coding_env.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
