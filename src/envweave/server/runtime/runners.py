"""Running one session: in a thread if its environment is synchronous, else on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, cast, final

from envweave.environment import Environment
from envweave.errors import (
    ClosedError,
    DeadlineError,
    EnvironmentLostError,
    EnvWeaveError,
    StateFailedError,
)
from envweave.server.dispatch import (
    CallOutcome,
    ParsedCall,
    PlainDriver,
    ProcessExitAttemptError,
    is_live,
    perform,
    perform_on_loop,
    read_call,
    refuse_early_state,
)
from envweave.server.env_factory import CLOSE_S, SessionMaker, close_later, driver_of
from envweave.server.runtime.base import SessionOptions
from envweave.server.runtime.thread_pool import (
    CallTimeoutError,
    PinnedThreadPool,
    PoolClosedError,
    ThreadAffinity,
    WorkerThread,
)
from envweave.session import AsyncDriver, Deadline, Phase, Position, Session
from envweave.session.episode_tracker import EpisodeTracker, advance_seed, with_autoreset
from envweave.session.session import refusal
from envweave.types import EpisodeEnd, StepResult
from envweave.wire.results import encode_result

logger = logging.getLogger("envweave.server")


class EnvironmentLossError(Exception):
    """A session has lost its environment. Never leaves this module.

    Attributes:
        reason: The reason with which its episode ends.
    """

    def __init__(self, message: str, reason: Literal["timeout", "error"] = "error") -> None:
        super().__init__(message)
        self.reason: Literal["timeout", "error"] = reason


@final
class ThreadedRunner:
    """Runs one session in a thread; its state is kept here, on the loop.

    A call past its deadline continues in its thread, with the session's driver. Both are abandoned,
    and the next `reset` makes another environment, which continues the stream of episodes.

    Attributes:
        pool: The thread pool.
        last_result: The last result, if the episode tracker has not processed it yet.
    """

    def __init__(
        self,
        maker: SessionMaker,
        pool: PinnedThreadPool,
        index: int,
        session: Session,
        affinity: ThreadAffinity,
        options: SessionOptions,
        on_close: Callable[[int], None],
    ) -> None:
        self._maker = maker
        self.pool = pool
        self._index = index
        self._on_close = on_close
        self._affinity = affinity
        self._session_options = options
        self._autoreset = options.autoreset
        self._name = session.interface.name
        self._multi_agent = session.interface.possible_agents is not None
        self._tracker = EpisodeTracker(several_agents=self._multi_agent)
        self.last_result: StepResult[Any] | None = None
        self._driver: PlainDriver | None = None
        self._loss = EnvironmentLossError("it has no environment")
        self._is_closed = False
        self._adopt(session)
        if options.position is not None:
            session.resume_from(options.position)
        self._position = session.position

    def _adopt(self, session: Session) -> None:
        session.autoreset = self._autoreset
        self._driver = driver_of(session)

    @property
    def is_live(self) -> bool:
        """Whether an episode is running."""
        return self._tracker.is_live

    @property
    def position(self) -> Position:
        """Position in the stream of episodes."""
        return self._position

    def stop_resetting(self) -> None:
        """Turn autoreset off: no further episode begins by itself."""
        self._autoreset = False
        if self._driver is not None:
            self._driver.session.autoreset = False

    async def call(self, method: str, params: Mapping[str, Any], timeout_s: float | None) -> Any:
        """Carry out `reset`, `check_reset`, `step` or `state`; return the encoded result.

        Raises:
            EnvWeaveError: The call was refused or failed.
        """
        call = read_call(method, params)
        if self._is_closed:
            raise ClosedError(f"{method}() on {self._name}, which is closed.")
        if method == "state" and self._maker.is_shared_object and self._driver is not None:
            refuse_early_state(self._driver.session)
        if method == "step":
            return await self._step(call, timeout_s)
        if method == "reset":
            return _encoded_or_raise(await self._reset(call, timeout_s))
        try:
            if method == "check_reset":
                await self._ready(timeout_s)
            return _encoded_or_raise(await self._perform(call, timeout_s))
        except EnvironmentLossError as loss:
            if method == "state":
                raise StateFailedError(f"{self._name}.state failed: {loss}") from None
            raise EnvironmentLostError(f"{self._name} cannot be reset: {loss}") from None

    async def _reset(self, call: ParsedCall, timeout_s: float | None) -> CallOutcome:
        try:
            await self._ready(timeout_s)
            self.pool.spread(self._affinity)
            try:
                return await self._perform(call, timeout_s)
            except EnvironmentLossError:
                self._position = advance_seed(self._position, call.reset_kwargs.get("seed"))
                raise
        except EnvironmentLossError as loss:
            self._tracker.is_live = False
            raise EnvironmentLostError(f"{self._name}.reset() failed: {loss}") from None

    async def _step(self, call: ParsedCall, timeout_s: float | None) -> Any:
        try:
            return _encoded_or_raise(await self._perform(call, timeout_s))
        except EnvironmentLossError as loss:
            return await self._lost_in_step(loss, timeout_s)

    async def _lost_in_step(self, loss: EnvironmentLossError, timeout_s: float | None) -> Any:
        if self._is_closed:
            raise ClosedError(f"{self._name} was closed while its step() ran.") from None
        if not self._tracker.is_live:
            raise refusal(Phase.ENDED, self._name, str(loss), autoreset=False) from None
        return await self._lost(loss, timeout_s)

    # Steps that are taken in a batch

    @property
    def thread(self) -> WorkerThread | None:
        """The thread of its next step, if that is known."""
        thread = None if self._is_closed or self._driver is None else self._affinity.thread
        return thread if thread is not None and thread.is_open else None

    @property
    def affinity(self) -> ThreadAffinity:
        """Its affinity to a thread."""
        return self._affinity

    @property
    def driver(self) -> PlainDriver:
        """The driver that takes a step in its thread."""
        if self._driver is None:
            raise ClosedError(f"{self._name} was closed before its step() ran.")
        return self._driver

    def end_step(self, outcome: CallOutcome) -> Any:
        """Record the outcome of a step that was not ordinary; return it encoded, or its error."""
        self._record(outcome)
        return outcome.value if outcome.encoded is None else outcome.encoded

    async def lose_step(self, error: ProcessExitAttemptError | CallTimeoutError) -> Any:
        """Abandon an environment that tried to exit or is late; return the result, or an error."""
        if self._driver is None:
            return ClosedError(f"{self._name} was closed while its step() ran.")
        if isinstance(error, CallTimeoutError):
            loss = self._lose("step() exceeded its deadline", "timeout")
        else:
            loss = self._lose_to(error, self._driver, self._affinity)
        try:
            return await self._lost_in_step(loss, None)
        except EnvWeaveError as refusal:
            return refusal

    async def _lost(self, loss: EnvironmentLossError, timeout_s: float | None) -> Any:
        """End the episode; with autoreset, begin the next one in the same result."""
        logger.warning("an episode of %s ended: %s", self._name, loss)
        if self.last_result is not None:
            self._tracker.follow(self.last_result)
        result = self._tracker.lost(EpisodeEnd(loss.reason, "environment", str(loss)))
        agents: list[str] | None = [] if self._multi_agent else None
        if not self._autoreset or self._is_closed:
            return encode_result(result, agents, None)
        try:
            fresh = await self._reset(ParsedCall("reset", {}), timeout_s)
        except EnvWeaveError as error:
            return encode_result(with_autoreset(result, error), agents, None)
        if isinstance(fresh.value, EnvWeaveError):
            return encode_result(with_autoreset(result, fresh.value), agents, None)
        return encode_result(
            with_autoreset(result, fresh.value), fresh.encoded.agents, fresh.position
        )

    # The environment

    async def _ready(self, timeout_s: float | None) -> None:
        """Make another environment if the last one was abandoned."""
        if self._driver is not None:
            return
        if self._maker.is_shared_object_stuck:
            raise EnvironmentLossError(
                "an earlier call still runs, and the server was given a single object. Serve its "
                "class, or a function that makes one, so that it can be replaced"
            )
        affinity = ThreadAffinity()
        try:
            session = await self._maker.make(affinity, self._index, timeout_s)
        except CallTimeoutError:
            raise EnvironmentLossError(
                f"making another took longer than timeout_s={timeout_s:g}", "timeout"
            ) from None
        except PoolClosedError:
            raise EnvironmentLossError("the server is stopping") from None
        except EnvWeaveError as error:
            self.pool.release(affinity)
            raise EnvironmentLossError(f"making another failed: {error}") from error
        self._affinity = affinity
        self._adopt(session)
        session.resume_from(self._position)

    async def _perform(self, call: ParsedCall, timeout_s: float | None) -> CallOutcome:
        driver, affinity = self._driver, self._affinity
        if driver is None:
            raise self._loss
        try:
            performed: CallOutcome = await self.pool.run(
                affinity,
                partial(perform, driver, call),
                timeout_s,
                partial(self.on_abandoned, driver, affinity),
                steps=int(call.method == "step"),
            )
        except CallTimeoutError:
            limit = f"timeout_s={timeout_s:g}" if timeout_s is not None else "its deadline"
            raise self._lose(f"{call.method}() took longer than {limit}", "timeout") from None
        except PoolClosedError:
            raise self._lose("the server is stopping", "error") from None
        except ProcessExitAttemptError as error:
            raise self._lose_to(error, driver, affinity) from None
        self._record(performed)
        return performed

    def _lose_to(
        self, error: ProcessExitAttemptError, driver: PlainDriver, affinity: ThreadAffinity
    ) -> EnvironmentLossError:
        """Abandon an environment that tried to end its process."""
        if not self._maker.is_shared_object:
            close_later(self.pool, affinity, driver)
        return self._lose(str(error), "error")

    def _lose(self, message: str, reason: Literal["timeout", "error"]) -> EnvironmentLossError:
        """Abandon the environment: a call that still runs may write to it."""
        self._driver, self._affinity = None, ThreadAffinity()
        self._loss = EnvironmentLossError(message, reason)
        if reason == "timeout":
            self._maker.is_shared_object_stuck = self._maker.is_shared_object
            self._maker.replace_factory()  # the call may hang in the factory too
        return self._loss

    def _record(self, performed: CallOutcome) -> None:
        if performed.position is not None:
            self._position = performed.position
        if performed.encoded is not None and performed.encoded is not performed.value:
            if self._multi_agent:
                self._tracker.follow(performed.value)
            else:
                self.last_result = performed.value
        self._tracker.is_live = performed.is_live

    def on_abandoned(
        self,
        driver: PlainDriver,
        affinity: ThreadAffinity,
        performed: CallOutcome | None,
        is_late: bool,  # noqa: FBT001 - a job's end
    ) -> None:
        """Handle the end of a call that no task waits for any more."""
        if not is_late:
            if performed is not None and driver is self._driver:
                self._record(performed)
        elif self._maker.is_shared_object:
            self._maker.is_shared_object_stuck = False
        else:
            close_later(self.pool, affinity, driver)

    async def close(self) -> None:
        """Close the environment and release its resources. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        driver, affinity = self._driver, self._affinity
        close_s = min(CLOSE_S, self._session_options.timeout_s or CLOSE_S)
        try:
            if driver is not None:
                # A shared object stays open, but a call on it must have returned.
                close = _noop if self._maker.is_shared_object else driver.close
                await self.pool.run(affinity, close, close_s, from_now=True)
        except CallTimeoutError:
            logger.warning("close() of %s took longer than %g s", self._name, close_s)
        except PoolClosedError:
            pass  # everything ends with the server
        except Exception:
            logger.warning("closing a %s failed", self._name, exc_info=True)
        finally:
            self._driver = None
            self._tracker.is_live = False
            self.pool.release(affinity)
            self._on_close(self._index)


