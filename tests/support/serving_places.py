"""A place for a server's sessions that counts what is run in it, and waits when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from envweave.server.options import ServerOptions
from envweave.server.runtime.base import Health, SessionOptions
from envweave.server.sessions import SessionTable
from envweave.wire.description import Description
from envweave.wire.messages import Call, Reply


class CountingRunner:
    """Counts its calls. `step` of `{"action": "wait"}` goes on when `go_on` is set."""

    def __init__(self, place: CountingPlace) -> None:
        self._place = place
        self.steps = 0
        self.is_live = False
        self.is_closed = False
        self.resets_itself = True
        self.go_on = asyncio.Event()

    async def call(self, method: str, params: Mapping[str, Any], timeout_s: float | None) -> Any:
        if method == "reset":
            self.is_live = True
        if method == "step":
            self.steps += 1
            if params["action"] == "wait":
                await self.go_on.wait()
            if params["action"] == "end":
                self.is_live = False
        return {"method": method, "steps": self.steps, "timeout_s": timeout_s}

    def stop_resetting(self) -> None:
        self.resets_itself = False

    async def close(self) -> None:
        self.is_closed = True


class CountingPlace:
    """Runs `CountingRunner`s."""

    description = Description(
        name="Counting",
        env_id="counting",
        version="0",
        action={},
        observation={},
        state={},
        reset_takes=[],
    )
    health = Health()
    is_one_object = False

    def __init__(self) -> None:
        self.runners: list[CountingRunner] = []
        self.fails = False
        self.may_open = asyncio.Event()  # cleared, it lets them wait
        self.may_open.set()

    async def start(self) -> None: ...

    async def open(self, wishes: SessionOptions) -> CountingRunner:
        if self.fails:
            raise RuntimeError("no more")
        await self.may_open.wait()
        self.runners.append(CountingRunner(self))
        return self.runners[-1]

    async def tasks(self, split: str, start: int, count: int) -> list[Any]:
        return []

    async def task(self, task_id: str) -> Any:
        return None

    async def close(self) -> None: ...


class Caller:
    """Calls one session of a table, counting as a client does."""

    def __init__(self, table: SessionTable, name: str, connection: object | None = None) -> None:
        self.table = table
        self.name = name
        self.connection = connection
        self.number = 0

    async def __call__(self, method: str, *, again: int = 0, **params: Any) -> Reply:
        if not again:
            self.number += 1
        call = Call(id=again or self.number, session=self.name, method=method, params=params)
        return await self.table.call(call, self.connection)


def counting_table(**options: Any) -> tuple[SessionTable, CountingPlace]:
    place = CountingPlace()
    return SessionTable(place, ServerOptions(**options)), place


def run(work: Coroutine[Any, Any, None]) -> None:
    async def within() -> None:
        async with asyncio.timeout(20):
            await work

    asyncio.run(within())


def code(reply: Reply) -> str | None:
    return None if reply.fault is None else reply.fault.code
