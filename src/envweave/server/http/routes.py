"""Plain HTTP: the routes of episodes and sessions, and those about the server.

`/reset`, `/step`, `/state` and `/sessions`: calls without a session id use one default session. The
header `X-Session-Id` names another, opened by `POST /sessions`. `/health`, `/ready`, `/schema`,
`/metadata` and `/metrics` describe the server.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, final

import msgspec
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from envweave.errors import ActionError, EnvWeaveError, OptionError
from envweave.server.http.bodies import ParsedBody, encoded_response, read_fields, refusal
from envweave.server.http.openapi import KEY_PATTERN
from envweave.server.http.sessions import (
    OPEN_ID_LENGTH,
    HTTPSessions,
    RequestIdTakenError,
    SessionClosedError,
)
from envweave.server.options import DIALECTS
from envweave.wire.encoding import SUBPROTOCOLS
from envweave.wire.faults import fault_of
from envweave.wire.results import Wired, as_http_payload, decode_result

if TYPE_CHECKING:
    from starlette.requests import Request

    from envweave.server.metrics import Metrics
    from envweave.server.service import Service
    from envweave.wire.description import Description


RESET_FIELDS = ("seed", "episode_id", "options", "task", "request_id")
STEP_FIELDS = ("action", "answer", "timeout_s", "request_id")
OPEN_FIELDS = ("autoreset", "timeout_s", "wait_s", "request_id")

_KEY = re.compile(KEY_PATTERN)

Endpoint = Callable[["Request"], Awaitable[Response]]


def http_routes(
    service: Service, share: Callable[[str, Endpoint], Endpoint] = lambda _, endpoint: endpoint
) -> list[Route]:
    """Return the routes of plain HTTP, the most frequently called first.

    Args:
        service: The service.
        share: Makes the endpoint of `step` and of `reset`, for another dialect at these paths.
    """
    calls = _Calls(HTTPSessions(service))
    return [
        Route("/step", share("step", answer_errors(calls.step)), methods=["POST"]),
        Route("/reset", share("reset", answer_errors(calls.reset)), methods=["POST"]),
        Route("/state", answer_errors(calls.state), methods=["GET"]),
        Route("/sessions", answer_errors(calls.open), methods=["POST"]),
        Route("/sessions/{session_id}", answer_errors(calls.close), methods=["DELETE"]),
    ]


def answer_errors(endpoint: Endpoint) -> Endpoint:
    """Turn errors of an endpoint into fault responses."""

    @functools.wraps(endpoint)
    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except (RequestIdTakenError, SessionClosedError) as error:
            return refusal(
                fault_of(error), 409
            )  # other dialects use another status for their codes
        except EnvWeaveError as error:
            return refusal(fault_of(error))

    return answer


@final
class _Calls:
    def __init__(self, sessions: HTTPSessions) -> None:
        self._sessions = sessions

    async def reset(self, request: Request) -> Response:
        body = await read_fields(request, RESET_FIELDS)
        request_id = _request_id(request, body.fields)
        params = _without_nulls(body.fields)
        if "seed" in params:
            params["seed"] = _as_integer(params["seed"])
        session = await self._sessions.find_or_begin(request.headers.get("x-session-id"))
        result = await session.call("reset", params, request_id, _body_hash(request_id, body))
        return encoded_response(request, _plain_result(result))

    async def step(self, request: Request) -> Response:
        body = await read_fields(request, STEP_FIELDS)
        fields = body.fields
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
        result = await session.call("step", fields, request_id, _body_hash(request_id, body))
        return encoded_response(request, _plain_result(result))

    async def state(self, request: Request) -> Response:
        session = self._sessions.find(request.headers.get("x-session-id"))
        return encoded_response(request, await session.call("state", {}))

    async def open(self, request: Request) -> Response:
        body = await read_fields(request, OPEN_FIELDS)
        request_id = _request_id(request, body.fields, OPEN_ID_LENGTH)
        params = _without_nulls(body.fields)
        disconnected = asyncio.ensure_future(wait_for_disconnect(request))
        try:
            session = await self._sessions.open(
                params, disconnected, request_id, _body_hash(request_id, body)
            )
        finally:
            disconnected.cancel()
        return encoded_response(request, {"session_id": session.id}, 201)

    async def close(self, request: Request) -> Response:
        await self._sessions.close(request.path_params["session_id"])
        return Response(status_code=204)


async def wait_for_disconnect(request: Request) -> None:
    """Wait until the client disconnects. Its body is read already."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _as_integer(value: Any) -> Any:
    """Return a number as JSON Schema sees it: 1.0 is an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _request_id(request: Request, fields: dict[str, Any], least: int = 1) -> str | int | None:
    """Pop the request id from the fields, or read it from the header, `least` characters long."""
    found, key = _as_integer(fields.pop("request_id", None)), request.headers.get("idempotency-key")
    if key is not None and (len(key) < least or not _KEY.fullmatch(key)):
        raise OptionError(
            f"Idempotency-Key must have {least} to 200 visible ASCII characters. Use a unique one, "
            "such as a UUID."
        )
    if found is None:
        found = key
    if found is None:
        return None
    if not isinstance(found, str | int) or isinstance(found, bool):
        raise OptionError(f"request_id must be a string or an integer, got {found!r}.")
    if isinstance(found, str) and len(found) > 200:
        raise OptionError("request_id has more than 200 characters.")
    return found


def _body_hash(request_id: str | int | None, body: ParsedBody) -> int | None:
    return None if request_id is None else hash(body.body)


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _plain_result(result: Any) -> dict[str, Any]:
    return as_http_payload(result if isinstance(result, Wired) else decode_result(result))


def probe_routes(service: Service, metrics: Metrics) -> list[Route]:
    """Return the routes for information about the server."""
    probes = _Probes(service, metrics)
    return [
        Route("/health", probes.health, methods=["GET"]),
        Route("/ready", answer_errors(probes.ready), methods=["GET"]),
        Route("/schema", answer_errors(probes.schema), methods=["GET"]),
        Route("/metadata", answer_errors(probes.metadata), methods=["GET"]),
        Route("/metrics", probes.metrics, methods=["GET"]),
        Route("/", probes.root, methods=["GET"], include_in_schema=False),
    ]


def metadata_of(about: Description, service: Service) -> dict[str, Any]:
    """Return the content of `/metadata`. The key `envweave` identifies our servers."""
    options = service.options
    return {
        "name": about.name,
        "description": about.description or f"The environment {about.env_id}.",
        "version": about.version,
        "envweave": about.version,
        "env_id": about.env_id,
        "dialects": [*SUBPROTOCOLS, *filter(options.has_dialect, DIALECTS)],
        "reset_takes": about.reset_takes,
        "possible_agents": about.possible_agents,
        "deterministic": about.deterministic,
        "splits": about.splits,
        "limits": {
            "max_sessions": options.max_sessions,
            "max_message_bytes": options.max_message_bytes,
            "session_ttl_s": options.session_ttl_s,
            "resume_ttl_s": options.resume_ttl_s,
            "timeout_s": options.timeout_s,
        },
    }


@final
class _Probes:
    def __init__(self, service: Service, metrics: Metrics) -> None:
        self._service = service
        self._metrics = metrics

    async def health(self, request: Request) -> Response:  # noqa: ARG002 - an endpoint
        return _json({"status": "healthy"})

    async def ready(self, request: Request) -> Response:  # noqa: ARG002 - an endpoint
        await self._service.start()
        reason = self._service.unready_reason
        if reason is None:
            return _json({"status": "ready"})
        return _json({"status": "unready", "reason": reason}, 503)

    async def schema(self, request: Request) -> Response:  # noqa: ARG002 - an endpoint
        await self._service.start()
        about = self._service.runtime.description
        return _json(
            {"action": about.action, "observation": about.observation, "state": about.state}
        )

    async def metadata(self, request: Request) -> Response:  # noqa: ARG002 - an endpoint
        await self._service.start()
        return _json(metadata_of(self._service.runtime.description, self._service))

    async def metrics(self, request: Request) -> Response:  # noqa: ARG002 - an endpoint
        return Response(self._metrics.show(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def root(self, request: Request) -> Response:
        return RedirectResponse(f"{request.scope.get('root_path', '')}/docs", 307)


def _json(message: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(message), status, media_type="application/json")
