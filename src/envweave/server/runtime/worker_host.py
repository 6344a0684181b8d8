"""What a server's worker process runs: a `LocalRuntime`, called over the worker's connection.

`envweave.workers.rpc` describes the messages; here their parameters and results are MessagePack,
already encoded for the client.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any, final

from envweave.errors import EnvWeaveError
from envweave.server.event_loop import ServerEventLoop
from envweave.server.runtime.base import SessionOptions
from envweave.server.runtime.local import LocalRuntime
from envweave.server.runtime.loop_runner import LoopRunner
from envweave.server.runtime.threaded_runner import ThreadedRunner
from envweave.session import Position
from envweave.wire.description import Description
from envweave.wire.encoding import MSGPACK
from envweave.wire.faults import error_of, fault_of
from envweave.wire.messages import WireFault
from envweave.workers.channel import Channel
from envweave.workers.main import kill_process_group
from envweave.workers.pickling import load_definition
from envweave.workers.rpc import SessionHost

logger = logging.getLogger("envweave.server")


@final
class EncodedCalls:
    """Parameters and results as MessagePack, errors as faults. A `CallEncoding`."""

    def encode_call(self, params: Any) -> bytes:
        """Encode the parameters of a call, for the worker."""
        return MSGPACK.encode(params)

    def encode_reply(self, value: Any) -> bytes:
        """Encode a result, in the worker."""
        return MSGPACK.encode(value)

    def encode_error(self, error: Exception) -> bytes:
        """Encode what a call raised, in the worker; what no client may see is logged."""
        if not isinstance(error, EnvWeaveError):
            logger.error("a call failed", exc_info=error)
        fault = fault_of(error)
        return MSGPACK.encode([fault.code, fault.message])

    def decode(self, packed: bytes) -> Any:
        """Decode parameters or a result."""
        return MSGPACK.decode(packed)

    def decode_error(self, packed: bytes) -> Exception:
        """Decode what a call raised."""
        code, message = MSGPACK.decode(packed)
        return error_of(WireFault(code=code, message=message))


def run(channel: Channel, definition: bytearray) -> None:
    """Run sessions until the server sends `end`, or is gone."""
    with asyncio.Runner(loop_factory=ServerEventLoop) as runner:
        runner.run(_serve(channel, definition))
    # At once: a thread that an environment has left behind could delay the exit for ever.
    kill_process_group(os.getpid())


async def _serve(channel: Channel, definition: bytearray) -> None:
    """Report the environment; answer until the server is gone; then close every environment."""
    sessions = RuntimeSessions(lambda stuck: host.report(stuck))
    host = SessionHost(sessions, EncodedCalls())
    host.open(channel.connection)
    try:
        description = await sessions.start(definition)
    except Exception as error:  # noqa: BLE001 - sent to the server, which raises it
        host.report_error(error)
    else:
        host.report(description)
        await host.wait()
        await sessions.close()
    host.close()


@final
class RuntimeSessions:
    """The sessions of a server's worker process: calls are calls of their runners. See `Sessions`.

    Args:
        on_stuck: Called when the number of calls that are stuck has changed.
    """

    def __init__(self, on_stuck: Callable[[int], None]) -> None:
        self._on_stuck = on_stuck
        self._runtime: LocalRuntime
        self._runners: dict[int, LoopRunner | ThreadedRunner] = {}
        self._opening: set[int] = set()  # sessions that are being made
        self._unwanted: set[int] = set()  # those of them that were closed meanwhile
        self._reported_stuck = 0

    async def start(self, definition: bytes | bytearray) -> Description:
        """Make the first environment; return its description."""
        spec, kwargs, _, options = load_definition(definition)
        self._runtime = LocalRuntime(spec, kwargs, options)
        self._runtime.watch(self._report_stuck)
        await self._runtime.start()
        return self._runtime.description

    def _report_stuck(self) -> None:
        stuck = self._runtime.health.stuck
        if stuck != self._reported_stuck:
            self._reported_stuck = stuck
            self._on_stuck(stuck)

    async def call(
        self, method: str, session: int, params: dict[str, Any], timeout_s: float | None
    ) -> Any:
        """Open or close a session, fetch tasks, or call a session's runner."""
        try:
            return await self._carry_out(method, session, params, timeout_s)
        finally:
            # After the reply: the server may end a worker for its calls that are stuck.
            asyncio.get_running_loop().call_soon(self._report_stuck)

    async def _carry_out(
        self, method: str, session: int, params: dict[str, Any], timeout_s: float | None
    ) -> Any:
        if method == "tasks":
            return await self._runtime.tasks(**params)
        if method == "task":
            return await self._runtime.task(**params)
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

    async def replace(self, _: int, __: Any, error: Exception) -> Any:
        """Raise the error: a result that cannot be encoded is a fault of the server."""
        raise error

    def status(self, session: int) -> tuple[bool, Position | None]:
        """Return whether an episode is running, and the position of the stream of episodes."""
        runner = self._runners.get(session)
        return (False, None) if runner is None else (runner.is_live, runner.position)

    def notify(self, method: str, session: int) -> None:
        """Carry out `stop_resetting`."""
        runner = self._runners.get(session)
        if method == "stop_resetting" and runner is not None:
            runner.stop_resetting()

    def abandon(self, session: int) -> None:
        """Do nothing: a server cancels no calls of its workers."""

    async def close(self) -> None:
        """Close every environment."""
        await self._runtime.close()
