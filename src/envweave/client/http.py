"""Plain HTTP to one server: calls one after the other, over a connection that is kept."""

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
    """A socket for `http.client`, which otherwise grants every single read its full time."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._ends_s: float | None = None

    def bound(self, timeout_s: float | None) -> None:
        """Let all that follows take so long, in all; `None` for as long as it takes."""
        self._ends_s = None if timeout_s is None else time.monotonic() + timeout_s

    def hurry(self) -> None:
        """Let the next thing take no longer than is left.

        Raises:
            TimeoutError: Nothing is left.
        """
        if self._ends_s is None:
            self._socket.settimeout(None)
            return
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left_s)

    # What `http.client` and `select` call

    def sendall(self, data: Any) -> None:
        """Send everything."""
        self.hurry()
        self._socket.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return a file to read an answer from."""
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
        self._bounded.hurry()
        return self._raw.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


_BROKEN = (OSError, http.client.HTTPException)
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # of a header


class HTTPResponse(NamedTuple):
    """What came of a call.

    Attributes:
        status: The HTTP status.
        payload: The body as plain data; `None` where it is no JSON.
    """

    status: int
    payload: Any


@final
class HttpCalls:
    """Makes calls on one server. One thread at a time.

    Args:
        address: Where it is.
        headers: Sent with every call.
        max_bytes: How large an answer may be.
        why_gone: Asked when a connection breaks: why nobody will ever answer there again, if
            that is so.

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
        """Make one call, and return what came of it, whatever the status.

        Args:
            method: `"GET"`, `"POST"` or `"DELETE"`.
            path: Where, below the server's address.
            body: What to send as JSON; `None` for nothing.
            headers: Sent on top of those of every call.
            timeout_s: How long an answer may take, from the first byte to the last.
            may_repeat: Whether the server will not do twice what it is told twice, so that the
                call is made again when the connection breaks.

        Raises:
            PlaceGoneError: The server has ended, and its provider knows why.
            ConnectionLostError: Nobody answers there, or the connection broke. Who has never
                been reached is tried once.
            DeadlineError: No answer came within `timeout_s`.
            WireError: The answer is too large.
        """
        data = None if body is None else PLAIN_JSON.encode(body)
        sent = {**self._headers, **(headers or {})}
        patience = Backoff()
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
                        f"{method} {path} had no answer from {self._address.url} within "
                        f"{timeout_s:g} s. It may still be under way there."
                    ) from None
                if self._why_gone is not None and (why := self._why_gone()) is not None:
                    raise ServerGoneError(why) from None
                pause_s = patience.pause_s(time.monotonic())
                may_try = self._was_reached and (may_repeat or not was_sent)
                if pause_s is None or not may_try:
                    how = str(error) or type(error).__name__
                    lost = broken(self._address, how) if was_sent else None
                    raise lost or unreachable(self._address, error) from error
            except BaseException:
                self.close()  # half an answer would be taken for the next
                raise
            time.sleep(pause_s)

    def _connected(self) -> http.client.HTTPConnection:
        """Return a connection that is open, as far as one can see from here."""
        if self._connection is not None and _is_readable(self._connection.sock):
            self.close()  # closed by the server, since nobody owes us anything
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
                raise http.client.IncompleteRead(b"")  # cut within its headers
            raw = self._body(response, path)
            status, stays = response.status, not response.will_close
        if not stays:
            self.close()
        try:
            return HTTPResponse(status, PLAIN_JSON.decode(raw) if raw else None)
        except WireError:
            return HTTPResponse(status, None)

    def _body(self, response: http.client.HTTPResponse, path: str) -> bytes:
        announced = response.length
        if announced is None or announced > self._max_bytes:
            raw = response.read(self._max_bytes + 1)
        else:
            raw = response.read()  # which tells when it is cut short
        if len(raw) > self._max_bytes:
            raise WireError(
                f"{self._address.url} answered {path} with more than {self._max_bytes} bytes, "
                "which is more than is read."
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
        OptionError: It cannot.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise OptionError(f"{name!r} is no name of a header. Use letters, digits and '-'.")
    if not isinstance(value, str):
        raise OptionError(f"The header {name!r} has a {type(value).__name__}, not a text.")
    if not value.isascii() or not value.isprintable():
        raise OptionError(
            f"The header {name!r} holds what no header can, such as a line break or a letter "
            "beyond ASCII. Use printable ASCII."
        )


def _is_endless(response: http.client.HTTPResponse) -> bool:
    """Whether nothing says where the body ends, though something should."""
    says_so = response.length is not None or "chunked" in response.headers.get(
        "Transfer-Encoding", ""
    )
    is_plain = response.version < 11 or response.headers.get("Connection", "").lower() == "close"
    return not says_so and not is_plain


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
    connection.auto_open = 0  # what is broken is told, not mended behind our back
    connection.sock = BoundedSocket(connection.sock)
    return connection


def _secure(host: str, port: int, *, timeout: float) -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection(
        host, port, timeout=timeout, context=ssl.create_default_context()
    )


def error_in(answer: HTTPResponse, path: str) -> EnvWeaveError:
    """Return the error that an answer of status 400 or above stands for.

    Where the server is none of ours, the status says which.
    """
    payload = answer.payload
    fault = payload.get("error") if isinstance(payload, dict) else None
    if isinstance(fault, dict) and isinstance(fault.get("code"), str):
        return error_of(WireFault(code=fault["code"], message=str(fault.get("message", ""))))
    said = f"The server answered {path} with status {answer.status}{_words(payload)}."
    if answer.status in (401, 403):
        return AccessError(said)
    if answer.status == 422:
        return ActionError(f"action: {said}") if path == "/step" else OptionError(said)
    return ServerError(said)


def _words(payload: Any) -> str:
    if isinstance(payload, dict):
        payload = payload.get("detail", payload.get("error", payload))
    return f": {str(payload)[:500]}" if payload else ""
