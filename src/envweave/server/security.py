"""Access control: token, Host, Origin, and size and time limits of requests.

Every web page that a user opens can reach a server on the user's machine. A page of another origin
reveals itself in `Origin`; one that had its own name resolved to this machine (DNS rebinding), in
`Host`. Neither can read a token.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import msgspec
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from envweave.server.event_loop import GatheringTransport, ServerEventLoop
from envweave.server.http.bodies import refusal, unreadable
from envweave.web.access import has_cookie, sign_in
from envweave.wire.faults import kind_by_code
from envweave.wire.messages import WireFault

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from envweave.server.options import ServerOptions


logger = logging.getLogger("envweave.server")

OPEN_PATHS = frozenset({"/health", "/ready"})
"""Paths that need no token: a load balancer has none."""

OWN_DIALECT = "envweave."
"""Prefix of the subprotocols of our own dialect."""

_TEST_CLIENT = "testclient"
"""The client address of Starlette's `TestClient`, which has no network."""

_TWO_HOSTS = "The request has more than one Host header. Send one."

_FIRST_CALL_S = 10.0
"""Time that a refused client of OpenEnv's dialect has for its first call."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a client is refused."""

    status: int
    fault: WireFault
    headers: Mapping[str, str]


def _refused(status: int, message: str, **headers: str) -> Refused:
    return Refused(status, WireFault(code="access_refused", message=message), headers)


def not_served(dialect: str) -> Refused:
    """Return the refusal of a dialect that an operator did not choose."""
    return _refused(
        404, f"This server does not serve {dialect!r}. An operator can enable it with --dialects."
    )


