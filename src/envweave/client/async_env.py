"""Sessions at a server for async callers: `make_async`, and pools over one connection."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, final

from envweave.client.async_connection import AsyncConnection
from envweave.client.server_info import ServerInfo
from envweave.client.session import CLOSE_S, CallSequence, RemoteSession
from envweave.errors import BusyError, EnvWeaveError
from envweave.lifetime import AtExit, CloseGuard
from envweave.session.kept_snapshots import KeptSnapshot
from envweave.types import ResetResult, State, StepResult


@final
class SharedConnection:
    """A connection that several drivers share; the last of them ends it.

    Args:
        connection: To the server.
        stop: Called after the connection has ended; stops a server that was started for it.
    """

    def __init__(self, connection: AsyncConnection, stop: Callable[[], None] | None = None) -> None:
        self.connection = connection
        self._stop = stop
        atexit.register(self.end)

    def join(self) -> None:
        """Add one driver."""
        self.connection.join()

    async def leave(self) -> None:
        """Remove one driver; the last one disconnects."""
        if self.connection.leave() and self._stop is not None:
            await asyncio.to_thread(self.end)
        elif self.connection.is_ended:
            self.end()

    def drop(self) -> bool:
        """Remove one driver that was not closed; return whether it was the last."""
        is_last = self.connection.leave()
        if is_last:
            self.end()
        return is_last

    def end(self) -> None:
        """Disconnect, and stop the server if it was started for this. May be called twice."""
        atexit.unregister(self.end)
        self.connection.end()
        stop, self._stop = self._stop, None
        if stop is not None and self.connection.is_ours:
            stop()


@final
class AsyncRemoteDriver:
    """Carries an async caller's calls to one session at a server.

    The session is opened by the first operation: there may be no event loop before.

    Args:
        shared: The connection to the server; the driver leaves it when it is closed.
        served: What the server serves.
        autoreset: Whether the next episode begins when one ends.
        timeout_s: Time limit for each of the environment's own calls.
        wait_s: How long to wait for a free session if the server is full.
    """

    def __init__(
        self,
        shared: SharedConnection,
        served: ServerInfo,
        *,
        autoreset: bool,
        timeout_s: float | None,
        wait_s: float | None = None,
    ) -> None:
        self.interface = served.interface
        self.tasks = served.tasks
        self._served = served
        self._shared = shared
        self._connection = shared.connection
        self._session = RemoteSession(
            shared.connection, served, autoreset=autoreset, timeout_s=timeout_s, wait_s=wait_s
        )
        self._method: str | None = None  # the operation under way
        self._unclosed = CloseGuard(
            self,
            partial(_drop, shared, self._session),
            f"{self.interface.name} at a server was dropped without close(). Use it in an "
            "`async with` block, or close it.",
            at_exit=AtExit.NOTHING,  # the connection, which several drivers share, is ended then
        )

    def sibling(self) -> AsyncRemoteDriver:
        """Return a driver for another session at the server, over the same connection."""
        self._shared.join()
        return AsyncRemoteDriver(self._shared, self._served, **self._session.options)

    @property
    def agents(self) -> list[str]:
        """The agents that take part now."""
        return self._session.agents

    async def reset(self, **params: Any) -> ResetResult[Any]:
        """Begin an episode. See `AsyncEnv.reset`."""
        self._session.refuse_closed("reset")
        result: ResetResult[Any] = await self._run("reset", self._session.reset(params))
        return result

    async def step(self, action: Any) -> StepResult[Any]:
        """Take one step. See `AsyncEnv.step`."""
        self._session.refuse_closed("step")
        result: StepResult[Any] = await self._run("step", self._session.step(action))
        return result

    async def state(self) -> State:
        """Return the environment's state."""
        self._session.refuse_closed("state")
        state: State = await self._run("state", self._session.state())
        return state

    async def snapshot(self) -> KeptSnapshot:
        """Return the running episode, which the server keeps. See `Env.snapshot`."""
        self._session.refuse_closed("snapshot")
        point: KeptSnapshot = await self._run("snapshot", self._session.snapshot())
        return point

    async def restore(self, point: KeptSnapshot) -> ResetResult[Any]:
        """Continue from a snapshot. See `Env.restore`."""
        self._session.refuse_closed("restore")
        result: ResetResult[Any] = await self._run("restore", self._session.restore(point))
        return result

    async def _run(self, method: str, calls: CallSequence[Any]) -> Any:
        """Make the calls of an operation, and return its outcome.

        Raises:
            BusyError: Another operation is under way.
            EnvWeaveError: As the operation.
        """
        if self._method is not None:
            raise BusyError(
                f"{method}() while {self._method}() is still under way on the same environment. "
                "Await it first, or make one environment for each task."
            )
        self._method = method
        try:
            call, limit_s = next(calls)
            while True:
                try:
                    reply = await self._connection.call(call, limit_s)
                except Exception as error:  # noqa: BLE001 - the session decides
                    call, limit_s = calls.throw(error)
                else:
                    call, limit_s = calls.send(reply)
        except StopIteration as end:
            return end.value
        except Exception:
            raise
        except BaseException:
            self._session.interrupt()
            raise
        finally:
            self._method = None

    async def close(self) -> None:
        """Close the session, once; the last of a connection disconnects."""
        session = self._session
        session.is_closed = True
        if not self._unclosed.disarm():
            return
        try:
            if session.is_open:
                if self._method is not None:
                    session.abandon("it was closed")
                else:
                    with contextlib.suppress(EnvWeaveError):
                        await self._connection.call(session.call("close", {}), CLOSE_S)
                    self._connection.exchange.drop(session.lose("it was closed") or "")
        finally:
            await self._shared.leave()


def _drop(shared: SharedConnection, session: RemoteSession) -> bool:
    """Release a session that was dropped; return whether it had been used."""
    session_id = session.lose("it was dropped")
    if session_id is not None:
        shared.connection.exchange.abandon(session_id)
    shared.drop()
    return session_id is not None
