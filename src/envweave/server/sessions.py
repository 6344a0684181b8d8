"""The sessions of a server: calls exactly once, capacity, the waiting queue, expiry, draining.

A session is found by its id, whichever connection a call uses. A session whose connection is lost
waits for its client, which resumes it by calling again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, final

from envweave.codec.spec import short_repr
from envweave.errors import (
    BusyError,
    CallOrderError,
    CapacityError,
    ClosedError,
    ConnectionLostError,
    EnvWeaveError,
    OptionError,
    SessionGoneError,
)
from envweave.registry.spec import MAX_S, read_wait_s
from envweave.server.dispatch import read_token
from envweave.server.options import ServerOptions
from envweave.server.runtime.base import Runtime, SessionOptions, SessionRuntime
from envweave.session import Position
from envweave.types import StepResult
from envweave.wire.faults import fault_of
from envweave.wire.messages import Call, Reply, WireFault
from envweave.wire.results import encode_result

logger = logging.getLogger("envweave.server")

MAX_ID = 200
"""Maximum length of a session id."""

GRACE_S = 0.5
"""How long a full server waits before it refuses: the session of a client that has just
disconnected takes a moment to close, and the next client may arrive before that."""

CLOSING_S = 5.0
"""How much longer it waits while a session is being closed."""

CLOSE_S = 15.0
"""How long a stopping server waits for sessions to close."""

_CHECKS_PER_TTL = 4  # checks per time limit


@final
class ServedSession:
    """The state of one session at the server, besides its environment.

    Calls are numbered from 1, `open` being the first, and made one after the other. A call with a
    repeated number gets the reply to the first one, also while that is still in progress. A client
    that makes the next call has read the last reply, so only clients without a connection, of
    which there may be several per session, need more than one stored reply.

    Attributes:
        id: Its id, chosen by the client.
        runner: Runs its environment; `None` until it is open.
        timeout_s: Time limit of one call of the environment.
        connection: The connection of its last call; `None` without one, or if it is lost.
        idle_since_s: When it was last called, or lost its connection.
        is_disconnected: Whether it lost its connection and waits for its client.
        close_requested: Whether it is to be closed after the call in progress.
        last_number: The number of the last call that was begun.
    """

    def __init__(self, session_id: str, replies_kept: int, now_s: float) -> None:
        self.id = session_id
        self.runner: SessionRuntime | None = None
        self.timeout_s: float | None = None
        self.connection: object | None = None
        self.idle_since_s = now_s
        self.is_disconnected = False
        self.close_requested = False
        self._replies_kept = replies_kept
        self._replies: dict[int, Reply | StepResult[Any]] = {}
        self.last_number = 0
        self._is_running = False
        self._running: asyncio.Future[Reply] | None = None  # if a retry waits for it

    @property
    def is_busy(self) -> bool:
        """Whether a call is in progress."""
        return self._is_running

    def begin_step(self, number: int, connection: object) -> bool:
        """Begin a step if it is the next call; return whether it was begun."""
        if number != self.last_number + 1 or self._is_running:
            return False
        self.last_number = number
        self._is_running = True
        if self.connection is not None:
            self._replies.clear()
        self.connection, self.is_disconnected = connection, False
        return True

    def begin(self, call: Call) -> Reply | asyncio.Future[Reply] | None:
        """Begin a call; return the reply to a repeated one, and `None` for a new one.

        A new call is in progress until `end`.

        Raises:
            SessionGoneError: It was answered before, and the reply is no longer stored.
            BusyError: Another call is in progress.
            CallOrderError: A call before it is missing.
        """
        if call.id == self.last_number + 1 and not self._is_running:
            self.last_number = call.id
            self._is_running = True
            if self.connection is not None:
                self._replies.clear()
            return None
        if call.id == self.last_number and self._is_running:
            if self._running is None:
                self._running = asyncio.get_running_loop().create_future()
            return self._running
        if call.id in self._replies:
            return self.as_reply(call.id, self._replies[call.id])
        if call.id <= self.last_number:
            raise SessionGoneError(
                f"Call {call.id} of this session was answered before, and its reply is no longer "
                "stored. The session cannot continue with this client."
            )
        if self._is_running:
            raise BusyError(
                f"Call {self.last_number} of this session is still in progress. Wait for its reply."
            )
        raise CallOrderError(
            f"Call {call.id} of this session came after call {self.last_number}. Number calls "
            "consecutively."
        )

    def as_reply(self, number: int, reply: Reply | StepResult[Any]) -> Reply:
        """Return the reply to a call, of which only an ordinary result may be stored."""
        if isinstance(reply, Reply):
            return reply
        return Reply(id=number, session=self.id, result=encode_result(reply, None, None))

    def end(self, reply: Reply | StepResult[Any], now_s: float) -> None:
        """Store the reply to the call in progress, for its client and for retries.

        The result of an ordinary step is stored as it is, since retries are rare.
        """
        self._is_running = False
        self.idle_since_s = now_s
        if self._replies_kept:
            replies = self._replies
            replies[self.last_number] = reply
            while len(replies) > self._replies_kept:
                del replies[next(iter(replies))]
        if self._running is not None:
            running, self._running = self._running, None
            if not running.done():
                running.set_result(self.as_reply(self.last_number, reply))

    @property
    def next_number(self) -> int:
        """The number of the next call, for a client that does not count calls."""
        return self.last_number + 1


def parse_options(params: dict[str, Any], limit_s: float | None) -> SessionOptions:
    """Return the options of an `open` call.

    Raises:
        OptionError: An option is unknown or invalid.
    """
    unknown = params.keys() - {"autoreset", "timeout_s", "position", "wait_s", "snapshot"}
    if unknown:
        raise OptionError(f"open() takes no {sorted(map(str, unknown))[0]!r}.")
    autoreset = params.get("autoreset", False)
    if not isinstance(autoreset, bool):
        raise OptionError(f"autoreset must be true or false, got {short_repr(autoreset)}.")
    timeout_s = read_seconds(params.get("timeout_s"))
    if limit_s is not None:
        timeout_s = limit_s if timeout_s is None else min(timeout_s, limit_s)
    snapshot = params.get("snapshot")
    return SessionOptions(
        autoreset,
        timeout_s,
        _read_position(params.get("position")),
        None if snapshot is None else read_token(snapshot),
    )


def read_seconds(value: Any) -> float | None:
    """Return a client's `timeout_s`.

    Raises:
        OptionError: It is not a valid number of seconds.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_S:
        raise OptionError(f"timeout_s must be a number of seconds > 0, got {short_repr(value)}.")
    return float(value)


