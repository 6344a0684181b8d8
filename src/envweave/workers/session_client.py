"""Connections to worker processes that run whole sessions, for sync and async callers."""

from __future__ import annotations

import asyncio
import atexit
import pickle
from typing import Any, Protocol, final

from envweave.errors import EnvWeaveError, format_error
from envweave.lifetime import OwnerProcess
from envweave.workers.channel import FrameBuffer, encode_message, frame
from envweave.workers.deadlines import CodeClock
from envweave.workers.launch import CLOSE_S, WorkerLostError, WorkerProcess
from envweave.workers.main import WorkerInfo
from envweave.workers.pickling import check_actions, pack, pack_by_value
from envweave.workers.session_worker import CallParams, WorkerReply
from envweave.workers.shared_memory import SharedMemory

HOST = "envweave.workers.session_worker:run"


class WorkerSocket(Protocol):
    """What an event loop needs of the socket to a worker."""

    def fileno(self) -> int:
        """Return the descriptor to poll; -1 once it is closed."""
        ...

    def settimeout(self, timeout_s: float | None, /) -> None:
        """Make its calls wait for so long."""
        ...

    def send(self, data: Any, /) -> int:
        """Send what fits; return how many bytes."""
        ...

    def recv(self, size: int, /) -> bytes:
        """Return bytes that arrived; none when the worker is gone."""
        ...


class SessionWorkerProcess(Protocol):
    """A worker that runs sessions. See `WorkerProcess`."""

    @property
    def connection(self) -> WorkerSocket:
        """The connection to it, for an event loop."""
        ...

    @property
    def is_gone(self) -> bool:
        """Whether the process no longer exists."""
        ...

    def send(self, payload: bytes) -> None:
        """Send a message."""
        ...

    def receive(self, timeout_s: float | None = None) -> bytes | bytearray:
        """Return the process's next message."""
        ...

    def has_message(self, timeout_s: float) -> bool:
        """Wait for the next message; return whether one arrived."""
        ...

    def check_deadline(self, timeout_s: float) -> float:
        """Return how many seconds the code that is running has left."""
        ...

    def lost(self) -> WorkerLostError:
        """End what is left of it, and return how it ended."""
        ...

    def end(self) -> None:
        """End it. May be called twice."""
        ...


class SessionLauncher(Protocol):
    """Starts workers that run the same sessions, one after the other."""

    def launch(self) -> SessionWorkerProcess:
        """Start one, without waiting until it is ready."""
        ...

    def close(self) -> None:
        """Release what its workers have in common. May be called twice."""
        ...


@final
class ProcessLauncher:
    """Starts worker processes on this machine, which share a clock with us."""

    def __init__(self, definition: bytes) -> None:
        self._definition = definition
        self._memory = SharedMemory.of(8 * CodeClock.SIZE)
        self._words = self._memory.words()
        self._clock = CodeClock(self._words)

    def launch(self) -> WorkerProcess:
        """Start a process, without waiting until it is ready.

        Raises:
            WorkerLostError: It ended at once.
        """
        self._clock.stop()  # the last worker may have been lost while it ran
        worker = WorkerProcess(clock=self._clock, fds=[self._memory.fd])
        try:
            worker.define(HOST, self._definition, self._memory.fd)
        except BaseException:
            worker.end()
            raise
        return worker

    def close(self) -> None:
        """Release the memory of the clock. May be called twice."""
        self._words.release()
        self._memory.close()