def _encoded_or_raise(performed: CallOutcome) -> Any:
    """Return the encoded value of a call.

    Raises:
        EnvWeaveError: The call was refused or failed.
    """
    if isinstance(performed.value, EnvWeaveError):
        raise performed.value
    return performed.encoded


def _noop() -> None:
    """Queued to wait for earlier calls in the thread."""


def belongs_on_loop(session: Session) -> bool:
    """Whether an episode never blocks the loop: `reset` and `step` are coroutines."""
    return session.interface.async_methods >= {"reset", "step"}


@final
class LoopRunner:
    """Runs one session on the server's event loop."""

    def __init__(
        self,
        maker: SessionMaker,
        pool: PinnedThreadPool,
        index: int,
        session: Session,
        options: SessionOptions,
        on_close: Callable[[int], None],
        orphans: set[asyncio.Task[Any]],
    ) -> None:
        self._maker = maker
        self._pool = pool
        self._index = index
        self._on_close = on_close
        self._name = session.interface.name
        self._multi_agent = session.interface.possible_agents is not None
        self._tracker = EpisodeTracker(several_agents=self._multi_agent)
        self._session = session
        session.autoreset = options.autoreset
        if options.position is not None:
            session.resume_from(options.position)
        self._timeout_s = options.timeout_s
        self._driver = AsyncDriver(session, options.timeout_s, orphans=orphans)
        renew = session.slot.factory
        if renew is not None:
            session.slot.factory = partial(self._renew, renew)
        self._is_closed = False

    @property
    def is_live(self) -> bool:
        """Whether an episode is running."""
        return is_live(self._session)

    @property
    def position(self) -> Position:
        """Position in the stream of episodes."""
        return self._session.position

    def stop_resetting(self) -> None:
        """Turn autoreset off: no further episode begins by itself."""
        self._session.autoreset = False

    async def call(self, method: str, params: Mapping[str, Any], timeout_s: float | None) -> Any:
        """Carry out `reset`, `check_reset`, `step` or `state`; return the encoded result.

        Raises:
            EnvWeaveError: The call was refused or failed.
        """
        call = read_call(method, params)
        if self._is_closed:
            raise ClosedError(f"{method}() on {self._name}, which is closed.")
        if method == "state" and self._maker.is_shared_object:
            refuse_early_state(self._session)
        self._driver.timeout_s = timeout_s
        try:
            performed = await self._perform(call)
        except ProcessExitAttemptError as error:
            self._session.slot.failed = True
            if method == "step":
                return await self._lost(str(error))
            if method == "state":
                raise StateFailedError(f"{self._name}.state failed: {error}") from None
            raise EnvironmentLostError(f"{self._name}.reset() failed: {error}") from None
        if isinstance(performed.value, EnvWeaveError):
            raise performed.value
        return performed.encoded

    async def _perform(self, call: ParsedCall) -> CallOutcome:
        performed = await perform_on_loop(self._driver, call)
        if isinstance(performed.value, StepResult):
            self._tracker.follow(performed.value)
        return performed

    async def _lost(self, cause: str) -> Any:
        """End an episode whose environment tried to end the server."""
        logger.warning("an episode of %s ended: %s", self._name, cause)
        result = self._tracker.lost(EpisodeEnd("error", "environment", cause))
        agents: list[str] | None = [] if self._multi_agent else None
        if not self._session.autoreset:
            return encode_result(result, agents, None)
        try:
            fresh = await self._perform(ParsedCall("reset", {}))
        except ProcessExitAttemptError as error:
            self._session.slot.failed = True
            return encode_result(
                with_autoreset(result, EnvironmentLostError(str(error))), agents, None
            )
        if isinstance(fresh.value, EnvWeaveError):
            return encode_result(with_autoreset(result, fresh.value), agents, None)
        return encode_result(
            with_autoreset(result, fresh.value), fresh.encoded.agents, fresh.position
        )

    async def _renew(self, make: Callable[[], Environment]) -> Environment:
        """Replace a failed environment; it is made in a thread, like the first one."""
        affinity, timeout_s = ThreadAffinity(), self._driver.timeout_s
        try:
            made = await self._pool.run(affinity, make, timeout_s, _discard)
        except CallTimeoutError:
            self._maker.replace_factory()
            raise DeadlineError(
                f"making another took longer than timeout_s={timeout_s:g}"
            ) from None
        except PoolClosedError:
            raise DeadlineError("the server is stopping") from None
        finally:
            self._pool.release(affinity)
        return cast("Environment", made)

    async def close(self) -> None:
        """Close the environment and release its resources. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        close_s = min(CLOSE_S, self._timeout_s or CLOSE_S)
        try:
            if not self._maker.is_shared_object:
                self._driver.timeout_s = close_s
                await asyncio.wait_for(self._driver.close(), 2 * close_s + 1.0)
        except TimeoutError:
            logger.warning("close() of %s took longer than %g s", self._name, close_s)
        except Exception:
            logger.warning("closing a %s failed", self._name, exc_info=True)
        finally:
            self._on_close(self._index)


def _discard(environment: Environment | None, _: bool) -> None:  # noqa: FBT001 - a job's end
    """Close an environment that was made too late or is no longer needed."""
    if environment is None:
        return
    closing = environment.close()
    if asyncio.iscoroutine(closing):
        task = asyncio.ensure_future(Deadline(CLOSE_S).run("close", lambda: closing))
        _CLOSING.add(task)
        task.add_done_callback(_closed)


_CLOSING: set[asyncio.Future[Any]] = set()


def _closed(task: asyncio.Future[Any]) -> None:
    _CLOSING.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("closing an unused environment failed", exc_info=error)
