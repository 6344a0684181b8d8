"""Running one session on the event loop, if its environment is async."""

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
from envweave.server.dispatch import (
    CallOutcome,
    ParsedCall,
    ProcessExitAttemptError,
    fork_failed,
    is_live,
    keep_snapshot,
    perform_on_loop,
    read_call,
    refuse_early_state,
)
from envweave.server.env_factory import CLOSE_S, SessionMaker
from envweave.server.runtime.base import SessionOptions
from envweave.server.runtime.thread_pool import PinnedThreadPool
from envweave.server.runtime.worker_thread import (
    CallTimeoutError,
    PoolClosedError,
    ThreadAffinity,
)
from envweave.session import AsyncDriver, Deadline, Position, Session
from envweave.session.episodes import EpisodeTracker, with_autoreset
from envweave.session.kept_snapshots import KeptSnapshots
from envweave.session.loss_log import LOSSES_LOGGED
from envweave.session.session import SessionSnapshot
from envweave.types import EpisodeEnd, StepResult
from envweave.wire.results import encode_result

logger = logging.getLogger("envweave.server")


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
        kept: KeptSnapshots,
    ) -> None:
        self._maker = maker
        self._pool = pool
        self._index = index
        self._on_close = on_close
        self._kept = kept
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
        """Carry out a call of an environment's method; return the encoded result.

        Raises:
            EnvWeaveError: The call was refused or failed.
        """
        call = read_call(method, params)
        if self._is_closed:
            raise ClosedError(f"{method}() on {self._name}, which is closed.")
        if method == "state" and self._maker.is_shared_object:
            refuse_early_state(self._session)
        point = self._kept.get(call.token) if method == "restore" else None
        self._driver.timeout_s = timeout_s
        try:
            performed = keep_snapshot(call, await self._perform(call, point), self._kept)
        except ProcessExitAttemptError as error:
            self._session.slot.failed = True
            if method == "step":
                return await self._lost(str(error))
            if method == "state":
                raise StateFailedError(f"{self._name}.state failed: {error}") from None
            if method in ("snapshot", "restore"):
                raise fork_failed(method, self._name, error) from None
            raise EnvironmentLostError(f"{self._name}.reset() failed: {error}") from None
        if isinstance(performed.value, EnvWeaveError):
            raise performed.value
        return performed.encoded

    async def _perform(self, call: ParsedCall, point: SessionSnapshot | None = None) -> CallOutcome:
        performed = await perform_on_loop(self._driver, call, point)
        if isinstance(performed.value, StepResult):
            self._tracker.follow(performed.value)
        return performed

    async def _lost(self, cause: str) -> Any:
        """End an episode whose environment tried to end the server."""
        LOSSES_LOGGED.warn(logger, self._name, cause)
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
