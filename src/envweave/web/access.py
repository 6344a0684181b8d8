"""How a browser, which cannot send an `Authorization` header, signs in with a token.

The token arrives once, as `?token=` of any page or from the form of the sign-in page. The response
sets a cookie and leads to the same page without the token. The cookie does not contain the token,
other sites cannot have it sent, and scripts cannot read it.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode

from starlette.responses import RedirectResponse, Response

from envweave.web.assets import SECURITY_HEADERS, sign_in_page

if TYPE_CHECKING:
    from starlette.types import Scope


def has_cookie(headers: Mapping[bytes, bytes], token: bytes) -> bool:
    """Whether a request carries the cookie of someone who signed in with this token.

    A request that a page of another origin caused does not count, not even one on another port of
    the same host, which the browser takes for the same site.
    """
    if headers.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none"):
        return False
    name, value = _cookie(token)
    pairs = (one.strip().partition("=") for one in _text(headers, b"cookie").split(";"))
    return any(
        key == name and hmac.compare_digest(given.encode(), value.encode())
        for key, _, given in pairs
    )


def sign_in(scope: Scope, headers: Mapping[bytes, bytes], token: bytes) -> Response | None:
    """Return the response to a browser that opens a page without being signed in.

    `None` if it is not a browser that opens a page. A wrong token is answered with the sign-in
    page, as no token is.
    """
    if scope["method"] != "GET" or "text/html" not in _text(headers, b"accept"):
        return None
    query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    given = [value for name, value in query if name == "token"]
    if not any(hmac.compare_digest(one.strip().encode(), token) for one in given):
        return sign_in_page()
    rest = urlencode([(name, value) for name, value in query if name != "token"])
    # One slash at the beginning: two would name another host.
    path = "/" + quote(scope["path"].lstrip("/\\"))
    url = f"{path}?{rest}" if rest else path
    if headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
        # A browser sends no strict cookie to where a link of another site is redirected to.
        response = Response(headers={**SECURITY_HEADERS, "Refresh": f"0; url={url}"})
    else:
        response = RedirectResponse(url, 303, headers=SECURITY_HEADERS)
    name, value = _cookie(token)
    response.set_cookie(
        name,
        value,
        path=scope.get("root_path") or "/",
        secure=scope["scheme"] == "https",
        httponly=True,
        samesite="strict",
    )
    return response


def _cookie(token: bytes) -> tuple[str, str]:
    """The name and value of the cookie; servers on other ports of a host share its cookies."""
    digest = hmac.digest(token, b"envweave: signed in", "sha256").hex()
    return f"envweave-{digest[:8]}", digest[8:]


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")
