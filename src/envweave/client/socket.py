"""A WebSocket over a blocking socket: no thread, no event loop.

The kernel enforces time limits. A Python socket with a timeout polls before every `send` and
`recv`, which are two more system calls a step. Only TLS uses Python's timeouts.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import final

from envweave.client.address import Address
from envweave.client.errors import broken, closed, not_envweave, refused, unreachable
from envweave.errors import ConnectionLostError, DeadlineError, WireError
from envweave.lifetime import OwnerProcess
from envweave.wire.polling import SPIN_S, SpinBackoff, has_cores
from envweave.wire.websocket import MAX_MESSAGE_BYTES, FrameStream, Handshake, Message

CONNECT_S = 10.0
"""How long connecting may take, handshake included."""

ANSWER_S = 60.0
"""How long a server may take to describe itself: it may have to make its first environment."""

_LAST_WORDS_S = 0.5
_CHUNK = 1 << 16
_BUFFER = 1 << 18  # most messages are read at once
_LARGEST_CHUNK = 1 << 22
_COARSE_S = 1.0  # longer time limits are checked this often: each change is a system call
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))


def tune(connection: socket.socket) -> None:
    """Send small messages at once, and detect a peer that disappeared without closing."""
    if connection.family == getattr(socket, "AF_UNIX", None):
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


@final
class BlockingSocket:
    """One WebSocket to a server.

    Args:
        address: Where the server is.
        path: The path of the endpoint, after the address's prefix.
        headers: Additional headers of the handshake.
        subprotocols: The subprotocols to offer.
        connect_timeout_s: How long connecting may take, handshake included.
        max_message_bytes: The largest message that is accepted from the server.

    Attributes:
        subprotocol: The subprotocol that the server chose; `None` if it chose none.
        may_spin: Whether to poll for the next message for a moment before sleeping. Waking up takes
            longer than a quick step. Set it while the cores of this machine are otherwise idle.

    Raises:
        ConnectionLostError: No server answers there.
        AccessError: The server refuses this caller.
        ServerError: The endpoint is not a WebSocket.
    """

    def __init__(
        self,
        address: Address,
        path: str = "/ws",
        *,
        headers: Mapping[str, str] | None = None,
        subprotocols: Iterable[str] = (),
        connect_timeout_s: float = CONNECT_S,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._address = address
        self._stream = FrameStream(max_message_bytes)
        self._messages: deque[Message] = deque()
        self._buffer = memoryview(bytearray(_BUFFER))
        self._owner = OwnerProcess()
        self.may_spin = False
        self._is_plain = not address.is_secure
        self._can_spin = self._is_plain and address.is_local and has_cores()
        self._backoff = SpinBackoff()
        self._timeout_s: float | None = connect_timeout_s
        ends_s = time.monotonic() + connect_timeout_s
        self._socket = _connect(address, connect_timeout_s)
        if self._is_plain:
            self._socket.settimeout(None)
            self._timeout_s = None
        try:
            handshake = Handshake(
                address.host_header,
                address.prefix + path,
                subprotocols=subprotocols,
                headers=headers,
            )
            self._shake_hands(handshake, ends_s)
        except BaseException:
            self.drop()
            raise
        self.subprotocol = handshake.subprotocol

    def _shake_hands(self, handshake: Handshake, ends_s: float) -> None:
        try:
            self._send_all(handshake.request, ends_s - time.monotonic())
            while not (handshake.is_done or handshake.is_refused):
                left_s = ends_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError("it did not answer in time")
                self._set_timeout(left_s)
                try:
                    chunk = self._socket.recv(_CHUNK)
                except BlockingIOError:
                    continue
                if not chunk and handshake.refusal is not None:
                    break  # a body without a content-length ends here
                if not chunk:
                    raise broken(self._address, "the server hung up during the handshake")
                rest = handshake.receive(chunk)
                if rest:
                    self._messages.extend(self._stream.receive(rest))
        except ConnectionLostError:
            raise
        except WireError as error:
            raise not_envweave(self._address, str(error)) from None
        except OSError as error:
            raise unreachable(self._address, error) from None
        if handshake.refusal is not None:
            raise refused(self._address, handshake.refusal)

    def send(self, data: str | bytes, timeout_s: float | None = None) -> None:
        """Send a message: a `str` as text, `bytes` as binary.

        Raises:
            DeadlineError: It could not be sent within `timeout_s`; part of it may have been.
            ConnectionLostError: The connection is gone.
            WireError: The message is too large for the server.
        """
        stream = self._stream
        frame = stream.text(data) if isinstance(data, str) else stream.binary(data)
        self._send(frame, timeout_s)

    def send_text(self, data: bytes, timeout_s: float | None = None) -> None:
        """Send a text message that is encoded already."""
        self._send(self._stream.text(data), timeout_s)

    def _send(self, frame: bytes | bytearray, timeout_s: float | None) -> None:
        try:
            self._send_all(frame, timeout_s)
        except OSError as error:
            if timeout_s is not None and isinstance(error, TimeoutError):
                raise DeadlineError(
                    f"The server at {self._address.url} did not read the message in time."
                ) from None
            self._read_close_reason()
            raise broken(self._address, str(error)) from None

    def _send_all(self, frame: bytes | bytearray, timeout_s: float | None) -> None:
        """Send all of it within a time limit.

        Raises:
            TimeoutError: That was not possible.
            OSError: The connection is gone.
        """
        if not self._is_plain:
            self._set_timeout(timeout_s)
            self._socket.sendall(frame)
            return
        try:
            sent = self._socket.send(frame, socket.MSG_DONTWAIT)
            if sent == len(frame):
                return
        except BlockingIOError:
            sent = 0
        ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        left = memoryview(frame)[sent:]
        while left:
            # The kernel limits each call, and a peer that reads slowly lets many of them return.
            limit_s = 0.0 if ends_s is None else max(ends_s - time.monotonic(), 1e-6)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(limit_s))
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                raise TimeoutError("timed out") from None
            if left and ends_s is not None and time.monotonic() >= ends_s:
                raise TimeoutError("timed out")

    def _read_close_reason(self) -> None:
        """Read why the server closed the connection in the middle of a message.

        Raises:
            WireError: The message is too large for it.
        """
        ends_s = time.monotonic() + _LAST_WORDS_S
        with contextlib.suppress(ConnectionLostError, DeadlineError):
            while True:
                self._read(ends_s)

    def fileno(self) -> int:
        """Return the file descriptor to poll. Messages that are buffered here do not wake it."""
        return self._socket.fileno()

    def receive(self, timeout_s: float | None = None) -> Message:
        """Wait for the next message, without limit or for `timeout_s`.

        Raises:
            DeadlineError: None came in time. The connection can still be used.
            ConnectionLostError: The connection is gone.
            WireError: The data is not a valid WebSocket frame, or a message was too large.
        """
        ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        messages = self._messages
        while not messages:
            self._read(ends_s)
        return messages.popleft()

    def _read(self, ends_s: float | None) -> None:
        stream = self._stream
        if stream.close_code is not None:
            raise closed(self._address, stream.close_code, stream.close_reason)
        left_s = None
        if ends_s is not None:
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                raise DeadlineError(f"The server at {self._address.url} did not answer in time.")
        chunk: bytes | memoryview | None = None
        if self.may_spin and self._can_spin and self._backoff.is_due():
            chunk = self._spin()
        if chunk is None:
            chunk = self._wait(left_s)
            if chunk is None:
                return
        if not chunk:
            raise broken(self._address, "the server hung up")
        try:
            self._messages.extend(stream.receive(chunk))
        finally:
            if stream.has_answers:
                with contextlib.suppress(OSError):  # the next read reports it
                    self._send_all(stream.answers(), CONNECT_S)

    def _wait(self, left_s: float | None) -> bytes | memoryview | None:
        """Return what the server sent; `None` if nothing came in time."""
        size = self._stream.needed
        try:
            self._set_timeout(left_s)
            if size <= _BUFFER:
                return self._buffer[: self._socket.recv_into(self._buffer)]
            return self._socket.recv(min(size, _LARGEST_CHUNK))
        except BlockingIOError:
            return None
        except TimeoutError as error:
            if left_s is None or self._is_plain:  # from the kernel: the connection is dead
                raise broken(self._address, str(error)) from None
            return None
        except OSError as error:
            raise broken(self._address, str(error)) from None

    def _spin(self) -> memoryview | None:
        """Poll for what the server sends; `None` if nothing comes within a moment."""
        clock, receive, buffer = time.perf_counter, self._socket.recv_into, self._buffer
        ends_s = clock() + SPIN_S
        while clock() < ends_s:
            try:
                size = receive(buffer, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError as error:
                raise broken(self._address, str(error)) from None
            self._backoff.record(arrived=True)
            return buffer[:size]
        self._backoff.record(arrived=False)
        return None

    def _set_timeout(self, timeout_s: float | None) -> None:
        """Limit the next read; on a plain connection a long limit may end early."""
        if self._is_plain and timeout_s is not None:
            timeout_s = min(max(timeout_s, 1e-6), _COARSE_S)
        if timeout_s == self._timeout_s:  # each change is a system call
            return
        self._timeout_s = timeout_s
        if self._is_plain:
            limit = _timeval(timeout_s or 0.0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        else:
            self._socket.settimeout(timeout_s)

    def detach(self) -> tuple[socket.socket, FrameStream, list[Message]]:
        """Return the socket, its frame parser and the messages received so far."""
        return self._socket, self._stream, list(self._messages)

    def close(self) -> None:
        """Send a close frame, and close. May be called twice."""
        if self._owner.is_current and self._socket.fileno() >= 0:
            with contextlib.suppress(OSError):
                self._send_all(self._stream.close(), _LAST_WORDS_S)
                self._set_timeout(_LAST_WORDS_S)
                self._socket.shutdown(socket.SHUT_WR)
                # To the end: closing with unread data would discard what we sent last.
                ends_s = time.monotonic() + _LAST_WORDS_S
                while time.monotonic() < ends_s and self._socket.recv(_CHUNK):
                    pass
        self.drop()

    def drop(self) -> None:
        """Close without a close frame; a forked copy does not harm its parent's connection."""
        self._socket.close()


def _timeval(seconds: float) -> bytes:
    """Return a time limit as the kernel takes it; 0 for none."""
    whole = int(seconds)
    return struct.pack("@ll", whole, int((seconds - whole) * 1e6))


def _connect(address: Address, timeout_s: float) -> socket.socket:
    connection: socket.socket | None = None
    try:
        if address.socket_path is not None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(timeout_s)
            connection.connect(address.socket_path)
            return connection
        connection = socket.create_connection((address.host, address.port), timeout_s)
        tune(connection)
        if address.is_secure:
            import ssl  # slow to import, and rarely needed

            context = ssl.create_default_context()
            connection = context.wrap_socket(connection, server_hostname=address.host)
    except (OSError, UnicodeError) as error:
        if connection is not None:
            connection.close()
        raise unreachable(address, error) from None
    return connection
