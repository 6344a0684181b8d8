"""A worker process with whole sessions, and how its callers reach it."""

from __future__ import annotations

import asyncio
import atexit
import os
import pickle
from typing import Any, final

from envweave.errors import EnvWeaveError, format_error
from envweave.vector.process.shared_memory import EventFd, TurnSlot, TurnTable
from envweave.vector.process.vector_worker import WorkerInfo
from envweave.workers.channel import LENGTH, pack, pack_by_value
from envweave.workers.pickling import check_actions
from envweave.workers.session_worker import WorkerCall, WorkerReply
from envweave.workers.worker_process import CLOSE_S, WorkerIPC, WorkerLostError, WorkerProcess

HOST = "envweave.workers.session_worker:SessionWorker"


@final
class WorkerConnection:
    """One worker after the other, each with the same environments.

    Attributes:
        worker: The one there is; `None` after it was lost.
        generation: How many have been started.
        loss: How the last one was lost.
    """

    def __init__(self, definition: bytes, timeout_s: float | None) -> None:
        self.worker: WorkerProcess | None = None
        self.generation = 0
        self.loss = WorkerLostError("it has not begun")
        self.timeout_s = timeout_s
        self._definition = definition
        self._board = TurnTable.of(1)
        self._bells = EventFd.new(), EventFd.new()
        self._by_value = False
        self._is_ended = False
        self._owner = os.getpid()
        self._numbers = 0

    def launch(self) -> WorkerProcess:
        """Start a process, and don't wait for it.

        Raises:
            WorkerLostError: It ended at once.
        """
        if self._is_ended:
            raise WorkerLostError("it was closed")
        worker = WorkerProcess(WorkerIPC(self._board, TurnSlot.of(0), *self._bells, looks=0))
        try:
            worker.define(HOST, self._definition)
        except BaseException:
            worker.end()
            raise
        return worker

    def start(self, worker: WorkerProcess | None = None) -> WorkerInfo:
        """Start a worker, or take one that is on its way, and return what it says.

        Raises:
            WorkerLostError: It ended first.
            EnvWeaveError: One of its environments could not be made.
        """
        worker = self.launch() if worker is None else worker
        try:
            hello: WorkerInfo = worker.answer()
        except BaseException:
            worker.end()
            raise
        self.worker = worker
        self.generation += 1
        if self._is_ended:  # while it started
            worker.end()
        return hello

    def packed(self, index: int, method: str, *args: Any, **rest: Any) -> tuple[int, bytes]:
        """Return a call's number, and the call as a message."""
        self._numbers += 1
        call = WorkerCall(self._numbers, index, method, args, **rest)
        try:
            packed = (pack_by_value if self._by_value else pack)(call)
        except Exception:
            check_actions(args)
            raise
        return self._numbers, pickle.dumps((self._numbers, packed))

    def read(self, reply: bytes) -> WorkerReply | None:
        """Return the answer in a reply; `None` if the call must be packed again, and is told anew.

        Raises:
            WorkerLostError: It cannot be read, so that nobody knows what came of the call.
            Exception: What the call raised.
        """
        try:
            kind, value = pickle.loads(reply)  # noqa: S301 - from our own worker
        except Exception as error:
            raise WorkerLostError(f"its answer cannot be read: {format_error(error)}") from error
        if kind == "done":
            answer: WorkerReply = value
            return answer
        if kind == "unreadable" and not self._by_value:
            self._by_value = True
            return None
        raise value if isinstance(value, Exception) else WorkerLostError(f"it said: {value}")

    def lose(self, loss: WorkerLostError) -> None:
        """Book a worker that is gone."""
        if self.worker is not None:
            self.worker.end()
        self.worker, self.loss = None, loss

    def end(self) -> None:
        """End the worker, and let go of what was shared with it. May be called twice.

        A forked copy of the trainer does no such thing.
        """
        if self._owner != os.getpid():
            return
        self._is_ended = True
        self.lose(WorkerLostError("it was closed"))
        for bell in self._bells:
            bell.close()
        self._board.close()


_CHUNK = 1 << 20


