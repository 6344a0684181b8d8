"""envweave's clients, as remote_client.py uses them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from remote_text import SIZE

import envweave as ew

ACTION = {"delta": 1}

Connect = Callable[[], Awaitable[Any]]
End = Callable[[], Awaitable[None]]


def blocking(url: str) -> Any:
    """Return a session whose calls wait."""
    return ew.make(url)


class _Leased:
    """One environment of a pool, until it is closed."""

    def __init__(self, line: Any, closing: AsyncExitStack) -> None:
        self.reset, self.step, self.close = line.reset, line.step, closing.aclose


async def looping(url: str, sessions: int) -> tuple[Connect, End]:
    """Return what opens a session on the running loop, and what is done when all are closed.

    All sessions share one connection.
    """
    pool = ew.pool(url, size=sessions)

    async def connect() -> Any:
        closing = AsyncExitStack()
        return _Leased(await closing.enter_async_context(pool.line()), closing)

    return connect, pool.close


def vector(url: str, num_envs: int) -> Any:
    """Return sessions that are stepped by one call."""
    return ew.make_vector(url, num_envs=num_envs)


def check(observation: Any, count: int) -> None:
    """Raise unless this is what the environment shows after so many steps."""
    if observation.count != count or len(observation.text) != SIZE:
        raise ValueError(f"after {count} steps the environment shows {observation.count}")
