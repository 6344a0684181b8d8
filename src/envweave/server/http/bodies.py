"""Reading and writing the bodies of plain HTTP: JSON, or MessagePack for who asks for it."""

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
"""What MessagePack is called in headers."""

BODY_S = 60.0
"""How long a caller may take to send its body."""


@dataclass(frozen=True, slots=True)
class ParsedBody:
    """What a call says.

    Attributes:
        fields: By name.
        body: As it came.
    """

    fields: dict[str, Any]
    body: bytes


async def read_body(request: Request) -> bytes:
    """Return the body, as it came.

    Raises:
        HTTPException: It did not come in time.
    """
    try:
        async with asyncio.timeout(BODY_S):
            return await request.body()
    except TimeoutError:
        raise HTTPException(408, f"The body did not come within {BODY_S:g} s.") from None
    except ClientDisconnect:
        raise HTTPException(400, "The caller went away before its body had come.") from None


async def read_asked(request: Request, known: Collection[str]) -> ParsedBody:
    """Read the fields of a call; no body at all has none.

    Args:
        request: The call.
        known: What it may hold.

    Raises:
        WireError: The body cannot be read.
        OptionError: It holds a field that nobody knows.
        HTTPException: It did not come in time.
    """
    body = await read_body(request)
    if not body:
        return ParsedBody({}, body)
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    fields = (MSGPACK if sent in MSGPACK_TYPES else PLAIN_JSON).decode(body)
    if not isinstance(fields, dict):
        raise WireError(f"The body is no object with any of {', '.join(known)}.")
    for name in fields:
        if name not in known:
            raise OptionError(
                f"{request.url.path} takes no {str(name)[:80]!r}."
                f"{suggest(str(name), known)} It takes: {', '.join(known)}."
            )
    return ParsedBody(fields, body)


def written(request: Request, message: Any, status: int = 200) -> Response:
    """Return a message as the caller wants it."""
    accepted = request.headers.get("accept", "")
    if "msgpack" in accepted and any(one in accepted for one in MSGPACK_TYPES):
        return Response(MSGPACK.encode(message), status, media_type="application/msgpack")
    return Response(PLAIN_JSON.encode(message), status, media_type="application/json")


logger = logging.getLogger("envweave.server")


def refusal(
    fault: WireFault, status: int | None = None, headers: Mapping[str, str] = {}
) -> Response:
    """Return a fault as an HTTP response: `{"error": {"code", "message"}}`.

    Without a `status` it has the one that its code has in the table of faults.
    """
    return Response(
        msgspec.json.encode({"error": fault}),
        kind_by_code(fault.code).status if status is None else status,
        dict(headers),
        "application/json",
    )


def unreadable(message: str) -> WireFault:
    """Return the fault of a message that cannot be read, or breaks a limit."""
    return WireFault(code="unreadable", message=message)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer what the framework itself refuses: no such path, no such method, too large."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        message = f"There is nothing at {request.url.path!r}. See /docs for what there is."
        return refusal(WireFault(code="not_found", message=message), 404)
    if error.status_code == 405:
        taken = (error.headers or {}).get("Allow", "another method")
        message = f"{request.url.path!r} takes {taken}, not {request.method}."
    else:
        message = error.detail or HTTPStatus(error.status_code).phrase
    return refusal(unreadable(message), error.status_code, error.headers or {})


async def on_invalid(request: Request, error: Exception) -> Response:  # noqa: ARG001 - a handler
    """Answer what the framework's own validation refuses, field by field."""
    wrong: Any = getattr(error, "errors", list)()
    told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in wrong[:8])
    return refusal(unreadable(told or "The message cannot be read."), 422)


async def on_failure(request: Request, error: Exception) -> Response:
    """Answer what nobody foresaw. The log has the traceback, the caller does not."""
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return refusal(fault_of(error))
