"""A place of a server's in its own process: coroutines on its loop, plain functions in threads."""

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
from envweave.server.runtime.runners import LoopRunner, ThreadedRunner, belongs_on_loop
from envweave.server.runtime.thread_pool import (
    CallTimeoutError,
    PinnedThreadPool,
    PoolClosedError,
    ThreadAffinity,
)
from envweave.session import AsyncDriver, Session
from envweave.types import Task, Tasks
from envweave.wire.description import Description
from envweave.wire.schema import describe
from envweave.wrappers import Wrapper

logger = logging.getLogger("envweave.server")

MAX_TASKS = 10_000
"""How many tasks are returned at once."""


class MadeSession(NamedTuple):
    """An environment that has no session yet.

    Attributes:
        session: The environment, under its rules.
        number: That of its place.
        pin: Where it was made.
    """

    session: Session
    number: int
    pin: ThreadAffinity


@final
class LocalRuntime:
    """Runs sessions in this process.

    The first environment is made by `start`, which looks at it; the first session gets it.
    """

    def __init__(self, spec: EnvSpec, kwargs: Mapping[str, Any], options: ServerOptions) -> None:
        self._spec = spec
        self._options = options
        self._lanes = PinnedThreadPool(options.threads)
        self._maker = SessionMaker(spec, kwargs, self._lanes, options.max_sessions)
        self._runners: dict[int, SessionRuntime] = {}
        self._spare: MadeSession | None = None
        self._strays: set[asyncio.Task[Any]] = set()  # coroutines that could not be stopped
        self._tasks: Tasks | None = None
        self._description: Description | None = None
        self._let_go: Callable[[], None] | None = None  # of what environments share
        self._opening = 0  # how many environments are being made
        self._is_closed = False

    @property
    def is_one_object(self) -> bool:
        """Whether all sessions, one after the other, have the same environment object."""
        return self._maker.is_given

    @property
    def description(self) -> Description:
        """What is served; known once `start` has returned."""
        if self._description is None:
            raise StartupError(f"{self._spec.id!r} is not served yet: the server has not started.")
        return self._description

    @property
    def health(self) -> Health:
        """How it fares."""
        return Health(stuck=self._lanes.stuck + len(self._strays))

    def watch(self, changed: Callable[[], None]) -> None:
        """Have `changed` called whenever a call is stuck, or is not any more."""
        self._lanes.changed = changed

    async def start(self) -> None:
        """Make the first environment, and look at it.

        Raises:
            EnvWeaveError: It cannot be made.
        """
        try:
            self._spare = made = await self._make(None)
            self._tasks = made.session.tasks
            self._description = await self._in_thread(
                partial(_describe, self._spec, made.session), None
            )
            # Sessions come and go, and what they share must not be made anew for each.
            self._let_go = await self._in_thread(made.session.environment.hold, None)
        except BaseException:
            await self.close()
            raise

    async def open(self, wishes: SessionOptions) -> LoopRunner | ThreadedRunner:
        """Make an environment, and return who runs it.

        Raises:
            EnvWeaveError: It could not be made.
        """
        self._refuse_closed()
        if self._lanes.stuck > self._options.threads:
            raise CapacityError(
                f"{self._lanes.stuck} calls past their deadline could not be stopped, and still "
                "run; the server opens no more sessions. With worker processes (--workers) it can "
                "end them."
            )
        made, self._spare = self._spare, None
        if made is None:
            self._opening += 1
            try:
                made = await self._make(wishes.timeout_s)
            finally:
                self._opening -= 1
            try:
                self._refuse_closed()
            except ConnectionLostError:
                await self._close_spare(made)
                raise
        number, session, gone = made.number, made.session, self._gone
        runner: LoopRunner | ThreadedRunner
        if belongs_on_loop(session):
            self._lanes.leave(made.pin)
            runner = LoopRunner(
                self._maker, self._lanes, number, session, wishes, gone, self._strays
            )
        else:
            runner = ThreadedRunner(
                self._maker, self._lanes, number, session, made.pin, wishes, gone
            )
        self._runners[number] = runner
        return runner

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise ConnectionLostError("The server is stopping, and opens no more sessions.")

    def _gone(self, number: int) -> None:
        del self._runners[number]
        self._maker.give_place(number)

    async def _make(self, timeout_s: float | None) -> MadeSession:
        index, pin = self._maker.take_place(), ThreadAffinity()
        try:
            return MadeSession(await self._maker.make(pin, index, timeout_s), index, pin)
        except BaseException as error:
            if not isinstance(error, CallTimeoutError):
                self._lanes.leave(pin)
            self._maker.give_place(index)
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
        some: list[Any] = await self._about_tasks(lambda all_: _some(all_, split, start, count))
        return some

    async def task(self, task_id: str) -> Any:
        """Return one task.

        Raises:
            TaskError: There is no such task.
        """
        return await self._about_tasks(lambda tasks: tasks.get(task_id))

    async def _about_tasks(self, ask: Callable[[Tasks], Any]) -> Any:
        tasks = self._tasks
        if tasks is None:
            raise TaskError(f"{self._spec.id!r} lists no tasks.")
        try:
            return await self._in_thread(partial(ask, tasks), self._options.timeout_s)
        except EnvWeaveError:
            raise
        except Exception as error:
            raise TaskError(f"The tasks cannot be had: {format_error(error)}") from error

    async def _in_thread(self, call: Callable[[], Any], timeout_s: float | None) -> Any:
        pin = ThreadAffinity()
        try:
            return await self._lanes.run(pin, call, timeout_s)
        except CallTimeoutError:
            raise DeadlineError(f"It took longer than timeout_s={timeout_s:g}.") from None
        except PoolClosedError:
            raise ConnectionLostError("The server is stopping.") from None
        finally:
            self._lanes.leave(pin)

    async def close(self) -> None:
        """Close every environment, and end every thread that can be. May be called twice."""
        self._is_closed = True
        spare, self._spare = self._spare, None
        closing = [runner.close() for runner in list(self._runners.values())]
        await asyncio.gather(*closing, return_exceptions=True)
        if spare is not None:
            await self._close_spare(spare)
        if self._maker.is_given and self._description is not None:
            await self._close_given()
        ends_s = time.monotonic() + CLOSE_S
        while self._opening and time.monotonic() < ends_s:
            await asyncio.sleep(0.01)  # what is being made is closed by whoever asked for it
        await self._let_go_of_shared()
        await self._lanes.close()

    async def _let_go_of_shared(self) -> None:
        """Let go of what environments share, after the last of them."""
        let_go, self._let_go = self._let_go, None
        if let_go is None:
            return
        try:
            await self._in_thread(let_go, CLOSE_S)
        except Exception:
            logger.warning("closing what %s share failed", self._spec.id, exc_info=True)

    async def _close_spare(self, made: MadeSession) -> None:
        """Close the environment that nobody has opened a session for."""
        self._maker.give_place(made.number)
        if not self._maker.is_given:
            await self._close_session(made.session, made.pin)
        self._lanes.leave(made.pin)

    async def _close_given(self) -> None:
        """Close the one environment that exists: sessions came and went, and left it open."""
        if self._maker.is_given_stuck:
            return
        try:
            made = await self._make(CLOSE_S)
        except EnvWeaveError:
            logger.warning("closing %s failed", self._spec.id, exc_info=True)
            return
        await self._close_session(made.session, made.pin)

    async def _close_session(self, session: Session, pin: ThreadAffinity) -> None:
        try:
            if belongs_on_loop(session):
                await AsyncDriver(session, CLOSE_S).close()
            else:
                await self._lanes.run(pin, driver_of(session).close, CLOSE_S)
        except PoolClosedError:
            pass  # with the server everything ends
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
    """Return what an author's hints say of the state."""
    while isinstance(environment, Wrapper):
        environment = environment.environment
    return state_spec(environment)


def _some(tasks: Tasks, split: str, start: int, count: int) -> list[Task]:
    for name, value in (("start", start), ("count", count)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise TaskError(f"{name}={value!r} is not a whole number of 0 or more.")
    count = min(count, MAX_TASKS)
    if tasks.length(split) is None:
        # By name: whoever asks for the millionth shall not have all that come before it made.
        return [tasks.get(f"{split}-{index}") for index in range(start, start + count)]
    return list(itertools.islice(tasks.split(split), start, start + count))
