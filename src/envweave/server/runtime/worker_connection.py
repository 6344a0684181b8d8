"""A server's connection to one worker process: calls, pings, and how the process ended.

A call is `[number, method, session, params, timeout_s]`, its reply
`[number, result, fault, is_live, position]`; `params` and `result` are encoded by themselves, so
that they can spoil only their own call. The worker also sends replies with number 0: its
description first, then how many calls are stuck. A ping is answered by its number alone.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple, final

from envweave.errors import EnvWeaveError, StartupError
from envweave.server.env_factory import CLOSE_S
from envweave.wire.description import Description, read_description
from envweave.wire.encoding import MSGPACK
from envweave.wire.faults import error_of
from envweave.wire.messages import WireFault
from envweave.workers.channel import FrameConnection
from envweave.workers.launch import WorkerLostError, WorkerProcess, first_messages

logger = logging.getLogger("envweave.server")

HOST = "envweave.server.runtime.worker_host:run"

START_S = 120.0
"""How long a worker process may take to make its first environment."""

END_S = 15.0
"""How long a worker process may take to close its environments."""

OVERDUE_S = 1.0
"""How long after a call's deadline its worker process is pinged."""

SILENT_S = 5.0
"""How long a worker process may take to answer a ping."""

_PING = -1  # the number of every ping, and of its reply


class ServerWorkerReply(NamedTuple):
    """A worker's reply to a call.

    Attributes:
        result: What the call returned, encoded.
        fault: What it failed with instead.
        is_live: Whether an episode is running.
        position: The position of the stream of episodes.
    """

    result: bytes
    fault: Any = None
    is_live: bool = False
    position: Any = None

    def value(self) -> Any:
        """Return the result.

        Raises:
            EnvWeaveError: There is a fault instead, or the result cannot be decoded.
        """
        if self.fault is not None:
            raise error_of(WireFault(code=self.fault[0], message=self.fault[1]))
        return MSGPACK.decode(self.result)


class _PendingCall(NamedTuple):
    """A call whose reply has not arrived.

    Attributes:
        future: Gets the reply.
        on_reply: Called with the reply, also if the caller was cancelled.
        due_s: When the reply is due; `None` if the call may take any time.
    """

    future: asyncio.Future[ServerWorkerReply]
    on_reply: Callable[[ServerWorkerReply], None] | None
    due_s: float | None


