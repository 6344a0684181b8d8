"""Sessions of clients without a connection that do not number their calls: plain HTTP.

They are ordinary sessions; the server numbers the calls of HTTP clients. A call with a `request_id`
may be repeated and gets the reply to the first one.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Hashable
from functools import partial
from typing import Any, final

from envweave.errors import (
    CapacityError,
    EnvWeaveError,
    OptionError,
    ResetNeededError,
    SessionGoneError,
)
from envweave.server.service import Service
from envweave.server.sessions import CANNOT_WAIT
from envweave.wire.faults import error_of
from envweave.wire.messages import Call, Reply

IDS_KEPT = 1024
"""How many request ids of a session are remembered: more than there are stored replies, so that
an old one is refused because its reply is gone, and never taken for a new call."""

OPEN_ID_LENGTH = 16
"""Minimum length of the request id of `POST /sessions`. All clients of a server share these ids,
and a client must not get another client's session by chance."""

_FEW = 64  # below this, closed sessions are not removed

_ANOTHER_CALL = (
    "request_id={!r} belongs to an earlier call. Repeat that call unchanged, or use another id."
)


class SessionClosedError(SessionGoneError):
    """A request that opened a session is repeated, and the session was closed since."""


class RequestIdTakenError(OptionError):
    """A request has the id of an earlier one with a different body."""


@final
class HTTPSession:
    """One session, which any client that knows its id can call; one call at a time."""

    def __init__(self, service: Service) -> None:
        self.id = secrets.token_urlsafe(16)
        self._service = service
        # One call at a time: the next number is not known before.
        self._turn = asyncio.Lock()
        self._numbers: dict[str | int, tuple[int, Hashable]] = {}
        self._under_way: set[asyncio.Task[Reply]] = set()

    async def call(
        self,
        method: str,
        params: dict[str, Any],
        request_id: str | int | None = None,
        body: Hashable = None,
    ) -> Any:
        """Carry out a call and return its result; a retry gets the first result.

        If the caller is cancelled, the call still runs to its end.

        Args:
            method: The method.
            params: Its parameters.
            request_id: Identifies the call and its retries.
            body: Hash of the body; a retry must have the same.

        Raises:
            RequestIdTakenError: Another call has this `request_id`.
            EnvWeaveError: The call was refused or failed.
        """
        task = asyncio.ensure_future(self._send(method, params, request_id, body))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        reply = await asyncio.shield(task)
        if reply.fault is not None:
            raise error_of(reply.fault)
        return reply.result

    async def _send(
        self, method: str, params: dict[str, Any], request_id: str | int | None, body: Hashable
    ) -> Reply:
        async with self._turn:
            number = self._numbered(request_id, (method, body))
            call = Call(id=number, method=method, session=self.id, params=params)
            return await self._service.call(call)

    def _numbered(self, request_id: str | int | None, what: Hashable) -> int:
        known = None if request_id is None else self._numbers.get(request_id)
        if known is not None:
            if known[1] != what:
                raise RequestIdTakenError(_ANOTHER_CALL.format(request_id))
            return known[0]
        number = self._service.table.next_call_number(self.id)
        if request_id is not None:
            self._numbers[request_id] = number, what
            if len(self._numbers) > IDS_KEPT:
                del self._numbers[next(iter(self._numbers))]
        return number

    async def open(self, params: dict[str, Any]) -> None:
        """Open the session. Called once.

        Raises:
            EnvWeaveError: The environment cannot be made, or the server is full.
        """
        call = Call(id=1, method="open", session=self.id, params=params)
        reply = await self._service.call(call, self)
        if reply.fault is not None:
            raise error_of(reply.fault)

    def disconnect(self) -> None:
        """Leave the queue; or, once open, close unless a call comes within `resume_ttl_s`.

        The client may not have received the reply to its request.
        """
        self._service.table.disconnect(self)

    def touch(self) -> None:
        """Renew its lease, without a call."""
        self._service.table.touch(self.id)

    @property
    def is_there(self) -> bool:
        """Whether the server still has this session."""
        try:
            self._service.table.next_call_number(self.id)
        except SessionGoneError:
            return False
        return True


@final
class _Opening:
    """A session that is being opened or was opened, shared by retries of the same request.

    Attributes:
        session: The session.
        task: The task that opens it.
        body: Hash of the body; a retry must have the same.
        waiting: Number of requests that wait for it.
    """

    def __init__(self, session: HTTPSession, params: dict[str, Any], body: Hashable) -> None:
        self.session = session
        self.task = asyncio.ensure_future(session.open(params))
        self.body = body
        self.waiting = 0