CANNOT_WAIT: Mapping[str, Any] = {"wait_s": None}
"""Parameters of `open` for clients that cannot ask for `wait_s`: errors do not suggest it."""


def _read_position(value: Any) -> Position | None:
    if value is None:
        return None
    checks: tuple[Callable[[Any], bool], ...] = (
        lambda base: base is None or (_is_whole(base) and base >= 0),
        _is_whole,
        _is_whole,
        lambda prefix: isinstance(prefix, str) and len(prefix) <= 200,
    )
    if not isinstance(value, list) or len(value) != len(checks):
        raise OptionError("Invalid position: not one that reset() returned.")
    if not all(check(one) for check, one in zip(checks, value, strict=True)):
        raise OptionError("Invalid position: not one that reset() returned.")
    return Position(*value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -1 <= value < 2**64


class SessionWatcher(Protocol):
    """Observer of a session table."""

    def called(self, method: str, code: str, seconds: float, count: int = 1) -> None:
        """`count` calls have ended; `code` is `"ok"` or the code of their fault."""

    def opened(self) -> None:
        """A session was opened."""

    def closed(self, reason: str) -> None:
        """A session was closed: `closed`, `idle`, `abandoned`, `drained` or `stopped`."""


@final
class SessionTable:
    """Every session of a server.

    Attributes:
        is_draining: Whether sessions and episodes can no longer begin.
        watchers: Observers of sessions and calls.
        get: Returns the session with an id, or `None`.
    """

    def __init__(
        self, runtime: Runtime, options: ServerOptions, watchers: Sequence[SessionWatcher] = ()
    ) -> None:
        self.is_draining = False
        self.watchers = watchers
        self._runtime = runtime
        self._options = options
        self._sessions: dict[str, ServedSession] = {}
        self.get = self._sessions.get
        self._in_use = 0  # slots in use, also by sessions that are being opened or closed
        self._queue: deque[tuple[asyncio.Future[None], ServedSession]] = deque()
        self._closing: set[asyncio.Task[None]] = set()
        self._closing_count = 0  # sessions that are being closed and still have their slot

    @property
    def count(self) -> int:
        """Number of slots in use."""
        return self._in_use

    @property
    def waiting(self) -> int:
        """Number of clients that wait for a slot."""
        return len(self._queue)

    @property
    def live(self) -> int:
        """Number of sessions with a running episode or a call in progress."""
        return sum(_is_live(session) for session in self._sessions.values())

    def overview(self) -> list[dict[str, Any]]:
        """Return what the sessions do, the most recently called first, without their ids.

        An id is all that a caller needs to act in a session.
        """
        now_s = time.monotonic()
        return [
            {
                "calls": one.last_number,
                "idle_s": 0.0 if one.is_busy else now_s - one.idle_since_s,
                "is_busy": one.is_busy,
                "is_live": _is_live(one),
                "is_disconnected": one.is_disconnected,
            }
            for one in sorted(self._sessions.values(), key=lambda one: -one.idle_since_s)
        ]

    async def call(self, call: Call, connection: object | None = None) -> Reply:
        """Carry out a call on a session exactly once, and return its reply, also to a retry."""
        began_s = time.monotonic()
        try:
            session = self._find(call)
            if call.method == "close" and session.is_busy:
                # The client no longer waits for the call in progress: close after it.
                session.close_requested = True
                return Reply(id=call.id, session=call.session)
            repeated = session.begin(call)
        except EnvWeaveError as error:
            if call.method == "close" and isinstance(error, SessionGoneError):
                return Reply(id=call.id, session=call.session)  # it is closed already
            return self._refused(call, error, began_s)
        session.is_disconnected = False
        session.connection = connection
        if repeated is not None:
            return repeated if isinstance(repeated, Reply) else await asyncio.shield(repeated)
        reply = Reply(id=call.id, session=call.session)
        code = "ok"
        try:
            reply.result = await self._run(session, call)
        except Exception as error:  # noqa: BLE001 - becomes a fault in the reply
            reply.fault = self.fault_for(call.method, error)
            code = reply.fault.code
        except BaseException:
            reply.fault = fault_of(ConnectionLostError("The server was stopped during a call."))
            if session.runner is not None:
                self._close_soon(session, "stopped")
            raise
        finally:
            now_s = time.monotonic()
            session.end(reply, now_s)
            self.close_if_requested(session)
            for watcher in self.watchers:
                watcher.called(call.method, code, now_s - began_s)
        return reply

    def close_if_requested(self, session: ServedSession) -> None:
        """Close a session whose `close` came during another call."""
        if session.close_requested:
            self._close_soon(session, "closed")

    def fault_for(self, method: str, error: BaseException) -> WireFault:
        """Return the fault for an error; internal details go to the log only."""
        if isinstance(error, ClosedError):  # not by its client: the server is stopping
            error = SessionGoneError(f"The server closed the session while its {method}() ran.")
        if not isinstance(error, EnvWeaveError):
            logger.error("%s() failed at the server", method, exc_info=error)
        return fault_of(error)

    def _find(self, call: Call) -> ServedSession:
        session = self._sessions.get(call.session)
        if session is not None:
            return session
        if call.method != "open" and self.is_draining:
            raise SessionGoneError("The server is stopping and has closed its sessions.")
        if call.method != "open":
            raise SessionGoneError(
                "The server has no such session: it was closed, its client was away for too long, "
                "or the server was restarted."
            )
        if len(call.session) > MAX_ID:
            raise OptionError(f"The session id has more than {MAX_ID} characters.")
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
                raise CallOrderError("open() on a session that is open. Choose another id.")
            return await self._open(session, call.params)
        assert runner is not None
        if call.method == "close":
            await self._close(session, "closed")
            return None
        if call.method in ("reset", "restore") and self.is_draining:
            raise ConnectionLostError("The server is stopping and begins no more episodes.")
        timeout_s = session.timeout_s
        own_s = read_seconds(call.params.get("timeout_s"))
        if own_s is not None:
            timeout_s = own_s if timeout_s is None else min(own_s, timeout_s)
        return await runner.call(call.method, call.params, timeout_s)

    # Capacity

    async def _open(self, session: ServedSession, params: dict[str, Any]) -> dict[str, Any]:
        try:
            session_options = parse_options(params, self._options.timeout_s)
            can_wait = params.get("wait_s", 0) is not None
            wait_s = read_wait_s(params.get("wait_s"))
            await self._acquire_slot(session, wait_s, can_wait=can_wait)
        except BaseException:
            self._sessions.pop(session.id, None)
            raise
        try:
            session.runner = await self._runtime.open(session_options)
            session.timeout_s = session_options.timeout_s
        except BaseException:
            if self._sessions.pop(session.id, None) is not None:
                self._release_slot()
            raise
        if self.is_draining:
            await self._close(session, "stopped")
            raise ConnectionLostError("The server is stopping and opens no more sessions.")
        for watcher in self.watchers:
            watcher.opened()
        return {"agents": self._runtime.description.possible_agents}

    async def _acquire_slot(self, session: ServedSession, wait_s: float, *, can_wait: bool) -> None:
        """Acquire a slot; wait for one, first come first served, if the client asks for that.

        Raises:
            CapacityError: No slot became free in time.
            ConnectionLostError: The server is stopping.
        """
        options = self._options
        if self.is_draining:
            raise ConnectionLostError("The server is stopping and opens no more sessions.")
        if self._in_use < options.max_sessions and not self._queue:
            self._in_use += 1
            return
        reason = ""
        if wait_s and len(self._queue) < options.queue_size:
            wait_s = min(wait_s, options.queue_timeout_s)
            reason = f"no session was freed within {wait_s:g} s"
        elif wait_s and options.queue_size:
            wait_s, reason = 0.0, f"{len(self._queue)} clients are waiting already"
        else:
            wait_s = 0.0
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (turn, session)
        self._queue.append(waiting)
        try:
            await asyncio.wait((turn,), timeout=max(wait_s, GRACE_S))
            if not turn.done() and self._is_any_closing:
                await asyncio.wait((turn,), timeout=CLOSING_S)
            if not turn.done():
                raise CapacityError(self._capacity_message(reason, can_wait=can_wait))
            turn.result()
        except BaseException:
            if _was_granted(turn):
                self._release_slot()
            raise
        finally:
            if waiting in self._queue:
                self._queue.remove(waiting)

    @property
    def _is_any_closing(self) -> bool:
        """Whether a session is being closed, or will be after the call in progress."""
        return bool(self._closing_count) or any(
            one.close_requested for one in self._sessions.values()
        )

    def _capacity_message(self, reason: str, *, can_wait: bool) -> str:
        """Return the message for a client when there is no slot, with what can be done."""
        limit = self._options.max_sessions
        if self._runtime.is_one_object:
            name = self._runtime.description.name
            used = f"it serves a single {name} object, and its only session is in use"
            more = "serve its class, or a function that makes one, for more sessions"
        else:
            used = f"{self._in_use} of {limit} sessions are in use"
            if limit == 1:
                used = "its only session is in use"
            more = "start the server with a larger max_sessions"
        return (
            f"The server is full: {used}{reason and ', and ' + reason}. Try again later, "
            f"{'wait for a session with wait_s=…, ' if can_wait else ''}or {more}."
        )

    def _release_slot(self) -> None:
        """Release a slot, and grant it to the client that has waited longest."""
        self._in_use -= 1
        while self._queue and self._in_use < self._options.max_sessions:
            turn, _ = self._queue.popleft()
            if not turn.done():
                self._in_use += 1
                turn.set_result(None)

    async def _close(self, session: ServedSession, reason: str) -> None:
        """Close a session, once; its slot is released when its environment is closed.

        A session that is still being opened is closed by the task that opens it.
        """
        if session.runner is None or self._sessions.pop(session.id, None) is None:
            return
        self._closing_count += 1
        try:
            await session.runner.close()
        except Exception:
            logger.warning("closing an environment failed", exc_info=True)
        finally:
            self._closing_count -= 1
            self._release_slot()
            for watcher in self.watchers:
                watcher.closed(reason)

    # Connections and expiry

    def disconnect(self, connection: object) -> None:
        """Record that a connection is lost: its sessions wait for their clients."""
        now_s = time.monotonic()
        for turn, waiting in list(self._queue):
            if waiting.connection is connection and not turn.done():
                turn.set_exception(CapacityError("The client disconnected."))
        for session in list(self._sessions.values()):
            if session.connection is connection:
                session.connection, session.is_disconnected, session.idle_since_s = (
                    None,
                    True,
                    now_s,
                )

    def touch(self, session_id: str) -> None:
        """Renew the lease of a session, whose client has said that it is there."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.is_disconnected, session.idle_since_s = False, time.monotonic()

    async def sweep(self) -> None:
        """Close expired sessions periodically; never returns."""
        options = self._options
        every_s = min(options.session_ttl_s, options.resume_ttl_s) / _CHECKS_PER_TTL
        while True:
            await asyncio.sleep(min(max(every_s, 0.02), 5.0))
            self._close_expired(time.monotonic())

    def _close_expired(self, now_s: float) -> None:
        options = self._options
        for session in list(self._sessions.values()):
            if session.is_busy:
                continue
            idle_s = now_s - session.idle_since_s
            if session.is_disconnected and idle_s >= options.resume_ttl_s:
                self._close_soon(session, "abandoned")
            elif idle_s >= options.session_ttl_s:
                self._close_soon(session, "idle")

    def _close_soon(self, session: ServedSession, reason: str) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._close(session, reason))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    async def drain(self, timeout_s: float) -> None:
        """Refuse new sessions, wait up to `timeout_s` for running episodes, then close all."""
        self.is_draining = True
        for turn, _ in self._queue:
            if not turn.done():
                turn.set_exception(
                    ConnectionLostError("The server is stopping and opens no more sessions.")
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

    def next_call_number(self, session_id: str) -> int:
        """Return the number of a session's next call, for a client that does not count calls.

        Raises:
            SessionGoneError: There is no such session.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionGoneError("The server has no such session. Open one with POST /sessions.")
        return session.next_number


def _was_granted(turn: asyncio.Future[None]) -> bool:
    """Whether the waiting client was granted a slot."""
    return turn.done() and not turn.cancelled() and turn.exception() is None


def _is_live(session: ServedSession) -> bool:
    return session.is_busy or (session.runner is not None and session.runner.is_live)
