"""A place of a server's in worker processes, which may crash without the server."""

from __future__ import annotations

import asyncio
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
    OptionError,
    StartupError,
    TaskError,
)
from envweave.registry import EnvSpec, MakeOptions, ReadyMade
from envweave.server.options import ServerOptions
from envweave.server.runtime.base import Health, SessionOptions
from envweave.server.runtime.worker_process import START_S, ServerWorkerProcess, WorkerGoneError
from envweave.server.runtime.worker_session import WorkerRunner
from envweave.types import Task
from envweave.wire.description import Description
from envweave.workers.pickling import pack_definition

logger = logging.getLogger("envweave.server")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
"""How long to wait before another worker is started, when they die at the start."""

SHORT_LIFE_S = 1.0
"""A worker that dies within this dies at the start."""


@final
class WorkerRuntime:
    """Runs sessions in worker processes, each with a `LocalPlace` of its own.

    A session goes to the worker with the fewest. A worker that dies takes only its own sessions
    with it, and is replaced. So is one with calls that cannot be stopped: it gets no more
    sessions, and ends with its last; at once, if there are more of them than `max_stuck`.
    """

    def __init__(self, spec: EnvSpec, kwargs: Mapping[str, Any], options: ServerOptions) -> None:
        if isinstance(spec.factory, ReadyMade):
            raise OptionError(
                f"workers={options.workers} cannot be honored: {spec.id!r} is one object, which "
                "no other process can have. Serve its class, or a function that makes one."
            )
        self._spec = spec
        self._options = options
        own = dataclasses.replace(options, workers=0, token=None)
        self._definition = pack_definition(spec, kwargs, MakeOptions(), own)
        self._workers: set[ServerWorkerProcess] = set()  # that have started, and are there
        self._young: dict[ServerWorkerProcess, float] = {}  # when each of these was started
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = asyncio.Condition()
        self._description: Description | None = None
        self._why: str | None = None  # no worker could be started
        self._pause_s = 0.0
        self._replaced = 0
        self._is_closed = False

    @property
    def is_one_object(self) -> bool:
        """Never: an object cannot be handed to a worker process."""
        return False

    @property
    def description(self) -> Description:
        """What is served; known once `start` has returned."""
        if self._description is None:
            raise StartupError(f"{self._spec.id!r} is not served yet: the server has not started.")
        return self._description

    @property
    def health(self) -> Health:
        """How it fares."""
        stuck = sum(worker.stuck for worker in self._workers)
        return Health(stuck, len(self._workers), self._replaced)

    async def start(self) -> None:
        """Start every worker.

        Raises:
            EnvWeaveError: One could not make an environment.
        """
        starting = [self._start_one() for _ in range(self._options.workers)]
        for came in await asyncio.gather(*starting, return_exceptions=True):
            if isinstance(came, BaseException):
                await self.close()
                raise came

    async def _start_one(self) -> None:
        try:
            worker = ServerWorkerProcess(self._changed)
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
        self._young[worker] = time.monotonic()
        self._why = None
        async with self._news:
            self._news.notify_all()

    async def open(self, wishes: SessionOptions) -> WorkerRunner:
        """Make an environment in a worker, and return who runs it.

        Raises:
            EnvWeaveError: It could not be made.
        """
        about = self.description
        several = about.possible_agents is not None
        runner = WorkerRunner(next(self._numbers), about.name, wishes, self, several=several)
        try:
            await runner.open()
        except WorkerGoneError as loss:
            # Not once more: what was made may be what ended the worker, and would end the next.
            raise EnvironmentLostError(f"Making {self._spec.id!r} failed: {loss}.") from None
        return runner

    async def choose(self) -> ServerWorkerProcess:
        """Return the worker with the fewest sessions, with one more.

        Raises:
            CapacityError: There is none; the message says why.
            ConnectionLostError: The server is stopping.
        """
        try:
            async with asyncio.timeout(START_S), self._news:
                await self._news.wait_for(lambda: self._able() or self._why or self._is_closed)
        except TimeoutError:
            self._why = f"none has started within {START_S:g} s"
        if self._is_closed:
            raise ConnectionLostError("The server is stopping, and opens no more sessions.")
        able = self._able()
        if not able:
            raise CapacityError(f"The server has no worker process: {self._why}")
        worker = min(able, key=lambda one: one.sessions)
        worker.sessions += 1
        return worker

    def _able(self) -> list[ServerWorkerProcess]:
        return [one for one in self._workers if one.gone is None and not one.is_leaving]

    def release(self, worker: ServerWorkerProcess) -> None:
        """Count a session no more."""
        worker.sessions -= 1
        self._end_if_empty(worker)

    def discard(self, worker: ServerWorkerProcess, number: int) -> None:
        """Close a session that nobody waits for, and count it no more."""
        self._in_background(self._discard(worker, number))

    async def _discard(self, worker: ServerWorkerProcess, number: int) -> None:
        try:
            await worker.close_session(number)
        except WorkerGoneError:
            pass  # and with it the session
        finally:
            self.release(worker)

    def _end_if_empty(self, worker: ServerWorkerProcess) -> None:
        if worker.is_leaving and not worker.sessions and worker.gone is None:
            self._in_background(worker.close())

    # Replacing workers

    def _changed(self, worker: ServerWorkerProcess) -> None:
        """Look after a worker that is gone, or has calls that cannot be stopped."""
        if worker not in self._workers or self._is_closed:
            self._workers.discard(worker)
        elif worker.gone is not None:
            self._workers.remove(worker)
            if not worker.is_leaving:
                logger.warning("a worker process is lost: %s", worker.gone)
                self._replace(worker)
        elif worker.stuck > self._options.max_stuck:
            worker.end(
                f"its worker process {worker.pid} was ended: {worker.stuck} calls there took "
                "longer than they may and could not be stopped"
            )
        elif worker.stuck and not worker.is_leaving:
            worker.is_leaving = True
            self._replace(worker)
            self._end_if_empty(worker)

    def _replace(self, worker: ServerWorkerProcess) -> None:
        self._replaced += 1
        lived_s = time.monotonic() - self._young.pop(worker)
        self._lengthen_pause(is_needed=lived_s < SHORT_LIFE_S)
        self._in_background(self._bring_another())

    def _lengthen_pause(self, *, is_needed: bool) -> None:
        longer_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        self._pause_s = longer_s if is_needed else 0.0

    async def _bring_another(self) -> None:
        """Start a worker, if need be again and again."""
        while not self._is_closed:
            await asyncio.sleep(self._pause_s)
            try:
                await self._start_one()
            except EnvWeaveError as error:
                logger.warning("a worker process could not be replaced: %s", error)
                self._why = str(error)
                self._lengthen_pause(is_needed=True)
                async with self._news:
                    self._news.notify_all()
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
        some = await self._about_tasks("tasks", {"split": split, "start": start, "count": count})
        return [Task(**one).public() for one in some]

    async def task(self, task_id: str) -> Any:
        """Return one task.

        Raises:
            TaskError: There is no such task.
        """
        return Task(**await self._about_tasks("task", {"task_id": task_id})).public()

    async def _about_tasks(self, method: str, params: dict[str, Any]) -> Any:
        worker = await self.choose()
        try:
            return (await worker.call(method, 0, params, self._options.timeout_s)).value()
        except WorkerGoneError as loss:
            raise TaskError(f"The tasks cannot be had: {loss}. Ask again.") from None
        finally:
            self.release(worker)

    async def close(self) -> None:
        """Close every environment, and leave no process behind. May be called twice."""
        self._is_closed = True
        for task in list(self._tasks):
            task.cancel()
        closing = [worker.close() for worker in self._workers]
        await asyncio.gather(*closing, *self._tasks, return_exceptions=True)
        async with self._news:
            self._news.notify_all()
