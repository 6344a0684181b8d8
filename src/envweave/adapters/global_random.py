"""A private random state for code that draws from the global generators of Python and numpy."""

from __future__ import annotations

import random
import threading
from types import TracebackType
from typing import Any, Self, final

import numpy as np

_LOCK = threading.RLock()
"""Held while a private state is in place, so that no other one is swapped in meanwhile."""


@final
class GlobalRandomState:
    """A state of `random` and `numpy.random` that is in place only inside `with`.

    Each environment whose code draws from the global generators has one, so that environments
    neither share random numbers nor disturb those of their caller. Blocks of different threads
    run one after the other. A thread that draws outside of any block meanwhile gets numbers of
    the state in place: nothing can be done about that in one process.
    """

    def __init__(self) -> None:
        self._own: tuple[Any, Any] | None = None
        self._callers: tuple[Any, Any] | None = None
        self.seed(None)

    def seed(self, seed: int | None) -> None:
        """Set the state by a seed; by entropy of the system without one."""
        python = random.Random(seed)  # noqa: S311 - games, not secrets
        numpy = np.random.RandomState(None if seed is None else seed % 2**32)
        self._own = python.getstate(), numpy.get_state()

    def __enter__(self) -> Self:
        _LOCK.acquire()
        self._callers = random.getstate(), np.random.get_state()
        _put(self._own)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._own = random.getstate(), np.random.get_state()
        _put(self._callers)
        _LOCK.release()


def _put(states: tuple[Any, Any] | None) -> None:
    assert states is not None
    random.setstate(states[0])
    np.random.set_state(states[1])
