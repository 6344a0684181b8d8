"""A worker with whole sessions: each environment by itself, called as its caller pleases."""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple, final

from envweave.errors import ResetFailedError, StateFailedError
from envweave.registry import EnvSpec, MakeOptions
from envweave.registry.plugins import load_path
from envweave.session import AsyncDriver
from envweave.types import ResetResult, StepResult
from envweave.vector.episode_tracker import with_autoreset
from envweave.vector.process.shared_memory import TurnSlot, TurnTable
from envweave.vector.process.vector_worker import WorkerInfo
from envweave.workers.channel import LENGTH, pack_reply
from envweave.workers.deadline_marks import Marked, bind_main_classes
from envweave.workers.main import failed
from envweave.workers.pickling import fail_start, fail_step, refused

MAKE = "envweave.backends.inproc:connect_pool"
"""What makes the environments here; it stands above this layer, so it is named, not imported."""


class WorkerCall(NamedTuple):
    """One call on one environment.

    Attributes:
        number: Which call of this worker it is.
        env_index: Which environment it is for.
        method: `"reset"`, `"step"`, `"state"` or `"close"`; `"cancel"` is about the last call.
        args: What the method is given.
        keywords: What it is given by name.
        position: Where the stream of episodes goes on, if another worker had come so far.
    """

    number: int
    env_index: int
    method: str
    args: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = {}
    position: Any = None


class WorkerReply(NamedTuple):
    """What came of a call.

    Attributes:
        value: What the method returned.
        agents: Who takes part now.
        position: Where the stream of episodes stands.
    """

    value: Any
    agents: list[str]
    position: Any


@final
class SessionWorker:
    """Runs the sessions of one worker on one event loop."""

    def __init__(
        self,
        spec: EnvSpec,
        kwargs: Mapping[str, Any],
        options: MakeOptions,
        rows: range,
        size: int,
        board: TurnTable,
        turn: TurnSlot,
    ) -> None:
        marks = None
        if options.timeout_s is not None:
            marks = lambda i, one: Marked(one, board, turn, i)  # noqa: E731
        self._drivers: list[AsyncDriver] = load_path(MAKE)(
            spec, kwargs, options, len(rows), wrap=marks, share=(rows.start, size)
        )
        self._last: dict[int, asyncio.Task[None]] = {}  # the last call of each environment
        bind_main_classes(self._drivers[0].interface)

    def hello(self) -> WorkerInfo:
        """Return what the trainer wants to know first."""
        return WorkerInfo(self._drivers[0].interface, self._drivers[0].tasks)

    def serve(self, connection: socket.socket) -> None:
        """Answer until the trainer hangs up, then close every environment."""
        asyncio.run(self._serve(connection))

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            while True:
                size = LENGTH.unpack(await reader.readexactly(LENGTH.size))[0]
                self._begin(await reader.readexactly(size), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the trainer has hung up
        finally:
            for task in self._last.values():
                task.cancel()
            await asyncio.gather(*self._last.values(), return_exceptions=True)
            closing = [driver.close() for driver in self._drivers]
            await asyncio.gather(*closing, return_exceptions=True)
            writer.close()

    def _begin(self, packed: bytes, writer: asyncio.StreamWriter) -> None:
        number, packed_call = pickle.loads(packed)  # noqa: S301 - from our own trainer
        try:
            call: WorkerCall = pickle.loads(packed_call)  # noqa: S301 - from our own trainer
        except Exception as error:  # noqa: BLE001 - a class that cannot be imported here
            _reply(writer, number, pack_reply(("unreadable", str(error))))
            return
        before = self._last.get(call.env_index)
        if call.method == "cancel":
            if before is not None and not before.done():
                before.cancel()
            else:
                # It could not be interrupted, and nobody will hear how it went.
                self._drivers[call.env_index].session.abandon()
            return
        task = asyncio.ensure_future(self._run(call, before, writer))
        self._last[call.env_index] = task

    async def _run(
        self, call: WorkerCall, before: asyncio.Task[None] | None, writer: asyncio.StreamWriter
    ) -> None:
        if before is not None and not before.done():
            await asyncio.wait([before])
        driver = self._drivers[call.env_index]
        session = driver.session
        if call.position is not None:
            session.resume_from(call.position)
        try:
            value = await getattr(driver, call.method)(*call.args, **call.keywords)
            try:
                reply = _done(driver, value)
            except Exception:  # noqa: BLE001 - whatever an author's object raises
                reply = _done(driver, await _sendable(driver, value))
        except Exception as error:  # noqa: BLE001 - told to the trainer, who raises it
            reply = failed(error)
        _reply(writer, call.number, reply)


def _done(driver: AsyncDriver, value: Any) -> bytes:
    return pack_reply(("done", WorkerReply(value, driver.agents, driver.session.position)))


async def _sendable(driver: AsyncDriver, value: Any) -> Any:
    """Return what a call returned with failures in place of what cannot be sent."""
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
    raise StateFailedError(f"The state cannot be sent to another process: {refused(value)}")


def _reply(writer: asyncio.StreamWriter, number: int, reply: bytes) -> None:
    packed = pickle.dumps((number, reply))
    writer.write(LENGTH.pack(len(packed)) + packed)
