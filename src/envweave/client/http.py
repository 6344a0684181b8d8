"""Plain HTTP calls to one server, one at a time, over a persistent connection."""

from __future__ import annotations

import contextlib
import http.client
import io
import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

from envweave.client.address import Address
from envweave.client.errors import broken, unreachable
from envweave.client.managed_server import ServerGoneError
from envweave.client.socket import CONNECT_S
from envweave.errors import (
    AccessError,
    ActionError,
    DeadlineError,
    EnvWeaveError,
    OptionError,
    ServerError,
    WireError,
)
from envweave.wire.encoding import PLAIN_JSON
from envweave.wire.faults import error_of
from envweave.wire.messages import WireFault
from envweave.wire.protocol import Backoff
from envweave.wire.websocket import MAX_MESSAGE_BYTES


@final
class BoundedSocket:
    """A socket for `http.client` with one time limit over all reads, not one for each."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._ends_s: float | None = None

    def bound(self, timeout_s: float | None) -> None:
        """Set the time limit for all that follows together; `None` for no limit."""
        self._ends_s = None if timeout_s is None else time.monotonic() + timeout_s

    def apply_limit(self) -> None:
        """Set the socket's timeout to the time that is left.

        Raises:
            TimeoutError: The time is up.
        """
        if self._ends_s is None:
            self._socket.settimeout(None)
            return
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left_s)

    # Called by `http.client` and `select`

    def sendall(self, data: Any) -> None:
        """Send everything."""
        self.apply_limit()
        self._socket.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return a file to read a response from."""
        assert mode == "rb"
        return io.BufferedReader(_ResponseReader(self, self._socket.makefile("rb", buffering=0)))

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket, once its files are closed too."""
        self._socket.close()


@final
class _ResponseReader(io.RawIOBase):
    def __init__(self, bounded: BoundedSocket, raw: socket.SocketIO) -> None:
        self._bounded = bounded
        self._raw = raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._bounded.apply_limit()
        return self._raw.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


_BROKEN = (OSError, http.client.HTTPException)
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # of a header


class HTTPResponse(NamedTuple):
    """The response to a call.

    Attributes:
        status: The HTTP status.
        payload: The decoded body; `None` if it is not JSON.
    """

    status: int
    payload: Any


@final
class HttpCalls:
    """Makes calls to one server. One thread at a time.

    Args:
        address: Where it is.
        headers: Sent with every call.
        max_bytes: The largest response that is read.
        why_gone: Called when a connection breaks; returns why the server is gone for good, or
            `None`.

    Raises:
        OptionError: A header cannot be sent.
    """

    def __init__(
        self,
        address: Address,
        headers: Mapping[str, str],
        max_bytes: int = MAX_MESSAGE_BYTES,
        why_gone: Callable[[], str | None] | None = None,
    ) -> None:
        for name, value in headers.items():
            check_header(name, value)
        self._address = address
        self._max_bytes = max_bytes
        self._why_gone = why_gone
        self._headers = {
            "Host": address.host_header,
            "Accept": "application/json",
            "Content-Type": "application/json",
            **headers,
        }
        self._connection: http.client.HTTPConnection | None = None
        self._was_reached = False

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None,
        may_repeat: bool,
    ) -> HTTPResponse:
        """Make one call, and return the response, whatever its status.

        Args:
            method: `"GET"`, `"POST"` or `"DELETE"`.
            path: The path, below the server's address.
            body: Sent as JSON; `None` for no body.
            headers: Sent in addition to those of every call.
            timeout_s: How long the response may take, to its last byte.
            may_repeat: Whether the call is idempotent, so that it may be made again when the
                connection breaks.

        Raises:
            ServerGoneError: The server has ended, and its provider knows why.
            ConnectionLostError: No server answers there, or the connection broke. There is one
                attempt to reach a server that was never reached before.
            DeadlineError: No response came within `timeout_s`.
            WireError: The response is too large.
        """
        data = None if body is None else PLAIN_JSON.encode(body)
        sent = {**self._headers, **(headers or {})}
        backoff = Backoff()
        while True:
            was_sent = False
            try:
                connection = self._connected()
                was_sent = True
                return self._exchange(connection, method, path, data, sent, timeout_s)
            except _BROKEN as error:
                self.close()
                if was_sent and isinstance(error, TimeoutError):
                    raise DeadlineError(
                        f"{self._address.url} did not answer {method} {path} within "
                        f"{timeout_s:g} s. The call may still be running there."
                    ) from None
                if self._why_gone is not None and (why := self._why_gone()) is not None:
                    raise ServerGoneError(why) from None
                pause_s = backoff.pause_s(time.monotonic())
                may_try = self._was_reached and (may_repeat or not was_sent)
                if pause_s is None or not may_try:
                    how = str(error) or type(error).__name__
                    lost = broken(self._address, how) if was_sent else None
                    raise lost or unreachable(self._address, error) from error
            except BaseException:
                self.close()  # the rest of this response would be read as the next
                raise
            time.sleep(pause_s)

    def _connected(self) -> http.client.HTTPConnection:
        """Return a connection that seems to be open."""
        if self._connection is not None and _is_readable(self._connection.sock):
            self.close()  # no response is due, so the server has closed it
        if self._connection is None:
            self._connection = _open(self._address)
            self._was_reached = True
        return self._connection

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        data: bytes | None,
        headers: dict[str, str],
        timeout_s: float | None,
    ) -> HTTPResponse:
        assert isinstance(connection.sock, BoundedSocket)
        connection.sock.bound(timeout_s)
        connection.request(method, self._address.prefix + path, data, headers)
        with connection.getresponse() as response:
            if _is_endless(response):
                raise http.client.IncompleteRead(b"")  # cut off within its headers
            raw = self._body(response, path)
            status, will_close = response.status, response.will_close
        if will_close:
            self.close()
        try:
            return HTTPResponse(status, PLAIN_JSON.decode(raw) if raw else None)
        except WireError:
            return HTTPResponse(status, None)

    def _body(self, response: http.client.HTTPResponse, path: str) -> bytes:
        length = response.length
        if length is None or length > self._max_bytes:
            raw = response.read(self._max_bytes + 1)
        else:
            raw = response.read()  # raises if it is cut short
        if len(raw) > self._max_bytes:
            raise WireError(
                f"{self._address.url} answered {path} with more than {self._max_bytes} bytes, the "
                "limit of this client."
            )
        return raw

    def close(self) -> None:
        """Close the connection; the next call makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()