@final
class HTTPSessions:
    """All sessions of HTTP clients: the default session, and those that were opened."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._default: HTTPSession | None = None
        self._beginning: asyncio.Task[HTTPSession] | None = None  # shared by all requests for it
        self._named: dict[str, HTTPSession] = {}
        self._opened: dict[str, _Opening] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._many = _FEW

    async def open(
        self,
        params: dict[str, Any],
        gone: asyncio.Future[None] | None = None,
        request_id: str | int | None = None,
        body: Hashable = None,
    ) -> HTTPSession:
        """Open another session; a retry gets the first one again.

        A client that disconnects or is cancelled holds no session: it leaves the queue, and a
        session that was opened for it alone is closed.

        Args:
            params: The options of the session.
            gone: Done when the client has disconnected, if that can be detected.
            request_id: Identifies the call and its retries.
            body: Hash of the body; a retry must have the same.

        Raises:
            SessionClosedError: It was opened by an earlier call, and closed since.
            RequestIdTakenError: Another call has this `request_id`.
            EnvWeaveError: The environment cannot be made, or the server is full.
        """
        gone = gone or asyncio.get_running_loop().create_future()
        opening = self._begin(params, request_id, body)
        opening.waiting += 1
        is_wanted = False  # also if this task is cancelled
        try:
            await asyncio.wait((opening.task, gone), return_when=asyncio.FIRST_COMPLETED)
            is_wanted = not gone.done()
        finally:
            opening.waiting -= 1
            if not is_wanted and not opening.waiting:
                self._abandon(opening)
        if not is_wanted:
            raise CapacityError("The client disconnected.")
        await opening.task
        opening.session.disconnect()
        return opening.session

    def _begin(self, params: dict[str, Any], request_id: str | int | None, body: Any) -> _Opening:
        """Begin to open a session, or find the one of an earlier request with the same id."""
        if request_id is None:
            return self._start(params, body)
        if not isinstance(request_id, str) or len(request_id) < OPEN_ID_LENGTH:
            raise OptionError(
                f"request_id must be a string of at least {OPEN_ID_LENGTH} characters, got "
                f"{request_id!r}. Use a unique one, such as a UUID."
            )
        opening = self._opened.get(request_id)
        if opening is None or _has_failed(opening.task):  # a retry tries again
            opening = self._opened[request_id] = self._start(params, body)
            if len(self._opened) > IDS_KEPT:
                del self._opened[next(iter(self._opened))]
        elif opening.body != body:
            raise RequestIdTakenError(_ANOTHER_CALL.format(request_id))
        elif opening.task.done() and not opening.session.is_there:
            raise SessionClosedError(
                f"The session that request_id={request_id!r} opened is closed. Use another "
                "request_id to open another session."
            )
        return opening

    def _start(self, params: dict[str, Any], body: Hashable) -> _Opening:
        if len(self._named) >= self._many:
            self._named = {name: one for name, one in self._named.items() if one.is_there}
            self._many = max(_FEW, 2 * len(self._named))
        session = HTTPSession(self._service)
        opening = _Opening(session, params, body)
        opening.task.add_done_callback(partial(self._opened_by, session))
        return opening

    def _opened_by(self, session: HTTPSession, task: asyncio.Task[None]) -> None:
        if not _has_failed(task):
            self._named[session.id] = session

    def _abandon(self, opening: _Opening) -> None:
        """Abandon a session that no request waits for; a retry opens another."""
        for request_id, one in list(self._opened.items()):
            if one is opening:
                del self._opened[request_id]
        opening.session.disconnect()
        closing = asyncio.ensure_future(self._close_abandoned(opening))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close_abandoned(self, opening: _Opening) -> None:
        with contextlib.suppress(EnvWeaveError):
            await opening.task
            await self.close(opening.session.id)

    async def close(self, session_id: str) -> None:
        """Close a session that was opened.

        Raises:
            SessionGoneError: There is no such session.
        """
        session = self.find(session_id)
        await session.call("close", {})
        self._named.pop(session_id, None)

    def find(self, session_id: str | None) -> HTTPSession:
        """Return a session by its id; without one, the default session.

        Raises:
            SessionGoneError: There is no such session.
            ResetNeededError: The default session has not begun.
        """
        if session_id is None:
            if self._default is None:
                raise ResetNeededError("No episode is running. Call POST /reset first.")
            if not self._default.is_there:
                raise SessionGoneError(
                    "The default session is gone: it was closed, or was not called for too long. "
                    "Begin another with POST /reset."
                )
            return self._default
        session = self._named.get(session_id)
        if session is None:
            raise SessionGoneError("The server has no such session. Open one with POST /sessions.")
        return session

    async def find_or_begin(self, session_id: str | None) -> HTTPSession:
        """Return a session to be reset. The default session is opened if needed.

        Raises:
            EnvWeaveError: There is no such session, or none can be opened.
        """
        if session_id is not None:
            return self.find(session_id)
        if self._default is not None and self._default.is_there:
            return self._default
        if self._beginning is None or self._beginning.done():
            self._beginning = asyncio.ensure_future(self._begin_default())
        return await asyncio.shield(self._beginning)

    async def _begin_default(self) -> HTTPSession:
        self._default = None
        session = HTTPSession(self._service)
        await session.open(dict(CANNOT_WAIT))
        self._default = session
        return session


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
