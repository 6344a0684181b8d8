"""Cancelled HTTP calls, and concurrent calls that begin the same session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import envweave as ew
from envweave import create_fastapi_app
from envweave.errors import CapacityError
from envweave.server.dialects.mcp import McpTools
from envweave.server.http.sessions import HTTPSessions
from envweave.server.service import Service


class Waits(ew.Environment):
    """Waits in `reset` and `step` until it may go on, and counts its steps."""

    # Set anew for every event loop.
    entered: asyncio.Event
    may_go_on: asyncio.Event

    def __init__(self) -> None:
        self.steps = 0

    async def reset(self) -> int:
        return 0

    async def step(self, action: bool) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.entered.set()
        await self.may_go_on.wait()
        return self.steps, 1.0, False, False, {}


@asynccontextmanager
async def service_of(env: Any, **options: Any) -> AsyncIterator[Service]:
    service: Service = create_fastapi_app(env, **options).state.envweave.service
    Waits.entered, Waits.may_go_on = asyncio.Event(), asyncio.Event()
    await service.start()
    try:
        yield service
    finally:
        await service.table.close()


async def until(is_so: Any) -> None:
    async with asyncio.timeout(5):
        while not is_so():
            await asyncio.sleep(0.005)


def test_an_opening_that_is_cancelled_holds_no_session() -> None:
    async def scene() -> None:
        async with service_of("counter-v0", max_sessions=1) as service:
            sessions = HTTPSessions(service)
            opening = asyncio.ensure_future(sessions.open({}))
            await asyncio.sleep(0)

            opening.cancel()

            await asyncio.wait((opening,))
            assert opening.cancelled()
            await until(lambda: service.table.count == 0)
            await sessions.open({})

    asyncio.run(scene())


def test_a_cancelled_open_is_kept_for_the_caller_that_repeated_it() -> None:
    async def scene() -> None:
        async with service_of("counter-v0") as service:
            sessions = HTTPSessions(service)
            both = [
                asyncio.ensure_future(sessions.open({}, request_id="0a1b2c3d-4e5f-6071"))
                for _ in range(2)
            ]
            await asyncio.sleep(0)

            both[0].cancel()

            assert (await both[1]).is_there

    asyncio.run(scene())


def test_a_cancelled_tool_call_is_carried_out_and_the_episode_continues() -> None:
    async def scene() -> None:
        async with service_of(Waits) as service:
            tools = McpTools(service)
            await tools.call("reset", {}, "mine")
            step = asyncio.ensure_future(tools.call("step", {"action": True}, "mine"))
            await Waits.entered.wait()

            step.cancel()
            await asyncio.wait((step,))
            Waits.may_go_on.set()
            outcome = await tools.call("step", {"action": True}, "mine")

            assert not outcome.is_error, outcome.content
            assert outcome.content["observation"] == 2

    asyncio.run(scene())


def test_callers_that_begin_the_default_session_together_are_refused_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        async with service_of("counter-v0", max_sessions=1) as service:
            sessions = HTTPSessions(service)
            await sessions.open({})
            begun: list[str] = []
            whole = service.call

            async def call(call: Any, *rest: Any) -> Any:
                begun.append(call.method)
                return await whole(call, *rest)

            monkeypatch.setattr(service, "call", call)

            refused = await asyncio.gather(
                *(sessions.find_or_begin(None) for _ in range(8)), return_exceptions=True
            )

            assert [type(one) for one in refused] == [CapacityError] * 8
            assert begun == ["open"]

    asyncio.run(scene())


def test_callers_that_begin_the_default_session_together_share_it() -> None:
    async def scene() -> None:
        async with service_of("counter-v0") as service:
            sessions = HTTPSessions(service)

            found = await asyncio.gather(*(sessions.find_or_begin(None) for _ in range(8)))

            assert len({one.id for one in found}) == 1
            assert service.table.count == 1

    asyncio.run(scene())
