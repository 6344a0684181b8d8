"""What every dialect of a server calls: the sessions, what is served, and whether it is ready."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, final

import msgspec

from envweave.codec.spec import short_repr
from envweave.errors import OptionError, WireError
from envweave.server.options import ServerOptions
from envweave.server.runtime.base import Runtime
from envweave.server.runtime.step_batching import StepBatcher
from envweave.server.sessions import SessionTable, SessionWatcher
from envweave.wire.faults import fault_of
from envweave.wire.messages import (
    OF_SERVERS,
    OF_SESSIONS,
    Call,
    Reply,
    Stepped,
    Steps,
)

PAGE = 1000
"""How many tasks are sent at once, at most."""


@final
class Service:
    """The inside of a server, whatever is spoken at its door.

    Args:
        make_runtime: Makes a place for its environments; another one for each start.
        options: What its operator decided.

    Attributes:
        place: Where its environments run.
        options: What its operator decided.
        table: Its sessions.
        together: Steps of many of them at once.
    """

    def __init__(self, make_runtime: Callable[[], Runtime], options: ServerOptions) -> None:
        self.options = options
        self._make_runtime = make_runtime
        self._watchers: list[SessionWatcher] = []
        self._stoppers: list[Callable[[], Awaitable[None]]] = []
        self.renew()

    def renew(self) -> None:
        """Make ready to start, also once more after it was stopped, or could not start."""
        self.runtime = self._make_runtime()
        self.table = SessionTable(self.runtime, self.options, self._watchers)
        self.together = StepBatcher(self.table)
        self._sweeping: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._is_stopped = False

    def watch(self, watcher: SessionWatcher) -> None:
        """Tell somebody what happens, from now on."""
        self._watchers.append(watcher)

    def on_stop(self, stop: Callable[[], Awaitable[None]]) -> None:
        """Call somebody whenever it stops, after its sessions are closed."""
        self._stoppers.append(stop)

    async def start(self) -> None:
        """Make ready; who comes meanwhile waits too. May be called twice.

        Raises:
            EnvWeaveError: The environment cannot be made.
        """
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        try:
            await self.runtime.start()
        except BaseException:
            self.renew()  # who comes later may find that it can be made
            raise
        self._sweeping = asyncio.ensure_future(self.table.sweep())

    async def stop(self, drain_s: float = 0.0) -> None:
        """Let running episodes go on for so long, then close everything. May be called twice."""
        if self._is_stopped:
            return
        self._is_stopped = True
        await self.table.drain(drain_s)
        if self._sweeping is not None:
            self._sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeping
        for stop in self._stoppers:
            await stop()
        await self.runtime.close()

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped, or is about to be."""
        return self._is_stopped

    @property
    def is_started(self) -> bool:
        """Whether it can take calls."""
        return self._sweeping is not None

    @property
    def unready(self) -> str | None:
        """Why no new session should be sent here, in words; `None` if one may."""
        if not self.is_started:
            return "it is starting"
        if self.table.is_draining:
            return "it is stopping"
        health = self.runtime.health
        if health.stuck > self.options.max_stuck:
            return f"{health.stuck} calls are past their deadline and cannot be stopped"
        if self.options.workers and not health.workers:
            return "no worker process is alive"
        return None

    async def call(self, call: Call, connection: object | None = None) -> Reply:
        """Carry out any call, and return its reply. Nothing is raised."""
        if not self.is_started:
            try:
                await self.start()
            except Exception as error:  # noqa: BLE001 - told to the caller
                return Reply(id=call.id, session=call.session, fault=fault_of(error))
        if call.session and call.method in OF_SESSIONS:
            return await self.table.call(call, connection)
        reply = Reply(id=call.id, session=call.session)
        try:
            reply.result = await self._answer(call)
        except Exception as error:  # noqa: BLE001 - told to the caller
            reply.fault = self.table.told(call.method, error)
        return reply

    async def call_many(self, calls: Sequence[Call], connection: object) -> list[Reply]:
        """Carry out many calls, and return their replies when all are there, in their order."""
        return list(await asyncio.gather(*[self.call(one, connection) for one in calls]))

    def start_calls(
        self, calls: Sequence[Call], connection: object, tell: Callable[[Reply], None]
    ) -> Sequence[Call]:
        """Begin those calls that can go the short way, and return the others.

        Each reply is told as soon as it is there.
        """
        return self.together.start(calls, connection, tell) if self.is_started else calls

    def step_many(self, frame: Steps, connection: object, tell: Callable[[Stepped], None]) -> bool:
        """Begin the steps of a frame if they can go together; what came of them is told later."""
        if not (self.is_started and all(frame.sessions)):
            return False
        self.together.step(frame, connection, tell)
        return True

    async def _answer(self, call: Call) -> Any:
        if call.method in OF_SESSIONS:
            raise WireError(f"{call.method}() is called on a session; name one.")
        if call.method not in OF_SERVERS:
            known = ", ".join(sorted(OF_SERVERS | OF_SESSIONS))
            raise WireError(f"There is no method {call.method[:80]!r}. Known: {known}.")
        if call.method == "describe":
            limit = self.options.max_message_bytes
            return msgspec.structs.replace(self.runtime.description, max_message_bytes=limit)
        if call.method == "task":
            return await self.runtime.task(_text(call.params, "id"))
        start, count = _number(call.params, "start", 0), _number(call.params, "count", PAGE)
        return await self.runtime.tasks(_text(call.params, "split"), start, min(count, PAGE))


def _text(params: dict[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise OptionError(f"{name}={short_repr(value)} is no text.")
    return value


def _number(params: dict[str, Any], name: str, default: int) -> int:
    value = params.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise OptionError(f"{name}={short_repr(value)} is no whole number of 0 or more.")
    return value
