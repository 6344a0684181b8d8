"""A server's connection to one worker process: calls, pings, and how the process ended.

`envweave.workers.rpc` describes the messages. The worker reports its description first, and then
how many of its calls are stuck whenever that has changed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from typing import Any, final

from envweave.errors import EnvWeaveError, StartupError
from envweave.server.env_factory import CLOSE_S
from envweave.server.runtime.worker_host import EncodedCalls
from envweave.wire.description import Description, read_description
from envweave.workers.launch import WorkerLostError, WorkerProcess, first_messages
from envweave.workers.rpc import END, PING, PING_NUMBER, WorkerConnection, WorkerReply

logger = logging.getLogger("envweave.server")

HOST = "envweave.server.runtime.worker_host:run"

START_S = 120.0
"""How long a worker process may take to make its first environment."""

END_S = 15.0
"""How long a worker process may take to close its environments."""

OVERDUE_S = 1.0
"""How long after a call's deadline its worker process is pinged."""

_NUMBERS = itertools.count(1)

SILENT_S = 5.0
"""How long a worker process may take to answer a ping."""


@final
class ServerWorker:
    """A worker process that runs sessions of a server.

    Attributes:
        number: Its number among those of this process; part of the tokens of its snapshots.
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
        self._calls = WorkerConnection(EncodedCalls())
        self._ready: asyncio.Future[Description] = asyncio.get_running_loop().create_future()
        self._pinged_s: float | None = None
        self._is_ending = False
        self._watching: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.number = next(_NUMBERS)
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
        self._calls.connection = connection = self._process.loop_connection()
        connection.attach(self._on_message, self._on_lost)
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
        on_reply: Callable[[WorkerReply], None] | None = None,
    ) -> WorkerReply:
        """Make a call, and return the reply.

        Raises:
            WorkerLostError: The process is gone.
        """
        if self.gone is not None or self._calls.connection is None:
            raise WorkerLostError(self.gone or "it has not started")
        return await self._calls.submit(method, session, params, timeout_s, on_reply).future

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

    def global_token(self, token: str) -> str:
        """Return the token of a snapshot there, as it is known outside of the process."""
        return f"{self.number}-{token}"

    def local_token(self, token: str) -> str | None:
        """Return the token that a snapshot has there; `None` if it is of another process."""
        number, _, own = token.partition("-")
        return own if own and number == str(self.number) else None

    def notify(self, method: str, session: int = 0, *, number: int = 0) -> None:
        """Send a message that has no reply; dropped if the process is gone."""
        self._calls.notify(method, session, number)

    def _on_message(self, message: Any) -> None:
        self._pinged_s = None
        try:
            report = self._calls.receive(message)
            if report is not None:
                self._take_report(report)
        except Exception:
            # A caller may be waiting for this message, and must not wait for ever.
            logger.exception("worker process %d sent an unreadable message", self.pid)
            self.end(f"its worker process {self.pid} sent an unreadable message, and was ended")

    def _take_report(self, report: WorkerReply) -> None:
        if self._ready.done():
            self.stuck = report.value()
            self._on_change(self)
            return
        try:
            self._ready.set_result(read_description(report.value()))
        except EnvWeaveError as error:
            self._ready.set_exception(error)

    async def _watch(self) -> None:
        """End a process that is silent though calls are overdue: code may block its loop."""
        while True:
            await asyncio.sleep(SILENT_S / 5)
            now, due_s = time.monotonic(), self._calls.due_s
            if due_s is None or due_s + OVERDUE_S > now:
                continue
            if self._pinged_s is None:
                self._pinged_s = now
                self.notify(PING, number=PING_NUMBER)
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
        loss = WorkerLostError(self.gone)
        self._calls.fail(loss)
        self._process.close()
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
            self.notify(END)
        try:
            async with asyncio.timeout(END_S):
                await self.is_gone.wait()
        except TimeoutError:
            logger.warning("worker process %d did not end within %g s", self.pid, END_S)
            self.end("the server is stopping")
            await self.is_gone.wait()
