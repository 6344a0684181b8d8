"""The rules of an episode, and the drivers that run an author's code under them."""

from envweave.session.driver import AsyncDriver, LoopDriver, PrivateLoop, SyncDriver
from envweave.session.phase import Phase
from envweave.session.rules import Session
from envweave.session.seeds import episode_seed

__all__ = [
    "AsyncDriver",
    "LoopDriver",
    "Phase",
    "PrivateLoop",
    "Session",
    "SyncDriver",
    "episode_seed",
]
