"""One session whose environment is written in coroutines: they run on the server's loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast, final

from envweave.environment import Environment
from envweave.errors import (
    ClosedError,
    DeadlineError,
    EnvironmentLostError,
    EnvWeaveError,
    StateFailedError,
)
from envweave.server.lane import LanesClosedError, LateError, Pin
from envweave.server.making import CLOSE_S, Maker
from envweave.server.performing import (
    Asked,
    EndedItselfError,
    Performed,
    is_live,
    perform_on_loop,
    read_call,
    refuse_early_state,
)
from envweave.server.place import Wishes
from envweave.server.threads import Lanes
from envweave.session import AsyncDriver, Deadline, Position, Session
from envweave.transports.trail import Trail, then
from envweave.types import EpisodeEnd, StepResult
from envweave.wire.results import wired

logger = logging.getLogger("envweave.server")


def belongs_on_loop(session: Session) -> bool:
    """Whether nothing of an episode would hold up the loop: `reset` and `step` are coroutines."""
    return session.interface.async_methods >= {"reset", "step"}


@final
class LoopRunner:
    """Runs one session on the server's loop."""

    def __init__(
        self,
        maker: Maker,
        lanes: Lanes,
        index: int,
        session: Session,
        wishes: Wishes,
        gone: Callable[[int], None],
        strays: set[asyncio.Task[Any]],
    ) -> None:
        self._maker = maker
        self._lanes = lanes
        self._index = index
        self._gone = gone
        self._name = session.interface.name
        self._several = session.interface.possible_agents is not None
        self._trail = Trail(several_agents=self._several)
        self._session = session
        session.autoreset = wishes.autoreset
        if wishes.position is not None:
            session.go_on_from(wishes.position)
        self._timeout_s = wishes.timeout_s
        self._driver = AsyncDriver(session, wishes.timeout_s, strays=strays)
        renew = session.seat.renew
        if renew is not None:
            session.seat.renew = partial(self._renew, renew)
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
        asked = read_call(method, params)
        if self._is_closed:
            raise ClosedError(f"{method}() on {self._name}, which is closed.")
        if method == "state" and self._maker.is_given:
            refuse_early_state(self._session)
        self._driver.timeout_s = timeout_s
        try:
            performed = await self._perform(asked)
        except EndedItselfError as error:
            self._session.seat.is_spent = True
            if method == "step":
                return await self._lost(str(error))
            if method == "state":
                raise StateFailedError(f"{self._name}.state failed: {error}") from None
            raise EnvironmentLostError(f"{self._name}.reset() failed: {error}") from None
        if isinstance(performed.value, EnvWeaveError):
            raise performed.value
        return performed.travels

    async def _perform(self, asked: Asked) -> Performed:
        performed = await perform_on_loop(self._driver, asked)
        if isinstance(performed.value, StepResult):
            self._trail.follow(performed.value)
        return performed

    async def _lost(self, cause: str) -> Any:
        """End an episode whose environment tried to end the server."""
        logger.warning("an episode of %s ended: %s", self._name, cause)
        result = self._trail.lost(EpisodeEnd("error", "environment", cause))
        agents: list[str] | None = [] if self._several else None
        if not self._session.autoreset:
            return wired(result, agents, None)
        try:
            fresh = await self._perform(Asked("reset", {}))
        except EndedItselfError as error:
            self._session.seat.is_spent = True
            return wired(then(result, EnvironmentLostError(str(error))), agents, None)
        if isinstance(fresh.value, EnvWeaveError):
            return wired(then(result, fresh.value), agents, None)
        return wired(then(result, fresh.value), fresh.travels.agents, fresh.position)

    async def _renew(self, make: Callable[[], Environment]) -> Environment:
        """Make another environment in place of one that failed; in a thread, as the first."""
        pin, timeout_s = Pin(), self._driver.timeout_s
        try:
            made = await self._lanes.run(pin, make, timeout_s, _discard)
        except LateError:
            self._maker.start_anew()
            raise DeadlineError(
                f"it took longer than timeout_s={timeout_s:g} to make another"
            ) from None
        except LanesClosedError:
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
