"""Makes on another thread what a task waits for, and lets go of it if the task no longer does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar, final

MadeT = TypeVar("MadeT")


async def make_aside(make: Callable[[], MadeT], let_go: Callable[[MadeT], None]) -> MadeT:
    """Return what `make` returns, which runs on a thread of the loop's.

    If the task is cancelled meanwhile, `let_go` is called with what comes of it, though the loop
    may have ended by then.
    """
    handing = _Handing(make, let_go)
    try:
        return await asyncio.to_thread(handing)
    except BaseException:
        handing.give_up()
        raise


@final
class _Handing(Generic[MadeT]):
    """What is handed from the thread that makes it to the task that wants it, or to nobody."""

    def __init__(self, make: Callable[[], MadeT], let_go: Callable[[MadeT], None]) -> None:
        self._make = make
        self._let_go = let_go
        self._lock = threading.Lock()  # protects what follows
        self._made: list[MadeT] = []
        self._is_wanted = True

    def __call__(self) -> MadeT:
        made = self._make()
        with self._lock:
            if self._is_wanted:
                self._made.append(made)
                return made
        self._let_go(made)
        return made

    def give_up(self) -> None:
        """Let go of what was made, or is yet to be."""
        with self._lock:
            self._is_wanted = False
            made, self._made = self._made, []
        for one in made:
            self._let_go(one)
