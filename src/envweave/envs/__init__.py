"""Environments that are ready to be served, each with its models, its app and its client."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envweave.envs.gsm8k_env import GSM8KChoiceEnv as GSM8KChoiceEnv
    from envweave.envs.gsm8k_env import GSM8KEnv as GSM8KEnv

_MODULE_OF = {"GSM8KChoiceEnv": "gsm8k_env", "GSM8KEnv": "gsm8k_env"}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'envweave.envs' has no attribute {name!r}")
    return getattr(importlib.import_module(f"envweave.envs.{_MODULE_OF[name]}"), name)
