"""Sessions of callers that keep no connection and count no calls: plain HTTP.

They are sessions like all others; what HTTP callers leave to the server is numbering the calls.
A call with a `request_id` may be repeated, and is answered by the reply to the first.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Hashable
from functools import partial
from typing import Any, final

from envweave.errors import OptionError, ResetNeededError, SessionGoneError
from envweave.server.service import Service
from envweave.wire.faults import error_of
from envweave.wire.messages import Call

IDS_KEPT = 1024
"""How many of a session's request ids are remembered. Longer than the replies are, so that an
old one is told that its reply is gone, and never taken for a new call."""

OPEN_ID_LENGTH = 16
"""How many characters the request id of an opening has at least. Every caller of a server chooses
among the same ones, and nobody may come upon another's session by chance."""

_FEW = 64  # sessions that are not looked through for those that are gone

_ANOTHER_CALL = (
    "request_id={!r} was given to another call before. Repeat that call as it was, or give this "
    "one an id of its own."
)


@final
class HTTPSession:
    """One session, called by anybody who knows its id, one after the other."""

    def __init__(self, service: Service) -> None:
        self.id = secrets.token_urlsafe(16)
        self._service = service
        # One call at a time: the next number is not known before.
        self._turn = asyncio.Lock()
        self._numbers: dict[str | int, tuple[int, Hashable]] = {}

    async def call(
        self,
        method: str,
        params: dict[str, Any],
        request_id: str | int | None = None,
        body: Hashable = None,
    ) -> Any:
        """Carry out a call and return its result; the first one, if it is repeated.

        Args:
            method: What to do.
            params: With what.
            request_id: What the caller calls this call, and every repetition of it.
            body: What the call says; a repetition says the same.

        Raises:
            EnvWeaveError: It was refused, or failed.
        """
        async with self._turn:
            number = self._numbered(request_id, (method, body))
            call = Call(id=number, method=method, session=self.id, params=params)
            reply = await self._service.call(call)
        if reply.fault is not None:
            raise error_of(reply.fault)
        return reply.result

    def _numbered(self, request_id: str | int | None, what: Hashable) -> int:
        known = None if request_id is None else self._numbers.get(request_id)
        if known is not None:
            if known[1] != what:
                raise OptionError(_ANOTHER_CALL.format(request_id))
            return known[0]
        number = self._service.table.number_next(self.id)
        if request_id is not None:
            self._numbers[request_id] = number, what
            if len(self._numbers) > IDS_KEPT:
                del self._numbers[next(iter(self._numbers))]
        return number

    async def open(self, params: dict[str, Any]) -> None:
        """Make its environment. Called once.

        Raises:
            EnvWeaveError: It cannot be made, or there is no room.
        """
        reply = await self._service.call(Call(id=1, method="open", session=self.id, params=params))
        if reply.fault is not None:
            raise error_of(reply.fault)

    @property
    def is_there(self) -> bool:
        """Whether the server still has it."""
        try:
            self._service.table.number_next(self.id)
        except SessionGoneError:
            return False
        return True


@final
class HTTPSessions:
    """All sessions of HTTP callers: one that needs no name, and those that were opened."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._default: HTTPSession | None = None
        self._opening = asyncio.Lock()  # the default session is opened once
        self._named: dict[str, HTTPSession] = {}
        self._opened: dict[str, tuple[asyncio.Future[HTTPSession], Hashable]] = {}
        self._many = _FEW

    async def open(
        self,
        params: dict[str, Any],
        request_id: str | int | None = None,
        body: Hashable = None,
    ) -> HTTPSession:
        """Open another session; the first one again, if the call is repeated.

        Args:
            params: With what.
            request_id: What the caller calls this call, and every repetition of it.
            body: What the call says; a repetition says the same.

        Raises:
            EnvWeaveError: It cannot be made, or there is no room.
        """
        if request_id is None:
            return await self._open(params)
        if not isinstance(request_id, str) or len(request_id) < OPEN_ID_LENGTH:
            raise OptionError(
                f"request_id={request_id!r} is no text of {OPEN_ID_LENGTH} characters or more. "
                "Use one that nobody else would, such as a UUID."
            )
        if request_id not in self._opened:
            begun = asyncio.ensure_future(self._open(params))
            self._opened[request_id] = begun, body
            begun.add_done_callback(partial(self._forget_failure, request_id))
            if len(self._opened) > IDS_KEPT:
                del self._opened[next(iter(self._opened))]
        opening, said = self._opened[request_id]
        if said != body:
            raise OptionError(_ANOTHER_CALL.format(request_id))
        return await asyncio.shield(opening)

    def _forget_failure(self, request_id: str, opening: asyncio.Future[HTTPSession]) -> None:
        """Let whoever repeats an opening that failed try once more."""
        has_failed = opening.cancelled() or opening.exception() is not None
        if has_failed and self._opened.get(request_id, (None,))[0] is opening:
            del self._opened[request_id]

    async def _open(self, params: dict[str, Any]) -> HTTPSession:
        if len(self._named) >= self._many:
            self._named = {name: one for name, one in self._named.items() if one.is_there}
            self._many = max(_FEW, 2 * len(self._named))
        session = HTTPSession(self._service)
        await session.open(params)
        self._named[session.id] = session
        return session

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
            SessionGoneError: There is no such session, or not any more.
            ResetNeededError: The default session has not begun.
        """
        if session_id is None:
            if self._default is None:
                raise ResetNeededError("No episode is running. Call POST /reset first.")
            if not self._default.is_there:
                raise SessionGoneError(
                    "The session without an id is gone: nobody called it for too long. Begin "
                    "another with POST /reset."
                )
            return self._default
        session = self._named.get(session_id)
        if session is None:
            raise SessionGoneError(
                "The server has no such session, or not any more. Open one with POST /sessions."
            )
        return session

    async def find_or_begin(self, session_id: str | None) -> HTTPSession:
        """Return a session that is to be reset. The default one is opened where it is needed.

        Raises:
            EnvWeaveError: There is no such session, or none can be opened.
        """
        if session_id is not None:
            return self.find(session_id)
        async with self._opening:
            if self._default is None or not self._default.is_there:
                self._default = None
                session = HTTPSession(self._service)
                await session.open({})
                self._default = session
        return self._default
