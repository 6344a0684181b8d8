"""OpenEnv's client, as remote_client.py uses it; runs in OpenEnv's own virtual environment.

`GenericEnvClient` builds no observation of a class, so it is the quickest of OpenEnv's clients.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from openenv.core import GenericEnvClient
from remote_text import SIZE

ACTION = {"delta": 1}

Connect = Callable[[], Awaitable[Any]]
End = Callable[[], Awaitable[None]]


def _client(url: str) -> Any:
    # Thousands of idle sessions would ping while the other side is measured.
    return GenericEnvClient(base_url=url, websocket_ping_interval_s=None)


def blocking(url: str) -> Any:
    """Return a session whose calls wait."""
    return _client(url).sync().connect()


async def looping(url: str, sessions: int) -> tuple[Connect, End]:
    """Return what opens a session on the running loop, and what is done when all are closed.

    Each session has a connection of its own.
    """

    async def connect() -> Any:
        client = _client(url)
        await client.connect()
        return client

    async def end() -> None:
        pass

    return connect, end


def check(observation: Any, count: int) -> None:
    """Raise unless this is what the environment shows after so many steps."""
    if observation["count"] != count or len(observation["text"]) != SIZE:
        raise ValueError(f"after {count} steps the environment shows {observation['count']}")
