"""A server's runtime in worker processes, which may crash without the server."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import time
from collections.abc import Coroutine, Mapping
from typing import Any, final

from envweave.errors import (
    CapacityError,
    ConnectionLostError,
    EnvironmentLostError,
    EnvWeaveError,
    ForkError,
    OptionError,
    StartupError,
    TaskError,
)
from envweave.registry import EnvSpec, MakeOptions, ReadyMade
from envweave.server.options import ServerOptions
from envweave.server.runtime.base import Health, SessionOptions
from envweave.server.runtime.worker_connection import START_S, ServerWorker
from envweave.server.runtime.worker_session import WorkerRunner
from envweave.types import Task
from envweave.wire.description import Description
from envweave.workers.launch import WorkerLostError
from envweave.workers.pickling import pack_definition

logger = logging.getLogger("envweave.server")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
"""How long to wait before another worker is started if they die soon after their start."""

SHORT_LIFE_S = 1.0
"""A worker that lived no longer died soon after its start."""


@final
class WorkerRuntime:
    """Runs sessions in worker processes, each with a `LocalRuntime` of its own.

    A session goes to the worker with the fewest. A worker that dies takes only its own sessions
    with it, and is replaced. So is one with calls that cannot be stopped: it gets no more
    sessions, and ends with its last one; at once, if more than `max_stuck` calls are stuck.
    """

    def __init__(self, spec: EnvSpec, kwargs: Mapping[str, Any], options: ServerOptions) -> None:
        if isinstance(spec.factory, ReadyMade):
            raise OptionError(
                f"workers={options.workers} needs environments that a worker process can make, but "
                f"{spec.id!r} is one object. Serve its class, or a function that makes one."
            )
        self._spec = spec
        self._options = options
        worker_options = dataclasses.replace(options, workers=0, token=None)
        self._definition = pack_definition(spec, kwargs, MakeOptions(), worker_options)
        self._workers: set[ServerWorker] = set()  # that are ready
        self._started_s: dict[ServerWorker, float] = {}  # when each of these became ready
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._condition = asyncio.Condition()
        self._description: Description | None = None
        self._start_failure: str | None = None  # why no worker could be started
        self._pause_s = 0.0
        self._replaced = 0
        self._is_closed = False

    @property
    def is_one_object(self) -> bool:
        """Never: an object cannot be sent to a worker process."""
        return False

    @property
    def description(self) -> Description:
        """What is served; known once `start` has returned."""
        if self._description is None:
            raise StartupError(f"{self._spec.id!r} is not served yet: the server has not started.")
        return self._description

    @property
    def health(self) -> Health:
        """The runtime's health."""
        stuck = sum(worker.stuck for worker in self._workers)
        return Health(stuck, len(self._workers), self._replaced)

    async def start(self) -> None:
        """Start every worker.

        Raises:
            EnvWeaveError: One could not make an environment.
        """
        starting = [self._start_one() for _ in range(self._options.workers)]
        for outcome in await asyncio.gather(*starting, return_exceptions=True):
            if isinstance(outcome, BaseException):
                await self.close()
                raise outcome

    async def _start_one(self) -> None:
        try:
            worker = ServerWorker(self._on_change)
        except OSError as error:  # no more processes, or descriptors, or memory
            raise StartupError(f"A worker process could not start: {error}.") from error
        try:
            self._description = await worker.start(self._definition)
            if self._is_closed:
                raise ConnectionLostError("The server is stopping.")
        except BaseException:
            worker.end("it could not start")
            await worker.is_gone.wait()
            raise
        self._workers.add(worker)
        self._started_s[worker] = time.monotonic()
        self._start_failure = None
        async with self._condition:
            self._condition.notify_all()

    async def open(self, options: SessionOptions) -> WorkerRunner:
        """Make an environment in a worker, and return its runner.

        Raises:
            EnvWeaveError: It could not be made.
        """
        about = self.description
        several = about.possible_agents is not None
        runner = WorkerRunner(next(self._numbers), about.name, options, self, several=several)
        beside = None
        if options.snapshot is not None:
            with contextlib.suppress(ForkError):  # which `restore` raises
                beside = self.keeper(options.snapshot)
        try:
            await runner.open(beside)
        except WorkerLostError as loss:
            # No second attempt: making it may be what ended the worker, and would end the next one.
            raise EnvironmentLostError(f"Making {self._spec.id!r} failed: {loss}.") from None
        return runner

    async def choose(self) -> ServerWorker:
        """Return the worker with the fewest sessions, and count one more there.

        Raises:
            CapacityError: There is no worker; the message says why.
            ConnectionLostError: The server is stopping.
        """
        try:
            async with asyncio.timeout(START_S), self._condition:
                await self._condition.wait_for(
                    lambda: self._available() or self._start_failure or self._is_closed
                )
        except TimeoutError:
            self._start_failure = f"none started within {START_S:g} s"
        if self._is_closed:
            raise ConnectionLostError("The server is stopping and opens no more sessions.")
        available = self._available()
        if not available:
            raise CapacityError(f"The server has no worker process: {self._start_failure}")
        worker = min(available, key=lambda worker: worker.sessions)
        worker.sessions += 1
        return worker

    def keeper(self, token: str) -> ServerWorker:
        """Return the worker process that keeps a snapshot.

        Raises:
            ForkError: It is gone, or there never was one.
        """
        for worker in self._available():
            if worker.local_token(token) is not None:
                return worker
        raise ForkError(
            "No worker process of the server keeps the snapshot: it was ended, or the snapshot is "
            "of another server."
        )

    def _available(self) -> list[ServerWorker]:
        return [
            worker for worker in self._workers if worker.gone is None and not worker.is_draining
        ]

    def release(self, worker: ServerWorker) -> None:
        """Count a session of a worker no longer."""
        worker.sessions -= 1
        self._end_if_empty(worker)

    def discard(self, worker: ServerWorker, number: int) -> None:
        """Close an abandoned session in the background, and count it no longer."""
        self._in_background(self._discard(worker, number))

    async def _discard(self, worker: ServerWorker, number: int) -> None:
        try:
            await worker.close_session(number)
        except WorkerLostError:
            pass  # so the session is closed
        finally:
            self.release(worker)

    def _end_if_empty(self, worker: ServerWorker) -> None:
        if worker.is_draining and not worker.sessions and worker.gone is None:
            self._in_background(worker.close())

    # Replacing workers

    def _on_change(self, worker: ServerWorker) -> None:
        """Replace a worker that is gone, or has calls that cannot be stopped."""
        if worker not in self._workers or self._is_closed:
            self._workers.discard(worker)
        elif worker.gone is not None:
            self._workers.remove(worker)
            if not worker.is_draining:
                logger.warning("a worker process is lost: %s", worker.gone)
                self._replace(worker)
        elif worker.stuck > self._options.max_stuck:
            worker.end(
                f"its worker process {worker.pid} was ended: {worker.stuck} calls there exceeded "
                "their timeout and could not be stopped"
            )
        elif worker.stuck and not worker.is_draining:
            worker.is_draining = True
            self._replace(worker)
            self._end_if_empty(worker)

    def _replace(self, worker: ServerWorker) -> None:
        self._replaced += 1
        lived_s = time.monotonic() - self._started_s.pop(worker)
        self._lengthen_pause(is_needed=lived_s < SHORT_LIFE_S)
        self._in_background(self._start_another())

    def _lengthen_pause(self, *, is_needed: bool) -> None:
        longer_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        self._pause_s = longer_s if is_needed else 0.0

    async def _start_another(self) -> None:
        """Start a worker; retry until one has started."""
        while not self._is_closed:
            await asyncio.sleep(self._pause_s)
            try:
                await self._start_one()
            except EnvWeaveError as error:
                logger.warning("a worker process could not be replaced: %s", error)
                self._start_failure = str(error)
                self._lengthen_pause(is_needed=True)
                async with self._condition:
                    self._condition.notify_all()
            else:
                return

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Tasks

    async def tasks(self, split: str, start: int, count: int) -> list[Any]:
        """Return some of the tasks of a split, in order.

        Raises:
            TaskError: There is no such split.
        """
        tasks = await self._call_tasks("tasks", {"split": split, "start": start, "count": count})
        return [Task(**task).public() for task in tasks]

    async def task(self, task_id: str) -> Any:
        """Return one task.

        Raises:
            TaskError: There is no such task.
        """
        return Task(**await self._call_tasks("task", {"task_id": task_id})).public()

    async def _call_tasks(self, method: str, params: dict[str, Any]) -> Any:
        worker = await self.choose()
        try:
            return (await worker.call(method, 0, params, self._options.timeout_s)).value()
        except WorkerLostError as loss:
            raise TaskError(f"The tasks cannot be read: {loss}. Try again.") from None
        finally:
            self.release(worker)

    async def close(self) -> None:
        """Close every environment, and leave no process behind. May be called twice."""
        self._is_closed = True
        for task in list(self._tasks):
            task.cancel()
        closing = [worker.close() for worker in self._workers]
        await asyncio.gather(*closing, *self._tasks, return_exceptions=True)
        async with self._condition:
            self._condition.notify_all()