@final
class WorkerSlot:
    """A worker with some sessions, and its replacement when it is lost.

    Attributes:
        worker: The current one; `None` after it was lost.
        generation: How many have been started.
        loss: How the last one was lost.
    """

    def __init__(self, launcher: SessionLauncher, timeout_s: float | None) -> None:
        self.worker: SessionWorkerProcess | None = None
        self.generation = 0
        self.loss = WorkerLostError("it has not started")
        self.timeout_s = timeout_s
        self._launcher = launcher
        self._by_value = False
        self._is_ended = False
        self._owner = OwnerProcess()
        self._numbers = 0

    def launch(self) -> SessionWorkerProcess:
        """Start a worker, without waiting for it.

        Raises:
            WorkerLostError: It ended at once.
        """
        if self._is_ended:
            raise WorkerLostError("it was closed")
        return self._launcher.launch()

    def start(self, worker: SessionWorkerProcess | None = None) -> WorkerInfo:
        """Start a worker, or wait for one that was launched, and return what it reports.

        Raises:
            WorkerLostError: It ended first.
            EnvWeaveError: One of its environments could not be made.
        """
        worker = self.launch() if worker is None else worker
        try:
            kind, info = _load(worker.receive())
            if kind != "done":
                raise info
        except BaseException:
            worker.end()
            raise
        self.worker = worker
        self.generation += 1
        if self._is_ended:  # while it started
            worker.end()
        report: WorkerInfo = info
        return report

    def restart(self) -> None:
        """Start another worker, which continues with the same environments.

        Raises:
            WorkerLostError: It could not be started.
        """
        try:
            self.start()
        except (EnvWeaveError, OSError) as error:
            raise WorkerLostError(f"a new worker process could not take over: {error}") from error

    def encode_call(
        self, session: int, method: str, *args: Any, **params: Any
    ) -> tuple[int, bytes]:
        """Return a call's number, and the call as a message."""
        self._numbers += 1
        call = CallParams(args, **params)
        try:
            packed = (pack_by_value if self._by_value else pack)(tuple(call))
        except Exception:
            check_actions(args)
            raise
        return self._numbers, encode_message([self._numbers, method, session, packed, None])

    def decode_reply(self, reply: bytes) -> WorkerReply | None:
        """Return the reply to a call; `None` if the call must be encoded and sent again.

        Raises:
            WorkerLostError: It cannot be read, so the outcome of the call is unknown.
            Exception: What the call raised.
        """
        kind, value = _load(reply)
        if kind == "done":
            done: WorkerReply = value
            return done
        if kind == "unreadable" and not self._by_value:
            self._by_value = True
            return None
        raise value if isinstance(value, Exception) else WorkerLostError(f"it replied: {value}")

    def lose(self, loss: WorkerLostError) -> None:
        """Record that the worker is gone."""
        if self.worker is not None:
            self.worker.end()
        self.worker, self.loss = None, loss

    def end(self) -> None:
        """End the worker, and release what was shared with it. May be called twice.

        Does nothing in a forked copy of the process that started it.
        """
        if not self._owner.is_current:
            return
        self._is_ended = True
        self.lose(WorkerLostError("it was closed"))
        self._launcher.close()


def _load(reply: bytes | bytearray) -> Any:
    try:
        return pickle.loads(reply)  # noqa: S301 - from our own worker
    except Exception as error:
        raise WorkerLostError(f"its reply cannot be read: {format_error(error)}") from error


_CHUNK = 1 << 18


