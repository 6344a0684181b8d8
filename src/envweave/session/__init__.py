"""The rules of an episode, and the drivers that run an author's code under them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from envweave.session.phase import Phase
from envweave.session.plan import Position
from envweave.session.rules import Session
from envweave.session.seeds import episode_seed

if TYPE_CHECKING:
    from envweave.session.deadlines import Deadline as Deadline
    from envweave.session.direct import DirectEnvironment as DirectEnvironment
    from envweave.session.driver import AsyncDriver as AsyncDriver
    from envweave.session.driver import LoopDriver as LoopDriver
    from envweave.session.driver import SyncDriver as SyncDriver
    from envweave.session.private_loop import PrivateLoop as PrivateLoop

# Drivers need asyncio, which takes longer to import than all the rules; a client needs only these.
_LATER = {
    "AsyncDriver": "driver",
    "Deadline": "deadlines",
    "DirectEnvironment": "direct",
    "LoopDriver": "driver",
    "PrivateLoop": "private_loop",
    "SyncDriver": "driver",
}

__all__ = ["Phase", "Position", "Session", "episode_seed", *_LATER]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'envweave.session' has no attribute {name!r}")
    return getattr(importlib.import_module(f"envweave.session.{_LATER[name]}"), name)
