"""The files of the pages, and the headers they are sent with."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.requests import Request

_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_NAMES = frozenset(path.name for path in _FOLDER.iterdir() if path.suffix in _TYPES)

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""What a browser may do with a page: load and call nothing but this server."""


def page(name: str) -> Response:
    """Return one of the files.

    Raises:
        HTTPException: There is no such file.
    """
    if name not in _NAMES:
        raise HTTPException(404)
    path = _FOLDER / name
    headers = {**SECURITY_HEADERS, "Cache-Control": "no-cache"}
    return Response(path.read_bytes(), 200, headers, _TYPES[path.suffix])


def sign_in_page() -> Response:
    """Return the page that asks for the token, which is complete in itself."""
    content = (_FOLDER / "sign-in.html").read_bytes()
    style = content.partition(b"<style>")[2].partition(b"</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    )
    headers = {
        **SECURITY_HEADERS, "Content-Security-Policy": policy, "WWW-Authenticate": "Bearer"
    }  # fmt: skip
    return Response(content, 401, headers, _TYPES[".html"])


def data(value: Any) -> Response:
    """Return data for a page, as JSON that only the page's own scripts can read."""
    return Response(msgspec.json.encode(value), 200, SECURITY_HEADERS, "application/json")


async def asset(request: Request) -> Response:
    """Answer a request for one of the files: an endpoint with the path parameter `name`."""
    return page(request.path_params["name"])
