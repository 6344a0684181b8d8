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

_MODULES = {
    "CodeAction": "models",
    "CodeObservation": "models",
    "CodeState": "models",
    "CodingEnv": "client",
    "CodingEnvironment": "environment",
    "TerminalExecutor": "terminal",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    # Loaded lazily: a server does not need the client, nor a client the environment.
    if name not in _MODULES:
        raise AttributeError(f"module 'envweave.envs.coding_env' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"envweave.envs.coding_env.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
