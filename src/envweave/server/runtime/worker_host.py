"""What a server's worker process runs: a `LocalRuntime`, called over the worker's connection.

`worker_connection.py` describes the messages.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Coroutine
from typing import Any, final

from envweave.errors import EnvWeaveError
from envweave.server.event_loop import ServerEventLoop
from envweave.server.runtime.base import SessionOptions
from envweave.server.runtime.local import LocalRuntime
from envweave.server.runtime.runners import LoopRunner, ThreadedRunner
from envweave.session import Position
from envweave.wire.encoding import MSGPACK
from envweave.wire.faults import fault_of
from envweave.workers.channel import Channel, FrameConnection
from envweave.workers.main import kill_process_group
from envweave.workers.pickling import load_definition

logger = logging.getLogger("envweave.server")


def run(channel: Channel, definition: bytearray) -> None:
    """Run sessions until the server sends `end`, or is gone."""
    with asyncio.Runner(loop_factory=ServerEventLoop) as runner:
        runner.run(ServerWorkerHost(definition).serve(channel.connection))
    # At once: a thread that an environment has left behind could delay the exit for ever.
    kill_process_group(os.getpid())


@final
class ServerWorkerHost:
    """Carries out a server's calls in this process."""

    def __init__(self, definition: bytearray) -> None:
        self._definition = definition
        self._runtime: LocalRuntime | None = None
        self._runners: dict[int, LoopRunner | ThreadedRunner] = {}
        self._opening: set[int] = set()  # sessions that are being made
        self._unwanted: set[int] = set()  # those of them that were closed meanwhile
        self._tasks: set[asyncio.Task[None]] = set()
        self._connection: FrameConnection | None = None
        self._is_over = asyncio.Event()
        self._reported_stuck = 0

    async def serve(self, connection: socket.socket) -> None:
        """Answer until the server is gone or sends `end`; then close every environment."""
        self._connection = await FrameConnection.open(
            connection, self._on_message, self._is_over.set
        )
        try:
            spec, kwargs, _, options = load_definition(self._definition)
            del self._definition
            self._runtime = runtime = LocalRuntime(spec, kwargs, options)
            runtime.watch(self._report_stuck)
            await runtime.start()
        except Exception as error:
            if not isinstance(error, EnvWeaveError):
                logger.exception("a worker process could not start")
            fault = fault_of(error)
            self._reply(0, None, [fault.code, fault.message])
            self._connection.close()
            return
        self._reply(0, MSGPACK.encode(runtime.description))
        await self._is_over.wait()
        await runtime.close()
        self._connection.close()
        await asyncio.sleep(0)

    def _report_stuck(self) -> None:
        """Send how many calls are stuck, if that has changed."""
        stuck = 0 if self._runtime is None else self._runtime.health.stuck
        if stuck != self._reported_stuck:
            self._reported_stuck = stuck
            self._reply(0, MSGPACK.encode(stuck))

    def _reply(self, number: int, *reply: Any) -> None:
        assert self._connection is not None
        self._connection.send([number, *reply])

    def _on_message(self, message: list[Any]) -> None:
        number, method, session, params, timeout_s = message
        if method == "ping":
            self._reply(number)
        elif method == "stop_resetting":
            runner = self._runners.get(session)
            if runner is not None:
                runner.stop_resetting()
        elif method == "end":
            self._is_over.set()
        else:
            call = self._carry_out(method, session, params, timeout_s)
            task = asyncio.ensure_future(self._answer(number, session, call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, session: int, call: Coroutine[Any, Any, Any]) -> None:
        result = fault = None
        try:
            result = MSGPACK.encode(await call)
        except Exception as error:
            if not isinstance(error, EnvWeaveError):
                logger.exception("a call failed")
            wire_fault = fault_of(error)
            fault = [wire_fault.code, wire_fault.message]
        runner = self._runners.get(session)
        live, position = (False, None) if runner is None else (runner.is_live, runner.position)
        self._reply(number, result, fault, live, position)
        self._report_stuck()

    async def _carry_out(
        self, method: str, session: int, packed: bytes, timeout_s: float | None
    ) -> Any:
        runtime = self._runtime
        assert runtime is not None
        params = MSGPACK.decode(packed)
        if method == "tasks":
            return await runtime.tasks(**params)
        if method == "task":
            return await runtime.task(**params)
        if method == "open":
            position = params["position"]
            await self._open(
                session,
                SessionOptions(
                    params["autoreset"],
                    timeout_s,
                    None if position is None else Position(*position),
                ),
            )
            return None
        if method == "close":
            closed = self._runners.pop(session, None)
            if closed is not None:
                await closed.close()
            elif session in self._opening:
                self._unwanted.add(session)
            return None
        return await self._runners[session].call(method, params, timeout_s)

    async def _open(self, session: int, options: SessionOptions) -> None:
        assert self._runtime is not None
        self._opening.add(session)
        try:
            runner = await self._runtime.open(options)
            if session not in self._unwanted:
                self._runners[session] = runner
                return
        finally:
            self._opening.discard(session)
            self._unwanted.discard(session)
        await runner.close()
