"""The sessions of a server: who has a place, who waits for one, and who has to go.

A session is found by its id, whichever connection a call comes by. One whose connection is lost
waits for its caller, who needs no more than to call again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

from envweave.errors import (
    CallOrderError,
    CapacityError,
    ClosedError,
    ConnectionLostError,
    EnvWeaveError,
    OptionError,
    SessionGoneError,
)
from envweave.registry.spec import read_wait_s
from envweave.server.options import ServerOptions
from envweave.server.runtime.base import Runtime
from envweave.server.session import ServedSession, read_seconds, read_wishes
from envweave.wire.faults import fault_of
from envweave.wire.messages import Call, Reply, WireFault

logger = logging.getLogger("envweave.server")

MAX_ID = 200
"""How many characters a session's id may have."""

GRACE_S = 0.5
"""How long a full server waits before it says so: the session of a caller that has just hung up
takes a moment to be closed, and the next caller should not be faster than that."""

LEAVING_S = 5.0
"""How long it waits while it is closing a session."""

CLOSE_S = 15.0
"""How long a server that stops waits for sessions that are being closed."""

_LOOKS = 4  # how often a time limit is looked at before it is over


class SessionWatcher(Protocol):
    """Whom a server tells what it does."""

    def called(self, method: str, code: str, seconds: float, count: int = 1) -> None:
        """So many calls came to their end; `code` is `"ok"`, or that of their fault."""

    def opened(self) -> None:
        """A session was opened."""

    def closed(self, reason: str) -> None:
        """A session was closed: `closed`, `idle`, `abandoned`, `drained` or `stopped`."""