def check_header(name: str, value: str) -> None:
    """Refuse a header that cannot be sent; its value may be a secret, and is not shown.

    Raises:
        OptionError: It cannot be sent.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise OptionError(f"{name!r} is not a valid header name. Use letters, digits and '-'.")
    if not isinstance(value, str):
        raise OptionError(f"The header {name!r} must be a string, got {type(value).__name__}.")
    if not value.isascii() or not value.isprintable():
        raise OptionError(
            f"The header {name!r} contains characters that no header may, such as a line break "
            "or a non-ASCII letter. Use printable ASCII."
        )


def _is_endless(response: http.client.HTTPResponse) -> bool:
    """Whether the end of the body is not given, although the connection stays open."""
    is_bounded = response.length is not None or "chunked" in response.headers.get(
        "Transfer-Encoding", ""
    )
    will_close = response.version < 11 or response.headers.get("Connection", "").lower() == "close"
    return not is_bounded and not will_close


def _is_readable(sock: BoundedSocket | socket.socket | None) -> bool:
    if sock is None:
        return True
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _open(address: Address) -> http.client.HTTPConnection:
    if address.socket_path is not None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(CONNECT_S)
            sock.connect(address.socket_path)
        except BaseException:
            sock.close()
            raise
        connection = http.client.HTTPConnection("localhost")
        connection.sock = sock
    else:
        kind = _secure if address.is_secure else http.client.HTTPConnection
        connection = kind(address.host, address.port, timeout=CONNECT_S)
        connection.connect()  # sets TCP_NODELAY
    connection.auto_open = 0  # a broken connection must raise, not reconnect by itself
    connection.sock = BoundedSocket(connection.sock)
    return connection


def _secure(host: str, port: int, *, timeout: float) -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection(
        host, port, timeout=timeout, context=ssl.create_default_context()
    )


def error_in(response: HTTPResponse, path: str) -> EnvWeaveError:
    """Return the error for a response of status 400 or above.

    If it holds no fault of envweave's, the status decides.
    """
    payload = response.payload
    fault = payload.get("error") if isinstance(payload, dict) else None
    if isinstance(fault, dict) and isinstance(fault.get("code"), str):
        return error_of(WireFault(code=fault["code"], message=str(fault.get("message", ""))))
    message = f"The server answered {path} with status {response.status}{_detail(payload)}."
    if response.status in (401, 403):
        return AccessError(message)
    if response.status == 422:
        return ActionError(f"action: {message}") if path == "/step" else OptionError(message)
    return ServerError(message)


def _detail(payload: Any) -> str:
    if isinstance(payload, dict):
        payload = payload.get("detail", payload.get("error", payload))
    return f": {str(payload)[:500]}" if payload else ""
