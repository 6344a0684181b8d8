"""Closing an environment at an OpenEnv server blocks no other, and leaves no thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hostile_servers import ScriptedOpenEnvServer, scripted_openenv_server
from processes import Leftovers

import envweave as ew
from envweave.client.openenv import connection


@pytest.fixture
def server() -> Iterator[ScriptedOpenEnvServer]:
    with scripted_openenv_server() as one:
        yield one


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Makes the last release of the supervisor wait for an event."""
    reached, may_go_on = threading.Event(), threading.Event()
    release = connection.LoopSupervisor.release

    def slowly(self: Any) -> None:
        reached.set()
        assert may_go_on.wait(20)
        release(self)

    monkeypatch.setattr(connection.LoopSupervisor, "release", slowly)
    yield reached, may_go_on
    may_go_on.set()


def test_the_callers_loop_continues_while_one_is_closed(
    server: ScriptedOpenEnvServer, held: Any
) -> None:
    reached, may_go_on = held
    left = Leftovers()

    async def play() -> None:
        env = ew.make_async(server.url)
        await env.reset()
        closing = asyncio.ensure_future(env.close())
        async with asyncio.timeout(20):
            while not reached.is_set():
                await asyncio.sleep(0.002)
        may_go_on.set()  # impossible if the loop were blocked
        await closing

    asyncio.run(play())

    assert left.threads("openenv") == []


def test_a_cancelled_close_still_completes(server: ScriptedOpenEnvServer, held: Any) -> None:
    reached, may_go_on = held
    left = Leftovers()

    async def play() -> None:
        env = ew.spec(server.url).load()()
        await env.reset()
        closing = asyncio.ensure_future(env.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        may_go_on.set()
        await asyncio.to_thread(reached.wait, 20)
        await env.close()

    asyncio.run(play())

    assert left.threads("openenv") == []
    assert server.left.acquire(timeout=20)
    assert {"type": "close"} in server.requests
