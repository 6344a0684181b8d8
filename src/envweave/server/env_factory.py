"""Making the environments of a server: one after the other, in threads."""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol, cast, final

from envweave.errors import CapacityError, DefinitionError, EnvWeaveError, format_error
from envweave.registry import EnvSpec, MakeOptions, ReadyMade
from envweave.registry.plugins import load_path
from envweave.server.runtime.thread_pool import (
    CallTimeoutError,
    PinnedThreadPool,
    PoolClosedError,
    ThreadAffinity,
)
from envweave.session import LoopDriver, Session, SyncDriver

logger = logging.getLogger("envweave.server")

WORKSHOP = "envweave.backends.env_factory:EnvFactory"
"""What makes environments; it stands above this layer, so it is named, not imported."""

CLOSE_S = 10.0
"""How long an environment's `close` may take before nobody waits for it."""


class ServedFactory(Protocol):
    """What is needed of whoever makes environments."""

    def open_session(self, index: int) -> Session:
        """Make the environment of one place, and put it under a session."""
        ...

    def forget(self, index: int) -> None:
        """Let go of what was made for one place."""


@final
class SessionMaker:
    """Makes environments, each at a place with a number.

    A factory need not bear two callers, so one is made after the other; who waits for that does
    so on the loop, where it costs no thread.

    Attributes:
        is_given: Whether there is but one environment, which exists already.
        is_given_stuck: Whether a call on that one took too long, and still runs.
    """

    def __init__(
        self, spec: EnvSpec, kwargs: Mapping[str, Any], lanes: PinnedThreadPool, max_sessions: int
    ) -> None:
        self._spec = spec
        self._kwargs = kwargs
        self._lanes = lanes
        self._max_sessions = max_sessions
        self.is_given = isinstance(spec.factory, ReadyMade)
        self.is_given_stuck = False
        self._workshop: ServedFactory | None = None
        self._turn = asyncio.Lock()
        self._free: list[int] = []  # a heap of the places below `_next` that nobody has
        self._next = 0

    def take_place(self) -> int:
        """Return the number of a free place.

        Raises:
            CapacityError: There is but one environment, and somebody has it.
        """
        if self.is_given and (self._next > len(self._free) or self.is_given_stuck):
            why = "a call on it still runs" if self.is_given_stuck else "it has a session already"
            raise CapacityError(
                f"{self._spec.id!r} is served as one object, and {why}. Serve its class, or a "
                "function that makes one, to have more than one session."
            )
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1

    def give_place(self, index: int) -> None:
        """Free a place, and let go of its environment."""
        if self._workshop is not None:
            self._workshop.forget(index)
        heapq.heappush(self._free, index)

    async def make(self, pin: ThreadAffinity, index: int, timeout_s: float | None) -> Session:
        """Make an environment, in the thread where it will run.

        Raises:
            LateError: It took longer than `timeout_s`. What still comes of it is closed.
            EnvWeaveError: It could not be made.
        """
        async with self._turn:
            if self._workshop is None:
                self._workshop = self._new_workshop()
            elif self.is_given:
                self._workshop.forget(index)
            try:
                session = await self._lanes.run(
                    pin,
                    partial(self._open_session, self._workshop, index),
                    timeout_s,
                    partial(self._discard, pin),
                )
            except CallTimeoutError:
                self.start_anew()
                raise
            except (EnvWeaveError, PoolClosedError):
                raise
            except Exception as error:
                raise DefinitionError(
                    f"Making {self._spec.id!r} failed: {format_error(error)}"
                ) from error
            return cast("Session", session)

    def _open_session(self, workshop: ServedFactory, index: int) -> Session:
        """In a thread: make one, and take the time."""
        began = time.monotonic()
        session = workshop.open_session(index)
        self._lanes.made_in(time.monotonic() - began)
        return session

    def start_anew(self) -> None:
        """Wait for nothing that a factory which hangs may hold."""
        self._workshop = self._new_workshop()

    def _new_workshop(self) -> ServedFactory:
        made: ServedFactory = load_path(WORKSHOP)(
            self._spec, self._kwargs, MakeOptions(), num_envs=self._max_sessions
        )
        return made

    def _discard(self, pin: ThreadAffinity, session: Session | None, _: bool) -> None:  # noqa: FBT001 - a job's end
        """Close what was made too late, or for nobody."""
        if session is not None and not self.is_given:
            close_later(self._lanes, pin, driver_of(session))


def driver_of(session: Session) -> SyncDriver | LoopDriver:
    """Return who runs a session in a thread."""
    return LoopDriver(session) if session.interface.is_async else SyncDriver(session)


def close_later(
    lanes: PinnedThreadPool, pin: ThreadAffinity, driver: SyncDriver | LoopDriver
) -> None:
    """Close an environment that nobody waits for, in its own thread if that is possible."""
    try:
        closing = lanes.run(pin, driver.close, CLOSE_S)
    except PoolClosedError:
        return  # with the server everything ends
    closing.add_done_callback(partial(_closed, lanes, pin, driver.interface.name))


def _closed(
    lanes: PinnedThreadPool, pin: ThreadAffinity, name: str, closing: asyncio.Future[Any]
) -> None:
    lanes.leave(pin)
    if not closing.cancelled() and (error := closing.exception()) is not None:
        logger.warning("closing a %s that was given up failed", name, exc_info=error)
