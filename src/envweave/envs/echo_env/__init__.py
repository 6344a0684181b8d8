"""The echo environment: a minimal served environment, and a template for others."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envweave.envs.echo_env.client import EchoEnv as EchoEnv
    from envweave.envs.echo_env.environment import EchoEnvironment as EchoEnvironment
    from envweave.envs.echo_env.models import EchoAction as EchoAction
    from envweave.envs.echo_env.models import EchoObservation as EchoObservation

_MODULES = {
    "EchoAction": "models",
    "EchoEnv": "client",
    "EchoEnvironment": "environment",
    "EchoObservation": "models",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    # Loaded lazily: a server does not need the client, nor a client the environment.
    if name not in _MODULES:
        raise AttributeError(f"module 'envweave.envs.echo_env' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"envweave.envs.echo_env.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
