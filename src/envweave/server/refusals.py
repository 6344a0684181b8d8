"""How a server says no over plain HTTP: a status, and a fault in the body."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from envweave.wire.faults import fault_of, kind_named
from envweave.wire.messages import Fault

if TYPE_CHECKING:
    from starlette.requests import Request

logger = logging.getLogger("envweave.server")


def refusal(fault: Fault, status: int | None = None, headers: Mapping[str, str] = {}) -> Response:
    """Return a fault as an HTTP response: `{"error": {"code", "message"}}`.

    Without a `status` it has the one that its code has in the table of faults.
    """
    return Response(
        msgspec.json.encode({"error": fault}),
        kind_named(fault.code).status if status is None else status,
        dict(headers),
        "application/json",
    )


def unreadable(message: str) -> Fault:
    """Return the fault of a message that cannot be read, or breaks a limit."""
    return Fault(code="unreadable", message=message)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer what the framework itself refuses: no such path, no such method, too large."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        message = f"There is nothing at {request.url.path!r}. See /docs for what there is."
        return refusal(Fault(code="not_found", message=message), 404)
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
