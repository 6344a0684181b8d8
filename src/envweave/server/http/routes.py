"""Plain HTTP: `/reset`, `/step`, `/state` and `/sessions`.

Without a session id they reach one default session, which has a state like every other. The
header `X-Session-Id` names another, opened by `POST /sessions`.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, final

from starlette.responses import Response
from starlette.routing import Route

from envweave.errors import ActionError, EnvWeaveError, OptionError
from envweave.server.http.bodies import ParsedBody, read_asked, refusal, written
from envweave.server.http.openapi import KEY_PATTERN
from envweave.server.http.sessions import (
    OPEN_ID_LENGTH,
    HTTPSessions,
    RequestIdTakenError,
    SessionClosedError,
)
from envweave.wire.faults import fault_of
from envweave.wire.results import Wired, as_http_payload, decode_result

if TYPE_CHECKING:
    from starlette.requests import Request

    from envweave.server.service import Service

RESET_FIELDS = ("seed", "episode_id", "options", "task", "request_id")
STEP_FIELDS = ("action", "answer", "timeout_s", "request_id")
OPEN_FIELDS = ("autoreset", "timeout_s", "wait_s", "request_id")

_KEY = re.compile(KEY_PATTERN)

Endpoint = Callable[["Request"], Awaitable[Response]]


def http_routes(service: Service) -> list[Route]:
    """Return the routes of plain HTTP, those that are called most first."""
    calls = _Calls(HTTPSessions(service))
    return [
        Route("/step", told(calls.step), methods=["POST"]),
        Route("/reset", told(calls.reset), methods=["POST"]),
        Route("/state", told(calls.state), methods=["GET"]),
        Route("/sessions", told(calls.open), methods=["POST"]),
        Route("/sessions/{session_id}", told(calls.close), methods=["DELETE"]),
    ]


def told(endpoint: Endpoint) -> Endpoint:
    """Answer errors on purpose by their faults."""

    @functools.wraps(endpoint)
    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except (RequestIdTakenError, SessionClosedError) as error:
            return refusal(fault_of(error), 409)  # whatever their codes mean elsewhere
        except EnvWeaveError as error:
            return refusal(fault_of(error))

    return answer


@final
class _Calls:
    def __init__(self, sessions: HTTPSessions) -> None:
        self._sessions = sessions

    async def reset(self, request: Request) -> Response:
        asked = await read_asked(request, RESET_FIELDS)
        request_id = _request_id(request, asked.fields)
        params = _without_nulls(asked.fields)
        if "seed" in params:
            params["seed"] = _whole(params["seed"])
        session = await self._sessions.find_or_begin(request.headers.get("x-session-id"))
        result = await session.call("reset", params, request_id, _said(request_id, asked))
        return written(request, _spelled(result))

    async def step(self, request: Request) -> Response:
        asked = await read_asked(request, STEP_FIELDS)
        fields = asked.fields
        request_id = _request_id(request, fields)
        if ("action" in fields) == ("answer" in fields):
            raise ActionError(
                'The body has no "action": send {"action": {...}}, or {"answer": {...}} to answer '
                "a tool call."
                if "action" not in fields
                else 'The body has both "action" and "answer". Send one of them.'
            )
        session = self._sessions.find(request.headers.get("x-session-id"))
        if fields.get("timeout_s", 0) is None:
            del fields["timeout_s"]
        result = await session.call("step", fields, request_id, _said(request_id, asked))
        return written(request, _spelled(result))

    async def state(self, request: Request) -> Response:
        session = self._sessions.find(request.headers.get("x-session-id"))
        return written(request, await session.call("state", {}))

    async def open(self, request: Request) -> Response:
        asked = await read_asked(request, OPEN_FIELDS)
        request_id = _request_id(request, asked.fields, OPEN_ID_LENGTH)
        params = _without_nulls(asked.fields)
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            session = await self._sessions.open(params, gone, request_id, _said(request_id, asked))
        finally:
            gone.cancel()
        return written(request, {"session_id": session.id}, 201)

    async def close(self, request: Request) -> Response:
        await self._sessions.close(request.path_params["session_id"])
        return Response(status_code=204)


async def _disconnected(request: Request) -> None:
    """Wait until the caller has gone away. Its body is read already."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _whole(value: Any) -> Any:
    """Return a number as JSON Schema sees it: 1.0 is a whole one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _request_id(request: Request, fields: dict[str, Any], least: int = 1) -> str | int | None:
    """Take what names the call from its fields, or its header of so many characters at least."""
    found, key = _whole(fields.pop("request_id", None)), request.headers.get("idempotency-key")
    if key is not None and (len(key) < least or not _KEY.fullmatch(key)):
        raise OptionError(
            f"Idempotency-Key must be {least} characters or more, 200 at most, all of them visible "
            "and ASCII. Use one that nobody else would, such as a UUID."
        )
    if found is None:
        found = key
    if found is None:
        return None
    if not isinstance(found, str | int) or isinstance(found, bool):
        raise OptionError(f"request_id={found!r} is neither a text nor a whole number.")
    if isinstance(found, str) and len(found) > 200:
        raise OptionError("request_id has more than 200 characters.")
    return found


def _said(request_id: str | int | None, asked: ParsedBody) -> int | None:
    return None if request_id is None else hash(asked.body)


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _spelled(result: Any) -> dict[str, Any]:
    return as_http_payload(result if isinstance(result, Wired) else decode_result(result))
