"""One session whose environment is written in plain functions: they run in a thread."""

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
        reason: How its episode ends.
    """

    def __init__(self, message: str, reason: Literal["timeout", "error"] = "error") -> None:
        super().__init__(message)
        self.reason: Literal["timeout", "error"] = reason


@final
class ThreadedRunner:
    """Runs one session in a thread; its state is here, on the loop.

    A call past its deadline goes on in its thread, with the session's driver: these are given
    up, and the next `reset` makes another environment, which goes on where the stream of
    episodes stood.

    Attributes:
        lanes: The threads, of which it has one.
        seen: The last result, if the trail has not seen it.
    """

    def __init__(
        self,
        maker: SessionMaker,
        lanes: PinnedThreadPool,
        index: int,
        session: Session,
        pin: ThreadAffinity,
        wishes: SessionOptions,
        gone: Callable[[int], None],
    ) -> None:
        self._maker = maker
        self.lanes = lanes
        self._index = index
        self._gone = gone
        self._pin = pin
        self._wishes = wishes
        self._autoreset = wishes.autoreset
        self._name = session.interface.name
        self._several = session.interface.possible_agents is not None
        self._trail = EpisodeTracker(several_agents=self._several)
        self.seen: StepResult[Any] | None = None
        self._driver: PlainDriver | None = None
        self._loss = EnvironmentLossError("it has no environment")
        self._is_closed = False
        self._take(session)
        if wishes.position is not None:
            session.resume_from(wishes.position)
        self._position = session.position

    def _take(self, session: Session) -> None:
        session.autoreset = self._autoreset
        self._driver = driver_of(session)

    @property
    def is_live(self) -> bool:
        """Whether an episode is running."""
        return self._trail.is_live

    @property
    def position(self) -> Position:
        """Where the stream of episodes stands."""
        return self._position

    def stop_resetting(self) -> None:
        """Let no episode begin by itself any more."""
        self._autoreset = False
        if self._driver is not None:
            self._driver.session.autoreset = False

    async def call(self, method: str, params: Mapping[str, Any], timeout_s: float | None) -> Any:
        """Carry out `reset`, `check_reset`, `step` or `state`; return the result as it travels.

        Raises:
            EnvWeaveError: The call was refused, or failed.
        """
        call = read_call(method, params)
        if self._is_closed:
            raise ClosedError(f"{method}() on {self._name}, which is closed.")
        if method == "state" and self._maker.is_given and self._driver is not None:
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
            self.lanes.spread(self._pin)
            try:
                return await self._perform(call, timeout_s)
            except EnvironmentLossError:
                self._position = advance_seed(self._position, call.reset_kwargs.get("seed"))
                raise
        except EnvironmentLossError as loss:
            self._trail.is_live = False
            raise EnvironmentLostError(f"{self._name}.reset() failed: {loss}") from None

    async def _step(self, call: ParsedCall, timeout_s: float | None) -> Any:
        try:
            return _encoded_or_raise(await self._perform(call, timeout_s))
        except EnvironmentLossError as loss:
            return await self._lost_in_step(loss, timeout_s)

    async def _lost_in_step(self, loss: EnvironmentLossError, timeout_s: float | None) -> Any:
        if self._is_closed:
            raise ClosedError(f"{self._name} was closed while its step() ran.") from None
        if not self._trail.is_live:
            raise refusal(Phase.ENDED, self._name, str(loss), autoreset=False) from None
        return await self._lost(loss, timeout_s)

    # A step that is taken together with others

    @property
    def lane(self) -> WorkerThread | None:
        """The thread that its next step can be taken in, if that is certain."""
        lane = None if self._is_closed or self._driver is None else self._pin.lane
        return lane if lane is not None and lane.is_open else None

    @property
    def pin(self) -> ThreadAffinity:
        """Names its thread."""
        return self._pin

    @property
    def stepper(self) -> PlainDriver:
        """Who takes a step in its thread."""
        if self._driver is None:
            raise ClosedError(f"{self._name} was closed before its step() ran.")
        return self._driver

    def end_step(self, came: CallOutcome) -> Any:
        """Take what came of a step that was no ordinary one; return it as it travels."""
        self._note(came)
        return came.value if came.encoded is None else came.encoded

    async def lose_step(self, error: ProcessExitAttemptError | CallTimeoutError) -> Any:
        """Give up who tried to end the server, or is late; return what travels, or an error."""
        if self._driver is None:
            return ClosedError(f"{self._name} was closed while its step() ran.")
        if isinstance(error, CallTimeoutError):
            loss = self._lose("step() took longer than it may", "timeout")
        else:
            loss = self._lose_to(error, self._driver, self._pin)
        try:
            return await self._lost_in_step(loss, None)
        except EnvWeaveError as refusal:
            return refusal

    async def _lost(self, loss: EnvironmentLossError, timeout_s: float | None) -> Any:
        """End the episode; begin the next one in the same result, if it is to be so."""
        logger.warning("an episode of %s ended: %s", self._name, loss)
        if self.seen is not None:
            self._trail.follow(self.seen)
        result = self._trail.lost(EpisodeEnd(loss.reason, "environment", str(loss)))
        agents: list[str] | None = [] if self._several else None
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
        """Make another environment, if the last one was given up."""
        if self._driver is not None:
            return
        if self._maker.is_given_stuck:
            raise EnvironmentLossError(
                "an earlier call still runs, and the environment was made by whoever serves it. "
                "Serve its class, or a function that makes one, so that it can be replaced"
            )
        pin = ThreadAffinity()
        try:
            session = await self._maker.make(pin, self._index, timeout_s)
        except CallTimeoutError:
            raise EnvironmentLossError(
                f"it took longer than timeout_s={timeout_s:g} to make another", "timeout"
            ) from None
        except PoolClosedError:
            raise EnvironmentLossError("the server is stopping") from None
        except EnvWeaveError as error:
            self.lanes.leave(pin)
            raise EnvironmentLossError(f"another could not be made: {error}") from error
        self._pin = pin
        self._take(session)
        session.resume_from(self._position)

    async def _perform(self, call: ParsedCall, timeout_s: float | None) -> CallOutcome:
        driver, pin = self._driver, self._pin
        if driver is None:
            raise self._loss
        try:
            performed: CallOutcome = await self.lanes.run(
                pin,
                partial(perform, driver, call),
                timeout_s,
                partial(self.left, driver, pin),
                steps=int(call.method == "step"),
            )
        except CallTimeoutError:
            limit = f"timeout_s={timeout_s:g}" if timeout_s is not None else "it may"
            raise self._lose(f"{call.method}() took longer than {limit}", "timeout") from None
        except PoolClosedError:
            raise self._lose("the server is stopping", "error") from None
        except ProcessExitAttemptError as error:
            raise self._lose_to(error, driver, pin) from None
        self._note(performed)
        return performed

    def _lose_to(
        self, error: ProcessExitAttemptError, driver: PlainDriver, pin: ThreadAffinity
    ) -> EnvironmentLossError:
        """Give up an environment that tried to end its process."""
        if not self._maker.is_given:
            close_later(self.lanes, pin, driver)
        return self._lose(str(error), "error")

    def _lose(self, message: str, reason: Literal["timeout", "error"]) -> EnvironmentLossError:
        """Give the environment up: what still runs may still write to it."""
        self._driver, self._pin = None, ThreadAffinity()
        self._loss = EnvironmentLossError(message, reason)
        if reason == "timeout":
            self._maker.is_given_stuck = self._maker.is_given
            self._maker.start_anew()  # it may hang in the factory, too
        return self._loss

    def _note(self, performed: CallOutcome) -> None:
        if performed.position is not None:
            self._position = performed.position
        if performed.encoded is not None and performed.encoded is not performed.value:
            if self._several:
                self._trail.follow(performed.value)
            else:
                self.seen = performed.value
        self._trail.is_live = performed.is_live

    def left(
        self,
        driver: PlainDriver,
        pin: ThreadAffinity,
        performed: CallOutcome | None,
        is_late: bool,  # noqa: FBT001 - a job's end
    ) -> None:
        """Take note of a call that somebody stopped to wait for."""
        if not is_late:
            if performed is not None and driver is self._driver:
                self._note(performed)
        elif self._maker.is_given:
            self._maker.is_given_stuck = False
        else:
            close_later(self.lanes, pin, driver)

    async def close(self) -> None:
        """Close the environment and free what it held. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        driver, pin = self._driver, self._pin
        close_s = min(CLOSE_S, self._wishes.timeout_s or CLOSE_S)
        try:
            if driver is not None:
                # One that others made is theirs to close; but a call on it must be over.
                close = _nothing if self._maker.is_given else driver.close
                await self.lanes.run(pin, close, close_s, from_now=True)
        except CallTimeoutError:
            logger.warning("close() of %s took longer than %g s", self._name, close_s)
        except PoolClosedError:
            pass  # with the server everything ends
        except Exception:
            logger.warning("closing a %s failed", self._name, exc_info=True)
        finally:
            self._driver = None
            self._trail.is_live = False
            self.lanes.leave(pin)
            self._gone(self._index)


