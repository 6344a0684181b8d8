"""The rules of an episode, and the drivers that run an author's code under them."""

from envweave.session.deadlines import Deadline
from envweave.session.driver import AsyncDriver, LoopDriver, SyncDriver
from envweave.session.phase import Phase
from envweave.session.plan import Position
from envweave.session.private_loop import PrivateLoop
from envweave.session.rules import Session
from envweave.session.seeds import episode_seed

__all__ = [
    "AsyncDriver",
    "Deadline",
    "LoopDriver",
    "Phase",
    "Position",
    "PrivateLoop",
    "Session",
    "SyncDriver",
    "episode_seed",
]