@final
class Guard:
    """Checks every request, as pure ASGI middleware."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self.app = app
        self._token = None if options.token is None else options.token.encode()
        self._hosts = frozenset(host.lower() for host in options.allowed_hosts)
        self._origins = frozenset(one.lower().rstrip("/") for one in options.allowed_origins)
        self._limit = options.max_message_bytes
        self._is_private = options.token is None and not options.insecure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a call, or refuse it."""
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if sum(name == b"host" for name, _ in scope["headers"]) > 1:
            # A proxy in front may have checked the other one.
            refused: Refused | None = Refused(400, unreadable(_TWO_HOSTS), {})
        else:
            refused = self._check(scope, headers)
        if refused is not None:
            extra = {"status": refused.status, "client": scope.get("client")}
            logger.info("client refused", extra=extra)
        if kind == "websocket":
            if refused is None:
                await self.app(scope, receive, send)
            else:
                await refuse_socket(refused, scope, receive, send)
            return
        if refused is None:
            refused = self._check_length(headers)
        if refused is None:
            await self.app(scope, self._counted(receive), send)
        elif (page := self._sign_in(refused, scope, headers)) is not None:
            await page(scope, receive, send)
        else:
            await refusal(refused.fault, refused.status, refused.headers)(scope, receive, send)

    def _check(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Refused | None:
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._is_own_host(host, scope):
            return _refused(
                421,
                f"The Host header is {host!r}, which is not a name of this server. An operator can "
                f"allow it with --allow-host {_name_in(host)}.",
            )
        origin = headers.get(b"origin")
        if origin is not None and not self._is_own_origin(origin.decode("latin-1"), host):
            return _refused(
                403,
                f"A web page of {origin.decode('latin-1')!r} may not call this server. An operator "
                "can allow it with --allow-origin.",
            )
        if _path_in(scope) in OPEN_PATHS:
            return None
        if self._token is None:
            return _check_local(scope) if self._is_private else None
        if has_cookie(headers, self._token):
            return None
        return self._check_token(headers)

    def _sign_in(
        self, refused: Refused, scope: Scope, headers: Mapping[bytes, bytes]
    ) -> Response | None:
        """Return the response to a browser that has yet to sign in; `None` for any other."""
        if self._token is None or refused.status != 401:
            return None
        return sign_in(scope, headers, self._token)

    def _check_token(self, headers: Mapping[bytes, bytes]) -> Refused | None:
        assert self._token is not None
        header, key = headers.get(b"authorization"), headers.get(b"x-api-key")
        if header is None and key is not None:  # as clients of the Open Reward Standard send it
            header = b"Bearer " + key
        if header is None:
            message = "This server requires a token: send the header 'Authorization: Bearer TOKEN'."
            return Refused(
                401,
                WireFault(code="access_refused", message=message),
                {"WWW-Authenticate": "Bearer"},
            )
        scheme, _, token = header.partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
            message = "The token is not the one that this server was started with."
            return Refused(
                401,
                WireFault(code="access_refused", message=message),
                {"WWW-Authenticate": "Bearer"},
            )
        return None

    def _is_own_host(self, host: str, scope: Scope) -> bool:
        server = scope.get("server")
        if server is None or server[1] is None or "*" in self._hosts:
            return True  # a unix socket, which no web page can reach
        if not host:
            return True  # HTTP/1.0 without one; browsers always send it
        name = _name_in(host)
        # An address is not resolved, so DNS rebinding cannot redirect it to this machine.
        return (
            name == "localhost"
            or name.endswith(".localhost")
            or name in self._hosts
            or name == str(server[0]).lower()
            or _is_address(name)
        )

    def _is_own_origin(self, origin: str, host: str) -> bool:
        origin = origin.lower()
        if "*" in self._origins or origin in self._origins:
            return True
        return bool(host) and origin.partition("://")[2] == host.lower()

    def _check_length(self, headers: Mapping[bytes, bytes]) -> Refused | None:
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and len(length) < 20 and int(length) <= self._limit:
            return None
        return Refused(413, unreadable(self._too_large()), {"Connection": "close"})

    def _too_large(self) -> str:
        return (
            f"The body is larger than {self._limit} bytes. An operator can allow more with "
            "--max-message-bytes."
        )

    def _counted(self, receive: Receive) -> Receive:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                # Only a body without a Content-Length gets this far; the rest stays unread.
                raise HTTPException(413, self._too_large(), {"Connection": "close"})
            return message

        return counted


async def refuse_socket(refused: Refused, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a WebSocket as its dialect requires.

    Our dialect uses the status of the upgrade. OpenEnv's clients understand only an accepted
    connection, an error in reply to the first call, and a normal close.
    """
    if any(one.startswith(OWN_DIALECT) for one in scope.get("subprotocols", ())):
        if "websocket.http.response" in scope.get("extensions", {}):
            response = refusal(refused.fault, refused.status, refused.headers)
            await response(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": "access_refused"})
        return
    await receive()
    await send({"type": "websocket.accept"})
    try:
        async with asyncio.timeout(_FIRST_CALL_S):
            message = await receive()
    except TimeoutError:
        message = {}
    if message.get("type") == "websocket.disconnect":
        return
    kind = kind_by_code(refused.fault.code)
    error = {"message": refused.fault.message, "code": kind.openenv}
    text = msgspec.json.encode({"type": "error", "data": error}).decode()
    await send({"type": "websocket.send", "text": text})
    await send({"type": "websocket.close", "code": 1000})


def is_loopback(name: str) -> bool:
    """Whether a name or an address is loopback, which other machines cannot reach."""
    if name.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _check_local(scope: Scope) -> Refused | None:
    """Refuse a client on another machine, whatever address the server is bound to."""
    client, server = scope.get("client"), scope.get("server")
    if client is None:
        # A unix socket; or a client that disconnected before its address was read.
        is_here = server is None or server[1] is None or is_loopback(str(server[0]))
    else:
        is_here = client[0] in ("", _TEST_CLIENT) or is_loopback(str(client[0]))
    if is_here:
        return None
    return _refused(
        403,
        "This server has no token and accepts calls from its own machine only. An operator can "
        "set ENVWEAVE_TOKEN (or token=), or insecure=True to accept any client.",
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _name_in(host: str) -> str:
    """Return the name in a `Host` header, without its port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def _path_in(scope: Scope) -> str:
    """Return the path inside this application, wherever it is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) else path


MAX_HEAD_BYTES = 64 * 1024
"""Maximum number of bytes before a head is complete, or between two parts of a body."""


@final
class HeaderLimitedProtocol(HttpToolsProtocol):
    """One connection, with limits for the size of a head and the time to receive it.

    Args:
        *args: Arguments of uvicorn's protocol.
        head_timeout_s: Time limit for receiving a head, also for a client that sends nothing.
        **kwargs: Arguments of uvicorn's protocol.
    """

    _began: asyncio.TimerHandle | None = None
    _unparsed = 0  # bytes since the last head, or the last part of a body

    def __init__(self, *args: Any, head_timeout_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timeout_s = head_timeout_s

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """Called by the loop."""
        if type(self.loop) is ServerEventLoop:
            transport = GatheringTransport(transport, self.loop)
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._cancel_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > MAX_HEAD_BYTES and not self.transport.is_closing():
            size = f"{MAX_HEAD_BYTES} bytes"
            self._refuse("431 Request Header Fields Too Large", f"The head has more than {size}.")
        elif self._unparsed and self._is_idle:  # blank lines, which are allowed before a head
            self._expect_head()

    def on_message_begin(self) -> None:
        """Called by the parser."""
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._unparsed = 0
        self._cancel_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._unparsed = 0
        super().on_body(body)

    @property
    def _is_idle(self) -> bool:
        """Whether every request so far is answered."""
        return self.cycle is None or self.cycle.response_complete

    def _expect_head(self) -> None:
        if self._began is None:
            self._began = self.loop.call_later(self._head_timeout_s, self._on_timeout)

    def _cancel_timer(self) -> None:
        began, self._began = self._began, None
        if began is not None:
            began.cancel()

    def _on_timeout(self) -> None:
        self._began = None
        self._refuse(
            "408 Request Timeout", f"The head did not arrive within {self._head_timeout_s:g} s."
        )

    def _refuse(self, status: str, message: str) -> None:
        if self._is_idle:  # else it would look like the response to an earlier request
            body = _encode_error(unreadable(message))
            head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()


def _encode_error(fault: WireFault) -> bytes:
    return msgspec.json.encode({"error": fault})