def _encoded_or_raise(performed: CallOutcome) -> Any:
    """Return what came of a call as it travels.

    Raises:
        EnvWeaveError: It was refused, or failed.
    """
    if isinstance(performed.value, EnvWeaveError):
        raise performed.value
    return performed.encoded


def _nothing() -> None:
    """Come when it is one's turn."""


def belongs_on_loop(session: Session) -> bool:
    """Whether nothing of an episode would hold up the loop: `reset` and `step` are coroutines."""
    return session.interface.async_methods >= {"reset", "step"}


@final
class LoopRunner:
    """Runs one session on the server's loop."""

    def __init__(
        self,
        maker: SessionMaker,
        lanes: PinnedThreadPool,
        index: int,
        session: Session,
        wishes: SessionOptions,
        gone: Callable[[int], None],
        strays: set[asyncio.Task[Any]],
    ) -> None:
        self._maker = maker
        self._lanes = lanes
        self._index = index
        self._gone = gone
        self._name = session.interface.name
        self._several = session.interface.possible_agents is not None
        self._trail = EpisodeTracker(several_agents=self._several)
        self._session = session
        session.autoreset = wishes.autoreset
        if wishes.position is not None:
            session.resume_from(wishes.position)
        self._timeout_s = wishes.timeout_s
        self._driver = AsyncDriver(session, wishes.timeout_s, orphans=strays)
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
        """Where the stream of episodes stands."""
        return self._session.position

    def stop_resetting(self) -> None:
        """Let no episode begin by itself any more."""
        self._session.autoreset = False

    async def call(self, method: str, params: Mapping[str, Any], timeout_s: float | None) -> Any:
        """Carry out `reset`, `check_reset`, `step` or `state`; return the result as it travels.

        Raises:
            EnvWeaveError: The call was refused, or failed.
        """
        call = read_call(method, params)
        if self._is_closed:
            raise ClosedError(f"{method}() on {self._name}, which is closed.")
        if method == "state" and self._maker.is_given:
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
            self._trail.follow(performed.value)
        return performed

    async def _lost(self, cause: str) -> Any:
        """End an episode whose environment tried to end the server."""
        logger.warning("an episode of %s ended: %s", self._name, cause)
        result = self._trail.lost(EpisodeEnd("error", "environment", cause))
        agents: list[str] | None = [] if self._several else None
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
        """Make another environment in place of one that failed; in a thread, as the first."""
        pin, timeout_s = ThreadAffinity(), self._driver.timeout_s
        try:
            made = await self._lanes.run(pin, make, timeout_s, _discard)
        except CallTimeoutError:
            self._maker.start_anew()
            raise DeadlineError(
                f"it took longer than timeout_s={timeout_s:g} to make another"
            ) from None
        except PoolClosedError:
            raise DeadlineError("the server is stopping") from None
        finally:
            self._lanes.leave(pin)
        return cast("Environment", made)

    async def close(self) -> None:
        """Close the environment and free what it held. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        close_s = min(CLOSE_S, self._timeout_s or CLOSE_S)
        try:
            if not self._maker.is_given:
                self._driver.timeout_s = close_s
                await asyncio.wait_for(self._driver.close(), 2 * close_s + 1.0)
        except TimeoutError:
            logger.warning("close() of %s took longer than %g s", self._name, close_s)
        except Exception:
            logger.warning("closing a %s failed", self._name, exc_info=True)
        finally:
            self._gone(self._index)


def _discard(environment: Environment | None, _: bool) -> None:  # noqa: FBT001 - a job's end
    """Close what was made too late, or for nobody."""
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
