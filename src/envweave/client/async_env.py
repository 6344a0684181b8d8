"""Async callers of sessions at a server: `make_async`, and pools of many over one connection."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, final

from envweave.client.async_connection import AsyncConnection
from envweave.client.server_info import ServerInfo
from envweave.client.session import CLOSE_S, LOSSES, RemoteSession, as_it_is, spoken
from envweave.errors import (
    ActionError,
    BusyError,
    EnvWeaveError,
    StateFailedError,
)
from envweave.lifetime import AtExit, CloseGuard
from envweave.session.episode_tracker import with_autoreset
from envweave.types import ResetResult, State, StepResult
from envweave.wire.protocol import EncodeError


@final
class SharedConnection:
    """A connection that several drivers share; the last of them ends it.

    Args:
        connection: To the server.
        stop: Called when the connection has ended: it stops a server that was started for it.
    """

    def __init__(self, connection: AsyncConnection, stop: Callable[[], None] | None = None) -> None:
        self.connection = connection
        self._stop = stop
        atexit.register(self.end)

    async def leave(self) -> None:
        """Count one driver less; with the last, hang up."""
        if self.connection.leave() and self._stop is not None:
            await asyncio.to_thread(self.end)
        elif self.connection.is_ended:
            self.end()

    def drop(self) -> bool:
        """Count one driver less that was not closed; return whether it was the last."""
        is_last = self.connection.leave()
        if is_last:
            self.end()
        return is_last

    def end(self) -> None:
        """Hang up, and stop the server if it was started for this. May be called twice."""
        atexit.unregister(self.end)
        self.connection.end()
        stop, self._stop = self._stop, None
        if stop is not None and self.connection.is_ours:
            stop()


@final
class AsyncRemoteDriver:
    """Carries an async caller's calls to one session at a server.

    The session is opened by the first call, since there need be no event loop before.
    """

    def __init__(
        self,
        line: SharedConnection,
        served: ServerInfo,
        *,
        autoreset: bool,
        timeout_s: float | None,
        wait_s: float | None = None,
    ) -> None:
        self.interface = served.interface
        self.tasks = served.tasks
        self._served = served
        self._line = line
        self._connection = line.connection
        line.connection.exchange.limit_bytes = served.max_message_bytes
        self._autoreset = autoreset
        self._sitting = RemoteSession(
            served, autoreset=autoreset, timeout_s=timeout_s, wait_s=wait_s
        )
        self._has_opened = False
        self._turn = _CallTurn()
        self._unclosed = CloseGuard(
            self,
            partial(_drop, line, self._sitting),
            f"{self.interface.name} at a server was dropped without close(). Use it in an "
            "`async with` block, or close it.",
            at_exit=AtExit.NOTHING,  # the connection, which several drivers share, is ended then
        )

    @property
    def agents(self) -> list[str]:
        """Who takes part now."""
        return self._sitting.agents

    def _alone(self, call: str) -> _CallTurn:
        if self._turn.call is not None:
            raise BusyError(
                f"{call}() while {self._turn.call}() is still under way on the same environment. "
                "Await it first, or make one environment for each task."
            )
        self._turn.call = call
        return self._turn

    async def _open(self) -> None:
        try:
            await self._make("open", {}, as_it_is)
        except EnvWeaveError as error:
            if not self._sitting.has_lost_server(self._connection):  # else `reset` tries again
                self._sitting.lose_to(error, self._connection)
            raise
        self._has_opened = True

    async def reset(self, **wanted: Any) -> ResetResult[Any]:
        """Begin an episode. See `AsyncEnv.reset`."""
        self._sitting.refuse_closed("reset")
        with self._alone("reset"):
            return await self._reset(wanted)

    async def _reset(self, wanted: dict[str, Any]) -> ResetResult[Any]:
        sitting = self._sitting
        try:
            try:
                return await self._begin(wanted)
            except LOSSES as loss:
                if not sitting.has_lost_server(self._connection):
                    raise
                sitting.replace(loss, self._connection)
            return await self._begin(wanted)
        except EncodeError:
            raise
        except LOSSES as loss:
            self._sitting.lose_to(loss, self._connection)
            if not self._has_opened:
                raise
            raise sitting.lost_reset(loss) from None

    async def _begin(self, wanted: dict[str, Any]) -> ResetResult[Any]:
        """Begin an episode in the session that is open, or in a new one."""
        if not self._sitting.is_open:
            await self._open()
        result: ResetResult[Any] = await self._make("reset", wanted, self._sitting.result)
        return result

    async def step(self, action: Any) -> StepResult[Any]:
        """Take one step. See `AsyncEnv.step`."""
        sitting = self._sitting
        sitting.refuse_closed("step")
        with self._alone("step"):
            try:
                if not self._has_opened:
                    await self._open()
                result: StepResult[Any] = await self._make("step", spoken(action), sitting.result)
            except EncodeError as error:
                raise ActionError(f"action: {error}") from None
            except LOSSES as loss:
                self._sitting.lose_to(loss, self._connection)
                if not self._has_opened:
                    raise
                return await self._lost(loss)
        return result

    async def _lost(self, loss: Exception) -> StepResult[Any]:
        result = self._sitting.lost_step(loss)
        if not self._autoreset:
            return result
        try:
            return with_autoreset(result, await self._reset({}))
        except EnvWeaveError as error:
            return with_autoreset(result, error)

    async def state(self) -> State:
        """Return the environment's state."""
        sitting = self._sitting
        sitting.refuse_closed("state")
        with self._alone("state"):
            try:
                if not self._has_opened:
                    await self._open()
                state: State = await self._make("state", {}, self._served.rebuild_state)
            except LOSSES as loss:
                self._sitting.lose_to(loss, self._connection)
                raise StateFailedError(f"{sitting.name}.state failed: {loss}") from None
        return state

    async def _make(self, method: str, params: dict[str, Any], read: Callable[[Any], Any]) -> Any:
        """Make a call, and return what `read` makes of its value."""
        sitting = self._sitting
        limit_s = sitting.open_limit_s if method == "open" else sitting.limit_s
        try:
            call = sitting.opening() if method == "open" else sitting.call(method, params)
            return read(sitting.value(await self._connection.call(call, limit_s)))
        except EncodeError:
            sitting.take_back()
            raise
        except Exception:
            raise
        except BaseException:
            sitting.interrupt(self._connection)
            raise

    async def close(self) -> None:
        """Close the session, once; with the last of a connection, hang up."""
        self._sitting.is_closed = True
        if not self._unclosed.disarm():
            return
        try:
            if self._sitting.is_open:
                if self._turn.call is not None:
                    self._sitting.abandon("it was closed", self._connection)
                else:
                    with contextlib.suppress(EnvWeaveError):
                        await self._connection.call(self._sitting.call("close", {}), CLOSE_S)
                    session = self._sitting.lose("it was closed")
                    self._connection.exchange.drop(session or "")
        finally:
            await self._line.leave()


@final
class _CallTurn:
    """Whose turn it is on one environment, until a `with` block ends.

    Attributes:
        call: The call that is under way; `None` without any.
    """

    def __init__(self) -> None:
        self.call: str | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.call = None


def _drop(line: SharedConnection, sitting: RemoteSession) -> bool:
    """Leave the connection; return whether there was a session."""
    session = sitting.lose("it was dropped")
    if session is not None:
        line.connection.exchange.abandon(session)
    line.drop()
    return session is not None
