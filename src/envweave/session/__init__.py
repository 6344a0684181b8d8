"""The rules of an episode, and the drivers that run an author's code under them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from envweave.session.episodes import Position, episode_seed
from envweave.session.session import Phase, Session

if TYPE_CHECKING:
    from envweave.session.asyncio_support import Deadline as Deadline
    from envweave.session.asyncio_support import PrivateLoop as PrivateLoop
    from envweave.session.direct_env import DirectEnvironment as DirectEnvironment
    from envweave.session.driver import AsyncDriver as AsyncDriver
    from envweave.session.driver import LoopDriver as LoopDriver
    from envweave.session.driver import SyncDriver as SyncDriver

# Drivers need asyncio, which is slower to import than the rules, and clients need only the rules.
_LATER = {
    "AsyncDriver": "driver",
    "Deadline": "asyncio_support",
    "DirectEnvironment": "direct_env",
    "LoopDriver": "driver",
    "PrivateLoop": "asyncio_support",
    "SyncDriver": "driver",
}

__all__ = ["Phase", "Position", "Session", "episode_seed", *_LATER]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'envweave.session' has no attribute {name!r}")
    return getattr(importlib.import_module(f"envweave.session.{_LATER[name]}"), name)
