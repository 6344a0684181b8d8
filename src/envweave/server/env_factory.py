"""Making the environments of a server, one at a time, in threads."""

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
from envweave.server.runtime.thread_pool import PinnedThreadPool
from envweave.server.runtime.worker_thread import (
    CallTimeoutError,
    PoolClosedError,
    ThreadAffinity,
)
from envweave.session import LoopDriver, Session, SyncDriver

logger = logging.getLogger("envweave.server")

FACTORY = "envweave.backends.env_factory:EnvFactory"
"""Import path of the environment factory, which is in a higher layer."""

CLOSE_S = 10.0
"""Time limit of an environment's `close`."""


class ServedFactory(Protocol):
    """The interface of the environment factory."""

    def open_session(self, index: int) -> Session:
        """Make the environment with this index, and return a session around it."""
        ...

    def forget(self, index: int) -> None:
        """Forget the environment with this index."""


@final
class SessionMaker:
    """Makes environments, each with an index.

    A factory need not be thread-safe, so environments are made one at a time; waiting for that
    happens on the loop and costs no thread.

    Attributes:
        is_shared_object: Whether a single existing object is served.
        is_shared_object_stuck: Whether a call on that object exceeded its deadline and still runs.
    """

    def __init__(
        self, spec: EnvSpec, kwargs: Mapping[str, Any], pool: PinnedThreadPool, max_sessions: int
    ) -> None:
        self._spec = spec
        self._kwargs = kwargs
        self._pool = pool
        self._max_sessions = max_sessions
        self.is_shared_object = isinstance(spec.factory, ReadyMade)
        self.is_shared_object_stuck = False
        self._factory: ServedFactory | None = None
        self._lock = asyncio.Lock()
        self._free: list[int] = []  # a heap of the indices below `_next` that are free
        self._next = 0

    def reserve_index(self) -> int:
        """Reserve the lowest free index.

        Raises:
            CapacityError: A single object is served, and it is in use.
        """
        if self.is_shared_object and (self._next > len(self._free) or self.is_shared_object_stuck):
            why = "a call on it still runs" if self.is_shared_object_stuck else "it is in use"
            raise CapacityError(
                f"{self._spec.id!r} is a single object, and {why}. Serve its class, or a function "
                "that makes one, to have several sessions."
            )
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1

    def release_index(self, index: int) -> None:
        """Release an index, and forget its environment."""
        if self._factory is not None:
            self._factory.forget(index)
        heapq.heappush(self._free, index)

    async def make(self, affinity: ThreadAffinity, index: int, timeout_s: float | None) -> Session:
        """Make an environment, in the thread where it will run.

        Raises:
            CallTimeoutError: It took longer than `timeout_s`. If it is made later, it is closed.
            EnvWeaveError: It could not be made.
        """
        async with self._lock:
            if self._factory is None:
                self._factory = self._new_factory()
            elif self.is_shared_object:
                self._factory.forget(index)
            try:
                session = await self._pool.run(
                    affinity,
                    partial(self._open_session, self._factory, index),
                    timeout_s,
                    partial(self._discard, affinity),
                )
            except CallTimeoutError:
                self.replace_factory()
                raise
            except (EnvWeaveError, PoolClosedError):
                raise
            except Exception as error:
                raise DefinitionError(
                    f"Making {self._spec.id!r} failed: {format_error(error)}"
                ) from error
            return cast("Session", session)

    def _open_session(self, factory: ServedFactory, index: int) -> Session:
        """Make an environment and measure the time. Runs in a thread."""
        began = time.monotonic()
        session = factory.open_session(index)
        self._pool.record_make_time(time.monotonic() - began)
        return session

    def replace_factory(self) -> None:
        """Use a new factory, because a call may hang in the old one."""
        self._factory = self._new_factory()

    def _new_factory(self) -> ServedFactory:
        made: ServedFactory = load_path(FACTORY)(
            self._spec, self._kwargs, MakeOptions(), num_envs=self._max_sessions
        )
        return made

    def _discard(self, affinity: ThreadAffinity, session: Session | None, _: bool) -> None:  # noqa: FBT001 - a job's end
        """Close an environment that was made too late or is no longer needed."""
        if session is not None and not self.is_shared_object:
            close_later(self._pool, affinity, driver_of(session))


def driver_of(session: Session) -> SyncDriver | LoopDriver:
    """Return the driver that runs a session in a thread."""
    return LoopDriver(session) if session.interface.is_async else SyncDriver(session)


def close_later(
    pool: PinnedThreadPool, affinity: ThreadAffinity, driver: SyncDriver | LoopDriver
) -> None:
    """Close an abandoned environment in the background, in its own thread if possible."""
    try:
        closing = pool.run(affinity, driver.close, CLOSE_S)
    except PoolClosedError:
        return  # everything ends with the server
    closing.add_done_callback(partial(_closed, pool, affinity, driver.interface.name))


def _closed(
    pool: PinnedThreadPool, affinity: ThreadAffinity, name: str, closing: asyncio.Future[Any]
) -> None:
    pool.release(affinity)
    if not closing.cancelled() and (error := closing.exception()) is not None:
        logger.warning("closing an abandoned %s failed", name, exc_info=error)
