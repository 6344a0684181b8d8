"""Reading and writing HTTP bodies: JSON, or MessagePack on request; and error responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from envweave.errors import OptionError, WireError, suggest
from envweave.wire.encoding import MSGPACK, PLAIN_JSON
from envweave.wire.faults import fault_of, kind_by_code
from envweave.wire.messages import WireFault

if TYPE_CHECKING:
    from starlette.requests import Request


MSGPACK_TYPES = ("application/msgpack", "application/vnd.msgpack", "application/x-msgpack")
"""Media types of MessagePack."""

BODY_S = 60.0
"""Time limit for receiving a body."""


@dataclass(frozen=True, slots=True)
class ParsedBody:
    """The body of a call.

    Attributes:
        fields: Its fields by name.
        body: The raw bytes.
    """

    fields: dict[str, Any]
    body: bytes


async def read_body(request: Request) -> bytes:
    """Return the raw body.

    Raises:
        HTTPException: It did not arrive in time.
    """
    try:
        async with asyncio.timeout(BODY_S):
            return await request.body()
    except TimeoutError:
        raise HTTPException(408, f"The body did not arrive within {BODY_S:g} s.") from None
    except ClientDisconnect:
        raise HTTPException(400, "The client disconnected before its body had arrived.") from None


async def read_fields(request: Request, known: Collection[str]) -> ParsedBody:
    """Return the fields of a call; an empty body has none.

    Args:
        request: The request.
        known: Names of the valid fields.

    Raises:
        WireError: The body cannot be decoded.
        OptionError: It has an unknown field.
        HTTPException: It did not arrive in time.
    """
    body = await read_body(request)
    if not body:
        return ParsedBody({}, body)
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    fields = (MSGPACK if sent in MSGPACK_TYPES else PLAIN_JSON).decode(body)
    if not isinstance(fields, dict):
        raise WireError(f"The body must be an object with any of {', '.join(known)}.")
    for name in fields:
        if name not in known:
            raise OptionError(
                f"{request.url.path} takes no {str(name)[:80]!r}."
                f"{suggest(str(name), known)} It takes: {', '.join(known)}."
            )
    return ParsedBody(fields, body)


def encoded_response(request: Request, message: Any, status: int = 200) -> Response:
    """Return a response in the encoding that the client accepts."""
    accepted = request.headers.get("accept", "")
    if "msgpack" in accepted and any(one in accepted for one in MSGPACK_TYPES):
        return Response(MSGPACK.encode(message), status, media_type="application/msgpack")
    return Response(PLAIN_JSON.encode(message), status, media_type="application/json")


logger = logging.getLogger("envweave.server")


def refusal(
    fault: WireFault, status: int | None = None, headers: Mapping[str, str] = {}
) -> Response:
    """Return a fault as an HTTP response: `{"error": {"code", "message"}}`.

    The default status is that of its code in the table of faults.
    """
    return Response(
        msgspec.json.encode({"error": fault}),
        kind_by_code(fault.code).status if status is None else status,
        dict(headers),
        "application/json",
    )


def unreadable(message: str) -> WireFault:
    """Return the fault of a message that cannot be decoded or exceeds a limit."""
    return WireFault(code="unreadable", message=message)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer errors of the framework: unknown path, unknown method, too large."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        message = f"There is nothing at {request.url.path!r}. See /docs for the paths."
        return refusal(WireFault(code="not_found", message=message), 404)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        message = f"{request.url.path!r} supports {allowed}, not {request.method}."
    else:
        message = error.detail or HTTPStatus(error.status_code).phrase
    return refusal(unreadable(message), error.status_code, error.headers or {})


async def on_invalid(request: Request, error: Exception) -> Response:  # noqa: ARG001 - a handler
    """Answer errors of the framework's own validation, field by field."""
    problems: Any = getattr(error, "errors", list)()
    text = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in problems[:8])
    return refusal(unreadable(text or "The message is invalid."), 422)


async def on_failure(request: Request, error: Exception) -> Response:
    """Answer an unexpected error. The log has the traceback; the client does not get it."""
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return refusal(fault_of(error))
