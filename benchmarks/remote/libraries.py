"""The clients of both libraries behind one interface, and the counter that both of them serve.

Each library is imported by its own client only, because each runs in its own virtual environment.
"""

from __future__ import annotations

import base64
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

ACTION = {"delta": 1}
TEXT_SIZE = int(os.environ.get("BENCHMARK_TEXT_SIZE", "200"))
"""How many bytes of text an observation of the counter has."""

Connect = Callable[[], Awaitable[Any]]
Close = Callable[[], Awaitable[None]]


def observation_text() -> str:
    """Return `TEXT_SIZE` bytes of text that do not compress well."""
    return base64.b85encode(random.Random(0).randbytes(TEXT_SIZE)).decode()[:TEXT_SIZE]


class Envweave:
    """envweave's clients. All sessions of a pool or of a vector share one connection."""

    @staticmethod
    def blocking(url: str) -> Any:
        """Open a session with blocking calls."""
        import envweave as ew

        return ew.make(url)

    @staticmethod
    async def asynchronous(url: str, sessions: int) -> tuple[Connect, Close]:
        """Return a function that opens one of these sessions, and one to call at the end."""
        import envweave as ew

        pool = ew.pool(url, size=sessions)

        async def connect() -> Any:
            closing = AsyncExitStack()
            return _PoolSession(await closing.enter_async_context(pool.line()), closing)

        return connect, pool.close

    @staticmethod
    def vector(url: str, num_envs: int) -> Any:
        """Open a vector of sessions."""
        import envweave as ew

        return ew.make_vector(url, num_envs=num_envs)

    @staticmethod
    def check(observation: Any, count: int) -> None:
        """Raise unless the counter has this value."""
        _check(observation.count, observation.text, count)


class _PoolSession:
    """One environment of a pool, until it is closed."""

    def __init__(self, line: Any, closing: AsyncExitStack) -> None:
        self.reset, self.step, self.close = line.reset, line.step, closing.aclose


class OpenEnv:
    """OpenEnv's client. Each session has its own connection.

    `GenericEnvClient` is the fastest of its clients: it builds no observation classes.
    """

    @staticmethod
    def _client(url: str) -> Any:
        from openenv.core import GenericEnvClient

        # Thousands of idle sessions would send pings while the other library is measured.
        return GenericEnvClient(base_url=url, websocket_ping_interval_s=None)

    @staticmethod
    def blocking(url: str) -> Any:
        """Open a session with blocking calls."""
        return OpenEnv._client(url).sync().connect()

    @staticmethod
    async def asynchronous(url: str, sessions: int) -> tuple[Connect, Close]:
        """Return a function that opens one of these sessions, and one to call at the end."""

        async def connect() -> Any:
            client = OpenEnv._client(url)
            await client.connect()
            return client

        async def close() -> None:
            pass

        return connect, close

    @staticmethod
    def check(observation: Any, count: int) -> None:
        """Raise unless the counter has this value."""
        _check(observation["count"], observation["text"], count)


def _check(found: int, text: str, count: int) -> None:
    if found != count or len(text) != TEXT_SIZE:
        raise ValueError(f"after {count} steps the environment shows {found}")


LIBRARIES = {"envweave": Envweave, "OpenEnv": OpenEnv}