@final
class AsyncWorkerConnection:
    """Carries the calls of many sessions to one worker process, on one event loop at a time."""

    def __init__(self, line: WorkerConnection, count: int) -> None:
        self.line = line
        self._open = count  # how many of its environments are not closed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._in = bytearray()
        self._out = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        atexit.register(line.end)

    @property
    def generation(self) -> int:
        """How many workers have been started."""
        return self.line.generation

    async def call(self, index: int, method: str, *args: Any, **rest: Any) -> WorkerReply:
        """Return what came of a call.

        Raises:
            WorkerLostError: The worker is gone.
            Exception: What the call raised.
        """
        while True:
            self._attend()
            number, packed = self.line.packed(index, method, *args, **rest)
            reply = self._waiting[number] = asyncio.get_running_loop().create_future()
            self._send(packed)
            try:
                answer = self.line.read(await reply)
            except WorkerLostError as loss:
                self.lose(loss)
                raise
            except asyncio.CancelledError:
                if self.line.worker is not None:
                    self._send(self.line.packed(index, "cancel")[1])
                raise
            finally:
                self._waiting.pop(number, None)
            if answer is not None:
                return answer

    def _attend(self) -> None:
        """Listen to the worker on the loop that runs now.

        Raises:
            WorkerLostError: There is none.
        """
        worker, loop = self.line.worker, asyncio.get_running_loop()
        if worker is None:
            raise self.line.loss
        if self._loop is not loop:
            self._loop = loop
            if self._timer is not None:  # of a loop that has ended
                self._timer.cancel()
                self._timer = None
            worker.connection.settimeout(0)
            loop.add_reader(worker.connection.fileno(), self._readable)
        if self.line.timeout_s is not None and self._timer is None:
            self._timer = loop.call_later(self.line.timeout_s, self._look_at_clock)

    def _send(self, packed: bytes) -> None:
        self._out += LENGTH.pack(len(packed)) + packed
        self._writable()

    def _writable(self) -> None:
        """Send what fits, and come back for the rest when there is room."""
        worker, loop = self.line.worker, self._loop
        if worker is None or loop is None:
            return
        connection = worker.connection
        try:
            del self._out[: connection.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            return  # the reader will find it gone
        if self._out:
            loop.add_writer(connection.fileno(), self._writable)
        else:
            loop.remove_writer(connection.fileno())

    def _readable(self) -> None:
        worker = self.line.worker
        if worker is None:
            return
        try:
            chunk = worker.connection.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.lose(None)
            return
        self._in += chunk
        while len(self._in) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._in)[0]
            if len(self._in) < end:
                return
            number, reply = pickle.loads(self._in[LENGTH.size : end])  # noqa: S301
            del self._in[:end]
            waiting = self._waiting.get(number)
            if waiting is not None and not waiting.done():
                waiting.set_result(reply)

    def _look_at_clock(self) -> None:
        """End a worker whose code has taken too long; else look again when it may have."""
        self._timer = None
        worker, timeout_s, loop = self.line.worker, self.line.timeout_s, self._loop
        if worker is None or timeout_s is None or loop is None or not self._waiting:
            return
        descriptor = worker.connection.fileno()
        try:
            left = worker.check_deadline(timeout_s)
        except WorkerLostError as loss:
            self._forget(descriptor)
            self.lose(loss)
            return
        self._timer = loop.call_later(left, self._look_at_clock)

    def lose(self, loss: WorkerLostError | None) -> None:
        """Book a worker that is gone, and tell all that wait for it."""
        worker = self.line.worker
        if worker is not None:
            self._forget(worker.connection.fileno())
            self.line.lose(worker.lost() if loss is None else loss)
        self._in.clear()
        self._out.clear()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self.line.loss)

    def _forget(self, descriptor: int) -> None:
        if self._loop is not None and not self._loop.is_closed() and descriptor >= 0:
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)
        self._loop = None

    async def ready(self) -> None:
        """Start another worker if the last was lost.

        Raises:
            WorkerLostError: It could not start.
        """
        loop = asyncio.get_running_loop()
        if self._starting is None or self._starting[0] is not loop:
            self._starting = loop, asyncio.Lock()
        async with self._starting[1]:
            if self.line.worker is not None:
                if not self.line.worker.is_gone:
                    return
                self.lose(None)
            try:
                await asyncio.to_thread(self.line.start)
            except WorkerLostError:
                raise
            except (EnvWeaveError, OSError) as error:
                raise WorkerLostError(
                    f"a new worker process could not take over: {error}"
                ) from error

    async def close_one(self, index: int, *, is_current: bool) -> None:
        """Close one environment; with the last, end the worker."""
        try:
            if self.line.worker is not None and is_current:
                async with asyncio.timeout(CLOSE_S):
                    await self.call(index, "close")
        except (WorkerLostError, TimeoutError):
            pass  # it is gone already, or is ended now
        finally:
            self.drop_one()

    def drop_one(self) -> bool:
        """Count one environment less; with the last, end the worker and return true."""
        self._open -= 1
        if not self._open:
            atexit.unregister(self.line.end)
            self.end()
        return not self._open

    def end(self) -> None:
        """End the worker. May be called twice."""
        if self.line.worker is not None:
            self._forget(self.line.worker.connection.fileno())
        if self._timer is not None:
            self._timer.cancel()
        self.line.end()