@final
class SessionTable:
    """Every session of a server.

    Attributes:
        is_draining: Whether no session and no episode may begin any more.
        watchers: Who is told what happens.
    """

    def __init__(
        self, place: Runtime, options: ServerOptions, watchers: Sequence[SessionWatcher] = ()
    ) -> None:
        self.is_draining = False
        self.watchers = watchers
        self._place = place
        self._options = options
        self._sessions: dict[str, ServedSession] = {}
        self._taken = 0  # how many places are, also by sessions that are being opened or closed
        self._queue: deque[tuple[asyncio.Future[None], ServedSession]] = deque()
        self._closing: set[asyncio.Task[None]] = set()
        self._leaving = 0  # how many sessions are being closed, and still have their place

    @property
    def count(self) -> int:
        """How many sessions have a place."""
        return self._taken

    @property
    def waiting(self) -> int:
        """How many callers wait for a place."""
        return len(self._queue)

    @property
    def live(self) -> int:
        """How many sessions have an episode running, or a call under way."""
        return sum(_is_live(session) for session in self._sessions.values())

    @property
    def get(self) -> Callable[[str], ServedSession | None]:
        """What returns a session, if there is one with an id."""
        return self._sessions.get

    async def call(self, call: Call, connection: object | None = None) -> Reply:
        """Carry out a call on a session, once, and return its reply; also to who repeats it."""
        began_s = time.monotonic()
        try:
            session = self._find(call)
            if call.method == "close" and session.is_busy:
                # Its caller has given up on the call under way: it is closed after that.
                session.is_unwanted = True
                return Reply(id=call.id, session=call.session)
            repeated = session.begin(call)
        except EnvWeaveError as error:
            if call.method == "close" and isinstance(error, SessionGoneError):
                return Reply(id=call.id, session=call.session)  # it is closed, as was asked
            return self._refused(call, error, began_s)
        session.waits = False
        session.connection = connection
        if repeated is not None:
            return repeated if isinstance(repeated, Reply) else await asyncio.shield(repeated)
        reply = Reply(id=call.id, session=call.session)
        code = "ok"
        try:
            reply.result = await self._run(session, call)
        except Exception as error:  # noqa: BLE001 - told to the caller
            reply.fault = self.told(call.method, error)
            code = reply.fault.code
        except BaseException:
            reply.fault = fault_of(
                ConnectionLostError("The server was stopped in the middle of a call.")
            )
            if session.runner is not None:
                self._close_soon(session, "stopped")
            raise
        finally:
            now_s = time.monotonic()
            session.end(reply, now_s)
            self.close_unwanted(session)
            for watcher in self.watchers:
                watcher.called(call.method, code, now_s - began_s)
        return reply

    def close_unwanted(self, session: ServedSession) -> None:
        """Close a session that was to be closed while a call was under way."""
        if session.is_unwanted:
            self._close_soon(session, "closed")

    def told(self, method: str, error: BaseException) -> WireFault:
        """Return an error as its caller is told; what is not for strangers goes to the log."""
        if isinstance(error, ClosedError):  # its caller did not; the server is stopping
            error = SessionGoneError(f"The server closed the session while its {method}() ran.")
        if not isinstance(error, EnvWeaveError):
            logger.error("%s() failed at the server", method, exc_info=error)
        return fault_of(error)

    def _find(self, call: Call) -> ServedSession:
        session = self._sessions.get(call.session)
        if session is not None:
            return session
        if call.method != "open" and self.is_draining:
            raise SessionGoneError("The server was told to stop, and has closed its sessions.")
        if call.method != "open":
            raise SessionGoneError(
                "The server has no such session, or not any more: it was closed, its caller was "
                "away for too long, or the server was started anew."
            )
        if len(call.session) > MAX_ID:
            raise OptionError(f"The session's id has more than {MAX_ID} characters.")
        kept = self._options.replies_kept
        session = ServedSession(call.session, kept, time.monotonic())
        if call.id == 1:
            self._sessions[call.session] = session
        return session

    def _refused(self, call: Call, error: EnvWeaveError, began_s: float) -> Reply:
        fault = fault_of(error)
        for watcher in self.watchers:
            watcher.called(call.method, fault.code, time.monotonic() - began_s)
        return Reply(id=call.id, session=call.session, fault=fault)

    async def _run(self, session: ServedSession, call: Call) -> Any:
        runner = session.runner
        if call.method == "open":
            if runner is not None:
                raise CallOrderError("open() on a session that is open. Choose an id of its own.")
            return await self._open(session, call.params)
        assert runner is not None
        if call.method == "close":
            await self._close(session, "closed")
            return None
        if call.method == "reset" and self.is_draining:
            raise ConnectionLostError("The server is stopping, and begins no more episodes.")
        timeout_s = session.timeout_s
        own_s = read_seconds(call.params.get("timeout_s"))
        if own_s is not None:
            timeout_s = own_s if timeout_s is None else min(own_s, timeout_s)
        return await runner.call(call.method, call.params, timeout_s)

    # Places

    async def _open(self, session: ServedSession, params: dict[str, Any]) -> dict[str, Any]:
        try:
            wishes = read_wishes(params, self._options.timeout_s)
            can_wait = params.get("wait_s", 0) is not None
            wait_s = read_wait_s(params.get("wait_s"))
            await self._take_place(session, wait_s, can_wait=can_wait)
        except BaseException:
            self._sessions.pop(session.id, None)
            raise
        try:
            session.runner = await self._place.open(wishes)
            session.timeout_s = wishes.timeout_s
        except BaseException:
            if self._sessions.pop(session.id, None) is not None:
                self._give_place()
            raise
        if self.is_draining:
            await self._close(session, "stopped")
            raise ConnectionLostError("The server is stopping, and opens no more sessions.")
        for watcher in self.watchers:
            watcher.opened()
        return {"agents": self._place.description.possible_agents}

    async def _take_place(self, session: ServedSession, wait_s: float, *, can_wait: bool) -> None:
        """Take a place; wait for one, in the order of coming, if the caller asks for that.

        Raises:
            CapacityError: There is none, and will be none in time.
            ConnectionLostError: The server is stopping.
        """
        options = self._options
        if self.is_draining:
            raise ConnectionLostError("The server is stopping, and opens no more sessions.")
        if self._taken < options.max_sessions and not self._queue:
            self._taken += 1
            return
        besides = ""
        if wait_s and len(self._queue) < options.queue_size:
            wait_s = min(wait_s, options.queue_timeout_s)
            besides = f"no session was freed within {wait_s:g} s"
        elif wait_s and options.queue_size:
            wait_s, besides = 0.0, f"{len(self._queue)} callers wait already"
        else:
            wait_s = 0.0
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (turn, session)
        self._queue.append(waiting)
        try:
            await asyncio.wait((turn,), timeout=max(wait_s, GRACE_S))
            if not turn.done() and self._is_any_leaving:
                await asyncio.wait((turn,), timeout=LEAVING_S)
            if not turn.done():
                raise CapacityError(self._full(besides, can_wait=can_wait))
            turn.result()
        except BaseException:
            if _is_given(turn):
                self._give_place()
            raise
        finally:
            if waiting in self._queue:
                self._queue.remove(waiting)

    @property
    def _is_any_leaving(self) -> bool:
        """Whether a session is being closed, or will be after the call under way."""
        return bool(self._leaving) or any(one.is_unwanted for one in self._sessions.values())

    def _full(self, besides: str, *, can_wait: bool) -> str:
        """Return what a caller is told when there is no place, and what can be done about it."""
        limit = self._options.max_sessions
        if self._place.is_one_object:
            name = self._place.description.name
            used = f"it serves one {name} object, which has one session, and that is in use"
            more = "serve its class, or a function that makes one, to have more sessions"
        else:
            used = f"{self._taken} of {limit} sessions are in use"
            if limit == 1:
                used = "its only session is in use"
            more = "start the server with a larger max_sessions"
        return (
            f"The server is full: {used}{besides and ', and ' + besides}. Try again later, "
            f"{'wait for a session with wait_s=…, ' if can_wait else ''}or {more}."
        )

    def _give_place(self) -> None:
        """Free a place, and give it to who has waited longest."""
        self._taken -= 1
        while self._queue and self._taken < self._options.max_sessions:
            turn, _ = self._queue.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)

    async def _close(self, session: ServedSession, reason: str) -> None:
        """Close a session, once; its place is free when its environment is closed.

        One that is still being opened is closed by whoever opens it.
        """
        if session.runner is None or self._sessions.pop(session.id, None) is None:
            return
        self._leaving += 1
        try:
            await session.runner.close()
        except Exception:
            logger.warning("closing an environment failed", exc_info=True)
        finally:
            self._leaving -= 1
            self._give_place()
            for watcher in self.watchers:
                watcher.closed(reason)

    # Comings and goings

    def disconnect(self, connection: object) -> None:
        """Take note that a connection is lost: its sessions wait for their callers."""
        now_s = time.monotonic()
        for turn, waiting in list(self._queue):
            if waiting.connection is connection and not turn.done():
                turn.set_exception(CapacityError("The caller went away."))
        for session in list(self._sessions.values()):
            if session.connection is connection:
                session.connection, session.waits, session.since_s = None, True, now_s

    async def sweep(self) -> None:
        """Close sessions whose time is up, for ever."""
        options = self._options
        every_s = min(options.session_ttl_s, options.resume_ttl_s) / _LOOKS
        while True:
            await asyncio.sleep(min(max(every_s, 0.02), 5.0))
            self._look(time.monotonic())

    def _look(self, now_s: float) -> None:
        options = self._options
        for session in list(self._sessions.values()):
            if session.is_busy:
                continue
            idle_s = now_s - session.since_s
            if session.waits and idle_s >= options.resume_ttl_s:
                self._close_soon(session, "abandoned")
            elif idle_s >= options.session_ttl_s:
                self._close_soon(session, "idle")

    def _close_soon(self, session: ServedSession, reason: str) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._close(session, reason))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    async def drain(self, timeout_s: float) -> None:
        """Let nobody in, and wait until the episodes that run are over; then close everything."""
        self.is_draining = True
        for turn, _ in self._queue:
            if not turn.done():
                turn.set_exception(
                    ConnectionLostError("The server is stopping, and opens no more sessions.")
                )
        for session in self._sessions.values():
            if session.runner is not None:
                session.runner.stop_resetting()
        ends_s = time.monotonic() + timeout_s
        while time.monotonic() < ends_s and self._sessions:
            for session in list(self._sessions.values()):
                if not _is_live(session):
                    self._close_soon(session, "drained")
            await asyncio.sleep(0.02)
        await self.close()

    async def close(self) -> None:
        """Close every session."""
        self.is_draining = True
        for session in list(self._sessions.values()):
            self._close_soon(session, "stopped")
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_S)

    def number_next(self, session_id: str) -> int:
        """Return the number of a session's next call, for a caller that does not count.

        Raises:
            SessionGoneError: There is no such session.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionGoneError(
                "The server has no such session, or not any more. Open one with POST /sessions."
            )
        return session.next_number


def _is_given(turn: asyncio.Future[None]) -> bool:
    """Whether a place was given to who waited for it."""
    return turn.done() and not turn.cancelled() and turn.exception() is None


def _is_live(session: ServedSession) -> bool:
    return session.is_busy or (session.runner is not None and session.runner.is_live)