@final
class ServerWorker:
    """A worker process that runs sessions of a server.

    Attributes:
        sessions: How many it has.
        stuck: How many calls past their deadline could not be stopped there, and still run.
        is_draining: Whether it gets no more sessions.
        gone: How it ended; `None` while it is alive.
        is_gone: Set when it has ended.

    Args:
        on_change: Called when it is gone, and when `stuck` has changed.
    """

    def __init__(self, on_change: Callable[[ServerWorker], None]) -> None:
        self._on_change = on_change
        self._pending: dict[int, _PendingCall] = {}
        self._numbers = itertools.count(1)
        self._ready: asyncio.Future[Description] = asyncio.get_running_loop().create_future()
        self._pinged_s: float | None = None
        self._is_ending = False
        self._connection: FrameConnection | None = None
        self._watching: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.sessions = 0
        self.stuck = 0
        self.is_draining = False
        self.gone: str | None = None
        self.is_gone = asyncio.Event()
        # Its output goes to stderr: the server's stdout is its own.
        self._process = WorkerProcess("a worker process of an envweave server", stdout=2)

    @property
    def pid(self) -> int:
        """The process's ID."""
        return self._process.pid

    async def start(self, definition: bytes) -> Description:
        """Send it what to run; return a description of that.

        Raises:
            EnvWeaveError: It could not make an environment, or ended, or took too long.
        """
        connection = await FrameConnection.open(
            self._process.connection, self._on_message, self._on_lost
        )
        self._connection = connection
        connection.send_payloads(*first_messages(HOST, definition))
        if self._process.pidfd is not None:
            # A forked copy of the worker may hold the connection longer than the worker lives.
            asyncio.get_running_loop().add_reader(self._process.pidfd, self._on_lost)
        self._watching = asyncio.ensure_future(self._watch())
        try:
            async with asyncio.timeout(START_S):
                return await self._ready
        except TimeoutError:
            raise StartupError(
                f"A worker process made no environment within {START_S:g} s."
            ) from None
        except WorkerLostError as loss:
            raise StartupError(f"A worker process could not start: {loss}.") from None

    async def call(
        self,
        method: str,
        session: int,
        params: Any,
        timeout_s: float | None = None,
        on_reply: Callable[[ServerWorkerReply], None] | None = None,
    ) -> ServerWorkerReply:
        """Make a call, and return the reply.

        Raises:
            WorkerLostError: The process is gone.
        """
        if self.gone is not None or self._connection is None:
            raise WorkerLostError(self.gone or "it has not started")
        number = next(self._numbers)
        future: asyncio.Future[ServerWorkerReply] = asyncio.get_running_loop().create_future()
        due_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._pending[number] = _PendingCall(future, on_reply, due_s)
        self._connection.send([number, method, session, MSGPACK.encode(params), timeout_s])
        return await future

    async def close_session(self, session: int) -> None:
        """Have a session closed; end the process if that takes too long.

        Raises:
            WorkerLostError: The process is gone, and with it the session.
        """
        # The worker itself sees to it that no environment's close() takes longer.
        limit_s = 3 * CLOSE_S
        try:
            async with asyncio.timeout(limit_s):
                await self.call("close", session, {}, CLOSE_S)
        except TimeoutError:
            self.end(
                f"its worker process {self.pid} closed no session within {limit_s:g} s, and was "
                "ended"
            )
            await self.is_gone.wait()

    def notify(self, method: str, session: int = 0, *, number: int = 0) -> None:
        """Send a message that has no reply; dropped if the process is gone."""
        if self.gone is None and self._connection is not None:
            self._connection.send([number, method, session, None, None])

    def _on_message(self, message: Any) -> None:
        try:
            self._handle(message)
        except Exception:
            # A caller may be waiting for this message, and must not wait for ever.
            logger.exception("worker process %d sent an unreadable message", self.pid)
            self.end(f"its worker process {self.pid} sent an unreadable message, and was ended")

    def _handle(self, message: Any) -> None:
        number, *rest = message
        self._pinged_s = None
        if number == _PING:
            return
        if number:
            pending = self._pending.pop(number)
            reply = ServerWorkerReply(*rest)
            if pending.on_reply is not None:
                pending.on_reply(reply)
            if not pending.future.done():
                pending.future.set_result(reply)
        elif not self._ready.done():
            try:
                self._ready.set_result(read_description(ServerWorkerReply(*rest).value()))
            except EnvWeaveError as error:
                self._ready.set_exception(error)
        else:
            self.stuck = ServerWorkerReply(*rest).value()
            self._on_change(self)

    async def _watch(self) -> None:
        """End a process that is silent though calls are overdue: code may block its loop."""
        while True:
            await asyncio.sleep(SILENT_S / 5)
            now = time.monotonic()
            due = [call.due_s for call in self._pending.values() if call.due_s is not None]
            if not due or min(due) + OVERDUE_S > now:
                continue
            if self._pinged_s is None:
                self._pinged_s = now
                self.notify("ping", number=_PING)
            elif now - self._pinged_s > SILENT_S:
                self.end(f"its worker process {self.pid} stopped responding, and was ended")
                return

    # The end

    def _on_lost(self) -> None:
        """The process has closed its connection, or has ended."""
        if not self._is_ending:
            self._begin_end(None)

    def end(self, why: str) -> None:
        """End the process and every process that it started, at once. May be called twice."""
        if not self._is_ending:
            self._process.kill()
            self._begin_end(why)

    def _begin_end(self, why: str | None) -> None:
        self._is_ending = True
        self._ending = asyncio.ensure_future(self._finish_end(why))

    async def _finish_end(self, why: str | None) -> None:
        """Find out how the process ended, free everything, and fail the pending calls."""
        if self._process.pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._process.pidfd)
        if self._watching is not None:
            self._watching.cancel()
        ends_s = time.monotonic() + 1.0  # it has closed the connection, so it is about to end
        while self._process.exit_code is None and time.monotonic() < ends_s:
            await asyncio.sleep(0.002)
        self._process.kill()
        while self._process.exit_code is None:
            await asyncio.sleep(0.002)
        self.gone = self._process.describe_exit() if why is None else why
        if self._connection is not None:
            self._connection.close()
        self._process.close()
        loss = WorkerLostError(self.gone)
        pending, self._pending = self._pending, {}
        for call in pending.values():
            if not call.future.done():
                call.future.set_exception(loss)
        if not self._ready.done():
            self._ready.set_exception(loss)
        self.is_gone.set()
        self._on_change(self)

    async def close(self) -> None:
        """Have it close its environments and end; end it if that takes too long."""
        self.is_draining = True
        if not self._ready.done() or self._ready.cancelled() or self._ready.exception():
            self.end("the server is stopping")
        else:
            self.notify("end")
        try:
            async with asyncio.timeout(END_S):
                await self.is_gone.wait()
        except TimeoutError:
            logger.warning("worker process %d did not end within %g s", self.pid, END_S)
            self.end("the server is stopping")
            await self.is_gone.wait()
