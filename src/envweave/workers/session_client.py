"""Connections to worker processes that run whole sessions, for sync and async callers."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import threading
from typing import Any, NamedTuple, Protocol, final

from envweave.errors import EnvWeaveError
from envweave.lifetime import OwnerProcess
from envweave.workers.deadlines import CodeClock
from envweave.workers.launch import CLOSE_S, WorkerLostError, WorkerProcess
from envweave.workers.main import WorkerInfo
from envweave.workers.rpc import UNREADABLE, LoopConnection, WorkerConnection, WorkerReply
from envweave.workers.session_worker import CallParams, PickledCalls, SessionStatus
from envweave.workers.shared_memory import SharedMemory

HOST = "envweave.workers.session_worker:run"


class SessionWorkerProcess(Protocol):
    """A worker that runs sessions. See `WorkerProcess`."""

    def loop_connection(self) -> LoopConnection:
        """Return the connection to it, for an event loop."""
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


class SessionResult(NamedTuple):
    """What a call returned.

    Attributes:
        value: What the driver's method returned.
        status: The status of the session.
    """

    value: Any
    status: SessionStatus


@final
class WorkerSlot:
    """A worker with some sessions, and its replacement when it is lost.

    Attributes:
        worker: The current one; `None` after it was lost.
        generation: How many have been started.
        loss: How the last one was lost.
        calls: The calls to it.
        lock: Held by a sync caller during a call: its siblings share the connection.
    """

    def __init__(self, launcher: SessionLauncher, timeout_s: float | None) -> None:
        self.worker: SessionWorkerProcess | None = None
        self.generation = 0
        self.loss = WorkerLostError("it has not started")
        self.timeout_s = timeout_s
        self._launcher = launcher
        self._encoding = PickledCalls("its reply")
        self.calls = WorkerConnection(self._encoding)
        self.lock = threading.Lock()
        self._is_ended = False
        self._owner = OwnerProcess()
        self._users = 1
        self._numbers = itertools.count(1)

    def join(self) -> int:
        """Count one more user of the worker; return the number of its session."""
        self._users += 1
        return next(self._numbers)

    def leave(self) -> None:
        """Count one user less; with the last, end the worker."""
        self._users -= 1
        if self._users == 0:
            self.end()

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
            kind, info = self._encoding.decode(worker.receive())
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

    def result(self, reply: WorkerReply) -> SessionResult | None:
        """Return what a call returned; `None` if the call must be sent again.

        Raises:
            WorkerLostError: It cannot be read, so the outcome of the call is unknown.
            Exception: What the call raised.
        """
        if reply.kind != UNREADABLE:
            return SessionResult(reply.value(), SessionStatus.read(reply.status))
        if self._encoding.by_value:
            raise WorkerLostError(f"it replied: {self._encoding.decode_error(reply.payload)}")
        self._encoding.by_value = True
        return None

    def lose(self, loss: WorkerLostError) -> None:
        """Record that the worker is gone."""
        self.calls.fail(loss)
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


@final
class AsyncWorkerConnection:
    """Carries the calls of many sessions to one worker process, on one event loop at a time."""

    def __init__(self, slot: WorkerSlot, count: int) -> None:
        self.slot = slot
        self._open = count  # how many of its environments are not closed
        self._numbers = itertools.count(count)  # of sessions that join later
        self._starting: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._timer: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None
        atexit.register(slot.end)

    @property
    def generation(self) -> int:
        """How many workers have been started."""
        return self.slot.generation

    async def call(self, session: int, method: str, *args: Any, **params: Any) -> SessionResult:
        """Make a call, and return its outcome.

        Raises:
            WorkerLostError: The worker is gone.
            Exception: What the call raised.
        """
        result: SessionResult | None = None
        while result is None:
            calls = self._attach()
            call = calls.submit(method, session, CallParams(args, **params))
            try:
                result = self.slot.result(await call.future)
            except WorkerLostError as loss:
                self.slot.lose(loss)
                raise
            except asyncio.CancelledError:
                calls.cancel(call)
                raise
        return result

    def _attach(self) -> WorkerConnection:
        """Return the connection to the worker, attached to the loop that runs.

        Raises:
            WorkerLostError: There is no worker.
        """
        slot, loop = self.slot, asyncio.get_running_loop()
        if slot.worker is None:
            raise slot.loss
        if slot.calls.connection is None:
            slot.calls.connection = slot.worker.loop_connection()
        slot.calls.connection.attach(slot.calls.receive, self._on_lost)
        if slot.timeout_s is not None:
            if self._timer is not None and self._timer[0] is not loop:  # one that has ended
                self._stop_timer()
            if self._timer is None:
                self._start_timer(loop, slot.timeout_s)
        return slot.calls

    def _start_timer(self, loop: asyncio.AbstractEventLoop, after_s: float) -> None:
        self._timer = loop, loop.call_later(after_s, self._check_deadline)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None

    def _check_deadline(self) -> None:
        """End a worker whose code has taken too long; else check again when it may have."""
        self._timer = None
        slot = self.slot
        if slot.worker is None or slot.timeout_s is None or not slot.calls.has_pending:
            return
        try:
            left_s = slot.worker.check_deadline(slot.timeout_s)
        except WorkerLostError as loss:
            self.slot.lose(loss)
        else:
            self._start_timer(asyncio.get_running_loop(), left_s)

    def _on_lost(self) -> None:
        if self.slot.worker is not None:
            self.slot.lose(self.slot.worker.lost())

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
                self._on_lost()
            await asyncio.to_thread(self.slot.restart)

    def join(self) -> int:
        """Count one more environment; return the number of its session."""
        self._open += 1
        return next(self._numbers)

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
        self._stop_timer()
        self.slot.end()
