"""Sessions in the server process: async environments on its loop, others in threads."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple, final

from envweave.codec import Spec
from envweave.environment import Environment
from envweave.environment.introspection import state_spec
from envweave.errors import (
    CapacityError,
    ConnectionLostError,
    DeadlineError,
    EnvWeaveError,
    StartupError,
    TaskError,
    format_error,
)
from envweave.registry import EnvSpec
from envweave.server.env_factory import CLOSE_S, SessionMaker, driver_of
from envweave.server.options import ServerOptions
from envweave.server.runtime.base import Health, SessionOptions, SessionRuntime
from envweave.server.runtime.loop_runner import LoopRunner, belongs_on_loop
from envweave.server.runtime.thread_pool import PinnedThreadPool
from envweave.server.runtime.threaded_runner import ThreadedRunner
from envweave.server.runtime.worker_thread import (
    CallTimeoutError,
    PoolClosedError,
    ThreadAffinity,
)
from envweave.session import AsyncDriver, Session
from envweave.session.kept_snapshots import KeptSnapshots
from envweave.types import Task, Tasks
from envweave.wire.description import Description, describe
from envweave.wrappers import Wrapper

logger = logging.getLogger("envweave.server")

MAX_TASKS = 10_000
"""Maximum number of tasks that are returned at once."""


class MadeSession(NamedTuple):
    """An environment that was made and is not used by a client yet.

    Attributes:
        session: The session around the environment.
        number: Its index.
        affinity: The thread it was made in.
    """

    session: Session
    number: int
    affinity: ThreadAffinity


@final
class LocalRuntime:
    """Runs sessions in this process.

    The first environment is made by `start`, which describes it; the first session gets it.
    """

    def __init__(self, spec: EnvSpec, kwargs: Mapping[str, Any], options: ServerOptions) -> None:
        self._spec = spec
        self._options = options
        self._pool = PinnedThreadPool(options.threads)
        self._maker = SessionMaker(spec, kwargs, self._pool, options.max_sessions)
        self._runners: dict[int, SessionRuntime] = {}
        self._spare: MadeSession | None = None
        self._orphans: set[asyncio.Task[Any]] = set()  # coroutines that ignored their cancellation
        self._kept = KeptSnapshots()  # of all sessions
        self._tasks: Tasks | None = None
        self._description: Description | None = None
        self._release_shared: Callable[[], None] | None = None  # releases what environments share
        self._opening = 0  # number of environments that are being made
        self._is_closed = False

    @property
    def is_one_object(self) -> bool:
        """Whether all sessions share one environment object, one after the other."""
        return self._maker.is_shared_object

    @property
    def description(self) -> Description:
        """Description of the environment; available once `start` has returned."""
        if self._description is None:
            raise StartupError(f"{self._spec.id!r} is not served yet: the server has not started.")
        return self._description

    @property
    def health(self) -> Health:
        """Current health."""
        stuck = self._pool.stuck + len(self._orphans)
        loop = self._pool.own_loop
        if loop is None:
            return Health(stuck=stuck)
        return Health(stuck=stuck, moves=loop.moves, delayed_s=loop.delayed_s)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever a call becomes stuck, or returns after that."""
        self._pool.changed = changed

    async def start(self) -> None:
        """Make the first environment, and describe it.

        Raises:
            EnvWeaveError: It cannot be made.
        """
        try:
            self._spare = made = await self._make(None)
            self._tasks = made.session.tasks
            self._description = await self._in_thread(
                partial(_describe, self._spec, made.session), None
            )
            # What sessions share must outlive each of them.
            self._release_shared = await self._in_thread(made.session.environment.hold, None)
        except BaseException:
            await self.close()
            raise

    async def open(self, options: SessionOptions) -> LoopRunner | ThreadedRunner:
        """Make an environment, and return its runner.

        Raises:
            EnvWeaveError: It could not be made.
        """
        self._refuse_closed()
        if self._pool.stuck > self._options.threads:
            raise CapacityError(
                f"{self._pool.stuck} calls past their deadline cannot be stopped and still run, so "
                "the server opens no more sessions. With worker processes (--workers) it can end "
                "such calls."
            )
        made, self._spare = self._spare, None
        if made is None:
            self._opening += 1
            try:
                made = await self._make(options.timeout_s)
            finally:
                self._opening -= 1
            try:
                self._refuse_closed()
            except ConnectionLostError:
                await self._close_spare(made)
                raise
        number, session, on_close = made.number, made.session, self._on_close
        runner: LoopRunner | ThreadedRunner
        if belongs_on_loop(session):
            self._pool.release(made.affinity)
            runner = LoopRunner(
                self._maker,
                self._pool,
                number,
                session,
                options,
                on_close,
                self._orphans,
                self._kept,
            )
        else:
            runner = ThreadedRunner(
                self._maker,
                self._pool,
                number,
                session,
                made.affinity,
                options,
                on_close,
                self._kept,
            )
        self._runners[number] = runner
        return runner

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise ConnectionLostError("The server is stopping and opens no more sessions.")

    def _on_close(self, number: int) -> None:
        del self._runners[number]
        self._maker.release_index(number)

    async def _make(self, timeout_s: float | None) -> MadeSession:
        index, affinity = self._maker.reserve_index(), ThreadAffinity()
        try:
            return MadeSession(await self._maker.make(affinity, index, timeout_s), index, affinity)
        except BaseException as error:
            if not isinstance(error, CallTimeoutError):
                self._pool.release(affinity)
            self._maker.release_index(index)
            if isinstance(error, CallTimeoutError):
                raise DeadlineError(
                    f"Making {self._spec.id!r} took longer than timeout_s={timeout_s:g}."
                ) from None
            if isinstance(error, PoolClosedError):
                raise ConnectionLostError("The server is stopping.") from None
            raise

    async def tasks(self, split: str, start: int, count: int) -> list[Any]:
        """Return some of the tasks of a split, in order.

        Raises:
            TaskError: There is no such split.
        """
        some: list[Any] = await self._query_tasks(lambda all_: _some(all_, split, start, count))
        return some

    async def task(self, task_id: str) -> Any:
        """Return one task.

        Raises:
            TaskError: There is no such task.
        """
        return await self._query_tasks(lambda tasks: tasks.get(task_id))

    async def _query_tasks(self, query: Callable[[Tasks], Any]) -> Any:
        tasks = self._tasks
        if tasks is None:
            raise TaskError(f"{self._spec.id!r} lists no tasks.")
        try:
            return await self._in_thread(partial(query, tasks), self._options.timeout_s)
        except EnvWeaveError:
            raise
        except Exception as error:
            raise TaskError(f"The tasks cannot be read: {format_error(error)}") from error

    async def _in_thread(self, call: Callable[[], Any], timeout_s: float | None) -> Any:
        affinity = ThreadAffinity()
        try:
            return await self._pool.run(affinity, call, timeout_s)
        except CallTimeoutError:
            raise DeadlineError(f"The call took longer than timeout_s={timeout_s:g}.") from None
        except PoolClosedError:
            raise ConnectionLostError("The server is stopping.") from None
        finally:
            self._pool.release(affinity)

    async def close(self) -> None:
        """Close every environment, and end every idle thread. May be called twice."""
        self._is_closed = True
        self._kept.clear()
        spare, self._spare = self._spare, None
        closing = [runner.close() for runner in list(self._runners.values())]
        await asyncio.gather(*closing, return_exceptions=True)
        if spare is not None:
            await self._close_spare(spare)
        if self._maker.is_shared_object and self._description is not None:
            await self._close_shared_object()
        ends_s = time.monotonic() + CLOSE_S
        while self._opening and time.monotonic() < ends_s:
            await asyncio.sleep(0.01)  # the task that makes an environment closes it
        await self._close_shared()
        await self._pool.close()

    async def _close_shared(self) -> None:
        """Release what environments share, after the last one was closed."""
        release_shared, self._release_shared = self._release_shared, None
        if release_shared is None:
            return
        try:
            await self._in_thread(release_shared, CLOSE_S)
        except Exception:
            logger.warning("closing what %s share failed", self._spec.id, exc_info=True)

    async def _close_spare(self, made: MadeSession) -> None:
        """Close an environment that no session uses."""
        self._maker.release_index(made.number)
        if not self._maker.is_shared_object:
            await self._close_session(made.session, made.affinity)
        self._pool.release(made.affinity)

    async def _close_shared_object(self) -> None:
        """Close the shared object, which sessions leave open."""
        if self._maker.is_shared_object_stuck:
            return
        try:
            made = await self._make(CLOSE_S)
        except EnvWeaveError:
            logger.warning("closing %s failed", self._spec.id, exc_info=True)
            return
        await self._close_session(made.session, made.affinity)

    async def _close_session(self, session: Session, affinity: ThreadAffinity) -> None:
        try:
            if belongs_on_loop(session):
                await AsyncDriver(session, CLOSE_S).close()
            else:
                await self._pool.run(affinity, driver_of(session).close, CLOSE_S)
        except PoolClosedError:
            pass  # everything ends with the server
        except Exception:
            logger.warning("closing a %s failed", session.interface.name, exc_info=True)


def _describe(spec: EnvSpec, session: Session) -> Description:
    environment = session.environment
    return describe(
        session.interface,
        session.interface.state_spec or _state_spec(environment),
        environment.tasks,
        spec.id,
        version("envweave"),
        spec.describe(),
    )


def _state_spec(environment: Environment) -> Spec:
    """Return the spec of the state from the author's type hints."""
    while isinstance(environment, Wrapper):
        environment = environment.environment
    return state_spec(environment)


def _some(tasks: Tasks, split: str, start: int, count: int) -> list[Task]:
    for name, value in (("start", start), ("count", count)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise TaskError(f"{name} must be an integer >= 0, got {value!r}.")
    count = min(count, MAX_TASKS)
    if tasks.length(split) is None:
        # By name, so that the millionth task is read without making those before it.
        return [tasks.get(f"{split}-{index}") for index in range(start, start + count)]
    return list(itertools.islice(tasks.split(split), start, start + count))
