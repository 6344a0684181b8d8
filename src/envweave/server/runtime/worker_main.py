"""A worker process of a server: a `LocalRuntime`, called over a private connection.

It is started by `worker_process.py`. When the connection hangs up the server is gone, however it
went, and the worker goes too, with all that it started.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, final

from envweave.errors import EnvWeaveError
from envweave.server.runtime.base import SessionOptions
from envweave.server.runtime.framing import FrameConnection
from envweave.server.runtime.local import LocalRuntime
from envweave.server.runtime.runners import LoopRunner, ThreadedRunner
from envweave.session import Position
from envweave.wire.encoding import MSGPACK
from envweave.wire.faults import fault_of
from envweave.workers.channel import Channel, PeerGoneError
from envweave.workers.main import end_all, ending_told, watch_trainer
from envweave.workers.pickling import load_definition

logger = logging.getLogger("envweave.server")


def main(connection: socket.socket) -> None:
    """Run until the server says `close`, or is gone."""
    atexit.register(end_all, os.getpid())  # the first that is registered is the last that runs
    try:
        _run(connection)
    except PeerGoneError:
        code = 0  # nobody is left to be told anything
    except BaseException as error:  # noqa: BLE001 - nobody above, and nobody else to be told
        code = ending_told(error)
    else:
        code = 0
    # At once: a thread that an environment has left behind could hold it up for ever.
    if code:
        os._exit(code)
    end_all(os.getpid())


def _run(connection: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(connection)
    os.set_inheritable(connection.fileno(), False)  # noqa: FBT003 - by position only
    told = channel.recv()
    definition = channel.recv_packed()
    disabled, level = told["logs"]
    logging.disable(disabled)
    logging.getLogger("envweave").setLevel(level)
    watched = (connection, told["parent"])
    threading.Thread(target=watch_trainer, args=watched, daemon=True).start()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(Worker(connection, definition).serve())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


@final
class Worker:
    """Answers a server's messages.

    A message is `[number, method, session, params, timeout_s]`; its answer
    `[number, result, fault, is_live, position]`; `params` and `result` are packed by themselves.
    An answer to nothing, with the number 0, is the description at first, then how many calls are
    stuck. A ping is answered by its number alone.
    """

    def __init__(self, connection: socket.socket, definition: bytearray) -> None:
        self._socket = connection
        self._definition = definition
        self._place: LocalRuntime | None = None
        self._runners: dict[int, LoopRunner | ThreadedRunner] = {}
        self._opening: set[int] = set()  # sessions that are being made
        self._unwanted: set[int] = set()  # those of them that were closed meanwhile
        self._tasks: set[asyncio.Task[None]] = set()
        self._connection: FrameConnection | None = None
        self._is_over = asyncio.Event()
        self._told_stuck = 0

    async def serve(self) -> None:
        """Answer until the server hangs up or says `close`; then close every environment."""
        loop = asyncio.get_running_loop()
        _, self._connection = await loop.create_connection(
            lambda: FrameConnection(self._heard, self._is_over.set), sock=self._socket
        )
        try:
            spec, kwargs, _, options = load_definition(self._definition)
            del self._definition
            self._place = place = LocalRuntime(spec, kwargs, options)
            place.watch(self._tell_stuck)
            await place.start()
        except Exception as error:
            if not isinstance(error, EnvWeaveError):
                logger.exception("a worker process could not start")
            fault = fault_of(error)
            self._tell(0, None, [fault.code, fault.message])
            self._connection.close()
            return
        self._tell(0, MSGPACK.encode(place.description))
        await self._is_over.wait()
        await place.close()
        self._connection.close()
        await asyncio.sleep(0)

    def _tell_stuck(self) -> None:
        """Tell how many calls are stuck, if that has changed."""
        stuck = 0 if self._place is None else self._place.health.stuck
        if stuck != self._told_stuck:
            self._told_stuck = stuck
            self._tell(0, MSGPACK.encode(stuck))

    def _tell(self, number: int, *rest: Any) -> None:
        assert self._connection is not None
        self._connection.send([number, *rest])

    def _heard(self, message: Any) -> None:
        number, method, *rest = message
        if method == "ping":
            self._tell(number)
        elif method == "stop_resetting":
            runner = self._runners.get(rest[0])
            if runner is not None:
                runner.stop_resetting()
        elif method == "end":
            self._is_over.set()
        else:
            task = asyncio.ensure_future(self._answer(number, self._carry_out(method, *rest), rest))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(
        self, number: int, carried_out: Coroutine[Any, Any, Any], rest: list[Any]
    ) -> None:
        result = fault = None
        try:
            result = MSGPACK.encode(await carried_out)
        except Exception as error:
            if not isinstance(error, EnvWeaveError):
                logger.exception("a call failed")
            told = fault_of(error)
            fault = [told.code, told.message]
        runner = self._runners.get(rest[0])
        live, position = (False, None) if runner is None else (runner.is_live, runner.position)
        self._tell(number, result, fault, live, position)
        self._tell_stuck()

    async def _carry_out(
        self, method: str, session: int, packed: bytes, timeout_s: float | None
    ) -> Any:
        place = self._place
        assert place is not None
        params = MSGPACK.decode(packed)
        if method == "tasks":
            return await place.tasks(**params)
        if method == "task":
            return await place.task(**params)
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

    async def _open(self, session: int, wishes: SessionOptions) -> None:
        assert self._place is not None
        self._opening.add(session)
        try:
            runner = await self._place.open(wishes)
            if session not in self._unwanted:
                self._runners[session] = runner
                return
        finally:
            self._opening.discard(session)
            self._unwanted.discard(session)
        await runner.close()