@final
class AsyncWorkerConnection:
    """Carries the calls of many sessions to one worker process, on one event loop at a time.

    It reads and writes the socket itself instead of using an asyncio transport, which would
    belong to one loop: callers may run one loop after the other.
    """

    def __init__(self, slot: WorkerSlot, count: int) -> None:
        self.slot = slot
        self._open = count  # how many of its environments are not closed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._received = FrameBuffer()
        self._unsent = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        atexit.register(slot.end)

    @property
    def generation(self) -> int:
        """How many workers have been started."""
        return self.slot.generation

    async def call(self, session: int, method: str, *args: Any, **params: Any) -> WorkerReply:
        """Make a call, and return its outcome.

        Raises:
            WorkerLostError: The worker is gone.
            Exception: What the call raised.
        """
        while True:
            self._attach()
            number, packed = self.slot.encode_call(session, method, *args, **params)
            future = self._pending[number] = asyncio.get_running_loop().create_future()
            self._send(packed)
            try:
                reply = self.slot.decode_reply(await future)
            except WorkerLostError as loss:
                self.lose(loss)
                raise
            except asyncio.CancelledError:
                if self.slot.worker is not None:
                    self._send(self.slot.encode_call(session, "cancel")[1])
                raise
            finally:
                self._pending.pop(number, None)
            if reply is not None:
                return reply

    def _attach(self) -> None:
        """Read the worker's connection on the running loop.

        Raises:
            WorkerLostError: There is no worker.
        """
        worker, loop = self.slot.worker, asyncio.get_running_loop()
        if worker is None:
            raise self.slot.loss
        if self._loop is not loop:
            self._loop = loop
            if self._timer is not None:  # of a loop that has ended
                self._timer.cancel()
                self._timer = None
            worker.connection.settimeout(0)
            loop.add_reader(worker.connection.fileno(), self._on_readable)
        if self.slot.timeout_s is not None and self._timer is None:
            self._timer = loop.call_later(self.slot.timeout_s, self._check_deadline)

    def _send(self, payload: bytes) -> None:
        self._unsent += frame(payload)
        self._on_writable()

    def _on_writable(self) -> None:
        """Send what fits; the rest when there is room."""
        worker, loop = self.slot.worker, self._loop
        if worker is None or loop is None:
            return
        connection = worker.connection
        try:
            del self._unsent[: connection.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            return  # the reader will find it gone
        if self._unsent:
            loop.add_writer(connection.fileno(), self._on_writable)
        else:
            loop.remove_writer(connection.fileno())

    def _on_readable(self) -> None:
        worker = self.slot.worker
        if worker is None:
            return
        try:
            data = worker.connection.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.lose(None)
            return
        for number, reply in self._received.feed(data):
            future = self._pending.get(number)
            if future is not None and not future.done():
                future.set_result(reply)

    def _check_deadline(self) -> None:
        """End a worker whose code has taken too long; else check again when it may have."""
        self._timer = None
        worker, timeout_s, loop = self.slot.worker, self.slot.timeout_s, self._loop
        if worker is None or timeout_s is None or loop is None or not self._pending:
            return
        fd = worker.connection.fileno()
        try:
            left = worker.check_deadline(timeout_s)
        except WorkerLostError as loss:
            self._detach(fd)
            self.lose(loss)
            return
        self._timer = loop.call_later(left, self._check_deadline)

    def lose(self, loss: WorkerLostError | None) -> None:
        """Record that the worker is gone, and fail all pending calls."""
        worker = self.slot.worker
        if worker is not None:
            self._detach(worker.connection.fileno())
            self.slot.lose(worker.lost() if loss is None else loss)
        self._received.clear()
        self._unsent.clear()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(self.slot.loss)

    def _detach(self, fd: int) -> None:
        if self._loop is not None and not self._loop.is_closed() and fd >= 0:
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)
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
            if self.slot.worker is not None:
                if not self.slot.worker.is_gone:
                    return
                self.lose(None)
            await asyncio.to_thread(self.slot.restart)

    async def close_one(self, session: int, *, is_current: bool) -> None:
        """Close one environment; with the last, end the worker."""
        try:
            if self.slot.worker is not None and is_current:
                async with asyncio.timeout(CLOSE_S):
                    await self.call(session, "close")
        except (WorkerLostError, TimeoutError):
            pass  # it is gone already, or is ended now
        finally:
            self.drop_one()

    def drop_one(self) -> bool:
        """Count one environment less; with the last, end the worker and return `True`."""
        self._open -= 1
        if not self._open:
            atexit.unregister(self.slot.end)
            self.end()
        return not self._open

    def end(self) -> None:
        """End the worker. May be called twice."""
        if self.slot.worker is not None:
            self._detach(self.slot.worker.connection.fileno())
        if self._timer is not None:
            self._timer.cancel()
        self.slot.end()
