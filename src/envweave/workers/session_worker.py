"""The worker's side of process sessions: many sessions in one process, called by number.

A call is `[number, method, session, params, timeout_s]`, a reply `[number, reply]`; `params` and
`reply` are pickled by themselves, so that an author's class that cannot be read here spoils only
its own call.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

from envweave.errors import ResetFailedError, StateFailedError
from envweave.registry import EnvSpec, MakeOptions
from envweave.registry.plugins import load_path
from envweave.session import AsyncDriver
from envweave.session.episodes import with_autoreset
from envweave.types import ResetResult, StepResult
from envweave.workers.channel import Channel, FrameConnection
from envweave.workers.deadlines import ClockedEnvironment, CodeClock
from envweave.workers.main import WorkerInfo, make_host
from envweave.workers.pickling import (
    bind_main_classes,
    fail_start,
    fail_step,
    load_definition,
    pack_failure,
    pack_reply,
    pickle_error,
)
from envweave.workers.shared_memory import SharedMemory

MAKE = "envweave.backends.inproc:connect_pool"
"""What makes the environments here; it is in a layer above, so it is named, not imported."""


class CallParams(NamedTuple):
    """The parameters of a call.

    Attributes:
        args: The positional arguments of the method.
        keywords: Its keyword arguments.
        position: The position that the stream of episodes continues from, if an earlier worker
            had reached it.
    """

    args: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = {}
    position: Any = None


class WorkerReply(NamedTuple):
    """The outcome of a call.

    Attributes:
        value: What the method returned.
        agents: Who takes part now.
        position: The position of the stream of episodes.
    """

    value: Any
    agents: list[str]
    position: Any


def run(channel: Channel, definition: bytearray, clock_fd: int) -> None:
    """Run sessions until the parent closes the connection."""
    os.set_inheritable(clock_fd, False)  # noqa: FBT003 - by position only
    clock = CodeClock(SharedMemory(clock_fd).words())
    worker = make_host(channel, lambda: SessionWorker(clock, *load_definition(definition)))
    if worker is not None:
        asyncio.run(worker.serve(channel.connection))


@final
class SessionWorker:
    """Runs the sessions of one worker on one event loop."""

    def __init__(
        self,
        clock: CodeClock,
        spec: EnvSpec,
        kwargs: Mapping[str, Any],
        options: MakeOptions,
        rows: range,
        size: int,
    ) -> None:
        wrap = None
        if options.timeout_s is not None:
            wrap = lambda i, env: ClockedEnvironment(env, clock, i)  # noqa: E731
        self._drivers: list[AsyncDriver] = load_path(MAKE)(
            spec, kwargs, options, len(rows), wrap=wrap, share=(rows.start, size)
        )
        self._last: dict[int, asyncio.Task[None]] = {}  # the last call of each session
        bind_main_classes(self._drivers[0].interface)

    @property
    def info(self) -> WorkerInfo:
        """What the parent needs to know first."""
        return WorkerInfo(self._drivers[0].interface, self._drivers[0].tasks)

    async def serve(self, connection: socket.socket) -> None:
        """Answer until the parent closes the connection, then close every environment."""
        is_over = asyncio.Event()
        self._connection = await FrameConnection.open(connection, self._on_message, is_over.set)
        await is_over.wait()
        await self.close()

    async def close(self) -> None:
        """Cancel what runs, and close every environment."""
        for task in self._last.values():
            task.cancel()
        await asyncio.gather(*self._last.values(), return_exceptions=True)
        closing = [driver.close() for driver in self._drivers]
        await asyncio.gather(*closing, return_exceptions=True)

    def _on_message(self, message: list[Any]) -> None:
        number, method, session, packed, _ = message
        self.start(method, session, packed, lambda reply: self._connection.send([number, reply]))

    def start(
        self, method: str, session: int, packed: bytes, send: Callable[[bytes], None]
    ) -> asyncio.Task[None] | None:
        """Start a call, after those of the same session; `send` is called with the reply.

        `cancel` cancels the session's last call; neither has a reply then.
        """
        previous = self._last.get(session)
        if method == "cancel":
            if previous is not None and not previous.done():
                previous.cancel()
            else:
                # The call could not be interrupted, and its reply is dropped.
                self._drivers[session].session.abandon()
            return None
        driver = self._drivers[session]
        run = self._run(method, driver, packed, previous, send)
        task = self._last[session] = asyncio.ensure_future(run)
        return task

    async def _run(
        self,
        method: str,
        driver: AsyncDriver,
        packed: bytes,
        previous: asyncio.Task[None] | None,
        send: Callable[[bytes], None],
    ) -> None:
        send(await self._answer(method, driver, packed, previous))

    async def _answer(
        self,
        method: str,
        driver: AsyncDriver,
        packed: bytes,
        previous: asyncio.Task[None] | None,
    ) -> bytes:
        try:
            params = CallParams(*pickle.loads(packed))  # noqa: S301 - from our own parent
        except Exception as error:  # noqa: BLE001 - a class that cannot be imported here
            return pack_reply(("unreadable", str(error)))
        if previous is not None and not previous.done():
            await asyncio.wait([previous])
        if params.position is not None:
            driver.session.resume_from(params.position)
        try:
            value = await getattr(driver, method)(*params.args, **params.keywords)
            try:
                return _pack_done(driver, value)
            except Exception:  # noqa: BLE001 - whatever an author's object raises
                return _pack_done(driver, await _sendable(driver, value))
        except Exception as error:  # noqa: BLE001 - sent to the parent, which raises it
            return pack_failure(error)


def _pack_done(driver: AsyncDriver, value: Any) -> bytes:
    return pack_reply(("done", WorkerReply(value, driver.agents, driver.session.position)))


async def _sendable(driver: AsyncDriver, value: Any) -> Any:
    """Return what a call returned, with failures in place of what cannot be pickled."""
    session = driver.session
    if isinstance(value, ResetResult):
        failure = fail_start(session, value)
        if isinstance(failure, Exception):
            raise failure
    if isinstance(value, StepResult):
        result = fail_step(session, value)
        if result.ready is not None or not session.autoreset:
            return result
        try:
            return with_autoreset(result, fail_start(session, await driver.reset()))
        except ResetFailedError as error:
            return with_autoreset(result, error)
    raise StateFailedError(f"The state cannot be sent to another process: {pickle_error(value)}")
