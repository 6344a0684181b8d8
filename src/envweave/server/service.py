"""The service behind every dialect of a server: sessions, tasks, readiness, start and stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, final

import msgspec

from envweave.codec.spec import short_repr
from envweave.errors import OptionError, WireError
from envweave.server.options import OF_ONE_AGENT, ServerOptions
from envweave.server.runtime.base import Runtime
from envweave.server.sessions import SessionTable, SessionWatcher
from envweave.server.steps import StepStarter
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
"""Maximum number of tasks in one reply."""


@final
class Service:
    """What a server does, independent of the dialects its clients use.

    Args:
        make_runtime: Makes the runtime of its environments; called for each start.
        options: Options of the server.

    Attributes:
        runtime: Runs its environments.
        options: Options of the server.
        table: Its sessions.
    """

    def __init__(self, make_runtime: Callable[[], Runtime], options: ServerOptions) -> None:
        self.options = options
        self._make_runtime = make_runtime
        self._watchers: list[SessionWatcher] = []
        self._stop_callbacks: list[Callable[[], Awaitable[None]]] = []
        self.prepare()

    def prepare(self) -> None:
        """Prepare to start, also again after it was stopped or could not start."""
        self.runtime = self._make_runtime()
        self.table = SessionTable(self.runtime, self.options, self._watchers)
        self._steps = StepStarter(self.table)
        self._sweeping: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._is_stopped = False

    def watch(self, watcher: SessionWatcher) -> None:
        """Add an observer of sessions and calls."""
        self._watchers.append(watcher)

    def on_stop(self, stop: Callable[[], Awaitable[None]]) -> None:
        """Add a callback for every stop, called after the sessions are closed."""
        self._stop_callbacks.append(stop)

    async def start(self) -> None:
        """Start; concurrent callers wait for the same start. May be called twice.

        Raises:
            EnvWeaveError: The environment cannot be made.
        """
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        try:
            await self.runtime.start()
            await self._refuse_agents()
        except BaseException:
            self.prepare()  # a later call may succeed
            raise
        self._sweeping = asyncio.ensure_future(self.table.sweep())

    async def _refuse_agents(self) -> None:
        """Refuse an environment with several agents, if a dialect that has one was asked for."""
        asked = [name for name in OF_ONE_AGENT if name in (self.options.dialects or ())]
        about = self.runtime.description
        if asked and about.possible_agents is not None:
            await self.runtime.close()
            raise OptionError(
                f"The dialect {asked[0]!r} is for one agent, and {about.env_id!r} has "
                f"{len(about.possible_agents)}. Leave it out."
            )

    async def stop(self, drain_s: float = 0.0) -> None:
        """Wait up to `drain_s` for running episodes, then close all. May be called twice."""
        if self._is_stopped:
            return
        self._is_stopped = True
        await self.table.drain(drain_s)
        if self._sweeping is not None:
            self._sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeping
        for stop in self._stop_callbacks:
            await stop()
        await self.runtime.close()

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped or is stopping."""
        return self._is_stopped

    @property
    def is_started(self) -> bool:
        """Whether it accepts calls."""
        return self._sweeping is not None

    @property
    def unready_reason(self) -> str | None:
        """Why the server should get no new sessions; `None` if it is ready."""
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
        """Carry out a call and return its reply. Raises nothing."""
        if not self.is_started:
            try:
                await self.start()
            except Exception as error:  # noqa: BLE001 - becomes a fault in the reply
                return Reply(id=call.id, session=call.session, fault=fault_of(error))
        if call.session and call.method in OF_SESSIONS:
            return await self.table.call(call, connection)
        reply = Reply(id=call.id, session=call.session)
        try:
            reply.result = await self._server_call(call)
        except Exception as error:  # noqa: BLE001 - becomes a fault in the reply
            reply.fault = self.table.fault_for(call.method, error)
        return reply

    async def call_many(self, calls: Sequence[Call], connection: object) -> list[Reply]:
        """Carry out many calls, and return their replies in order when all are done."""
        return list(await asyncio.gather(*[self.call(one, connection) for one in calls]))

    def start_calls(
        self, calls: Sequence[Call], connection: object, deliver: Callable[[Reply], None]
    ) -> Sequence[Call]:
        """Begin the steps among these calls; return the calls that need a task.

        Each reply is delivered as soon as it is ready.
        """
        if self._sweeping is None:
            return calls  # the first one starts the service
        return self._steps.start(calls, connection, deliver)

    def step_many(
        self, frame: Steps, connection: object, deliver: Callable[[Stepped], None]
    ) -> bool:
        """Begin the steps of a frame if they can be batched; results are delivered later."""
        if not (self.is_started and all(frame.sessions)):
            return False
        self._steps.step(frame, connection, deliver)
        return True

    async def _server_call(self, call: Call) -> Any:
        if call.method in OF_SESSIONS:
            raise WireError(f"{call.method}() needs a session: set `session`.")
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
        raise OptionError(f"{name} must be a string, got {short_repr(value)}.")
    return value


def _number(params: dict[str, Any], name: str, default: int) -> int:
    value = params.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise OptionError(f"{name} must be an integer >= 0, got {short_repr(value)}.")
    return value
