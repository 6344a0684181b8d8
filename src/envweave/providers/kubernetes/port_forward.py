"""Forwards a local port to a port of a pod, through the API server.

Each client's connection has a separate WebSocket, in which every message begins with the number of
a channel: 0 carries the data, 1 the cluster's errors.

The official client's `kubernetes.stream.portforward` is not used: it has no listening port, no
time limit for connecting, and no bound on buffered data, it waits with `select`, which fails beyond
1024 file descriptors, and a call replaces a method of the shared client while it runs.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, final

from envweave.errors import StartupError, WireError
from envweave.wire.websocket import FrameStream

logger = logging.getLogger("envweave.providers")

MAX_CONNECTIONS = 512
"""How many clients may be connected at once."""

_DATA, _ERRORS = 0, 1
_CHUNK = 2**16
_FULL = 2**20  # nothing is read while this much waits to be written
_FLUSH_S = 1.0
_JOIN_S = 5.0
_CHECK_AFTER_S = 10.0
_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@final
class PortForward:
    """A local port that is forwarded until `close`.

    Args:
        connect: Connects to the pod: returns a socket that carries WebSocket frames.
        port: The port; `None` for a free one.
        is_lost: Called each time a client has waited `doubt_s` for data from the pod; if it
            returns true, the client's connection is closed.
        doubt_s: How long a client may wait before `is_lost` is called.

    Attributes:
        port: The port.

    Raises:
        StartupError: The port is in use.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        port: int | None = None,
        *,
        is_lost: Callable[[], bool] = lambda: False,
        doubt_s: float = _CHECK_AFTER_S,
    ) -> None:
        self._connect = connect
        self._is_lost = is_lost
        self._doubt_s = doubt_s
        try:
            self._listener = socket.create_server(("127.0.0.1", port or 0), backlog=128)
        except OSError as error:
            raise StartupError(
                f"Port {port} of this machine is in use ({error.strerror}). Stop what listens "
                "there, or leave port out to use a free one."
            ) from None
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()  # over the next three
        self._tunnels: set[_Tunnel] = set()
        self._threads: set[threading.Thread] = set()
        self._is_closed = False
        self._accepting = threading.Thread(
            target=self._accept, name=f"envweave-forward-{self.port}", daemon=True
        )
        self._accepting.start()

    def close(self) -> None:
        """Close the port and all connections, and wait for their threads. May be called twice."""
        with self._lock:
            self._is_closed = True
            tunnels = list(self._tunnels)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._listener.close()
        for tunnel in tunnels:
            tunnel.shut_down()
        ends_s = time.monotonic() + _JOIN_S
        self._accepting.join(_JOIN_S)  # first: it may be about to start another thread
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, ends_s - time.monotonic()))

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError as error:
                if self._listener.fileno() < 0 or self._is_closed:
                    return
                logger.warning("a connection to a pod was not accepted: %s", error)
                time.sleep(0.1)  # perhaps out of file descriptors; others may be closed
                continue
            tunnel = _Tunnel(client, self._is_lost, self._doubt_s)
            thread = threading.Thread(
                target=self._serve, args=(tunnel,), name=f"envweave-tunnel-{self.port}", daemon=True
            )
            with self._lock:
                is_accepted = not self._is_closed and len(self._tunnels) < MAX_CONNECTIONS
                if is_accepted:
                    self._tunnels.add(tunnel)
            if is_accepted:
                is_accepted = self._begin(thread)
            if not is_accepted:
                self._forget(tunnel)

    def _begin(self, thread: threading.Thread) -> bool:
        """Start a thread; return `False` if the system has none left."""
        try:
            thread.start()
        except RuntimeError as error:
            logger.warning("a connection to a pod was not accepted: %s", error)
            return False
        with self._lock:
            self._threads = {one for one in self._threads if one.is_alive()} | {thread}
        return True

    def _forget(self, tunnel: _Tunnel) -> None:
        tunnel.close()
        with self._lock:
            self._tunnels.discard(tunnel)

    def _serve(self, tunnel: _Tunnel) -> None:
        try:
            tunnel.run(self._connect)
        except StartupError as error:
            # The client sees a closed connection, and checks the pod.
            logger.debug("no connection to the pod: %s", error)
        except OSError as error:
            logger.debug("a connection to the pod broke: %s", error)
        finally:
            self._forget(tunnel)


@final
class _Tunnel:
    """A client's connection, and its connection to the pod."""

    def __init__(self, client: socket.socket, is_lost: Callable[[], bool], doubt_s: float) -> None:
        self._client = client
        self._is_lost = is_lost
        self._doubt_s = doubt_s
        self._waiting_since_s: float | None = None  # the client's wait for data from the pod
        self._pod: Any = None
        self._is_shut_down = False
        self._stream = FrameStream()
        self._to_pod = bytearray()
        self._to_client = bytearray()
        self._opened_channels: set[int] = set()
        self._pod_has_ended = False

    def shut_down(self) -> None:
        """Make `run` return, from another thread."""
        self._is_shut_down = True
        for one in (self._client, self._pod):
            if one is not None:
                with contextlib.suppress(OSError):
                    # Not the method of `SSLSocket`, which would remove the TLS state that the
                    # other thread reads with.
                    socket.socket.shutdown(one, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close both connections."""
        self._client.close()
        if self._pod is not None:
            self._pod.close()

    def run(self, connect: Callable[[], Any]) -> None:
        """Copy data both ways, until one of the connections ends."""
        self._pod = connect()
        if self._is_shut_down:
            return
        for one in (self._client, self._pod):
            one.settimeout(0)
            with contextlib.suppress(OSError):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        ends_s: float | None = None  # after the client has closed its side
        while not self._is_shut_down and (ends_s is None or time.monotonic() < ends_s):
            self._wait(self._time_left_s(ends_s), ends_s is None)
            if ends_s is None and len(self._to_pod) < _FULL and not self._read_client():
                ends_s = time.monotonic() + _FLUSH_S
            if len(self._to_client) < _FULL:
                self._read_pod()
            self._write(self._pod, self._to_pod)
            self._write(self._client, self._to_client)
            if self._pod_has_ended and not self._to_client:
                return
            if self._is_in_doubt() and self._is_lost():
                return
        if not self._is_shut_down:
            self._to_pod += self._stream.close()
            self._write(self._pod, self._to_pod)

    def _time_left_s(self, ends_s: float | None) -> float | None:
        """Return how long to wait for events; `None` for no limit."""
        limits = [] if ends_s is None else [ends_s]
        if self._waiting_since_s is not None:
            limits.append(self._waiting_since_s + self._doubt_s)
        return min(limits) - time.monotonic() if limits else None

    def _is_in_doubt(self) -> bool:
        """Whether the client has waited for `doubt_s`; if so, its wait starts over."""
        now_s = time.monotonic()
        if self._waiting_since_s is None or now_s < self._waiting_since_s + self._doubt_s:
            return False
        self._waiting_since_s = now_s
        return True

    def _wait(self, timeout_s: float | None, reads_client: bool) -> None:  # noqa: FBT001 - our own
        """Wait until either connection is readable, or writable if there is data for it."""
        pod, client = 0, 0
        if len(self._to_client) < _FULL and not self._pod_has_ended:
            if isinstance(self._pod, ssl.SSLSocket) and self._pod.pending():
                return  # decrypted data, which `poll` does not know of
            pod |= select.POLLIN
        if reads_client and len(self._to_pod) < _FULL:
            client |= select.POLLIN
        pod |= select.POLLOUT if self._to_pod else 0
        client |= select.POLLOUT if self._to_client else 0
        poll = select.poll()
        for one, events in ((self._pod, pod), (self._client, client)):
            if events:  # a closed connection is reported even if no event is registered
                poll.register(one, events)
        poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)

    def _read_client(self) -> bool:
        """Read from the client; return `False` if it has closed its side."""
        try:
            data = self._client.recv(_CHUNK)
        except _LATER:
            return True
        if data:
            self._to_pod += self._stream.binary(bytes((_DATA,)) + data)
            self._waiting_since_s = time.monotonic()
        return bool(data)

    def _read_pod(self) -> None:
        try:
            data = self._pod.recv(_CHUNK)
        except _LATER:
            return
        try:
            messages = self._stream.receive(data)
        except WireError as error:
            raise StartupError(f"The API server does not forward: {error}") from None
        self._to_pod += self._stream.answers()
        for message in messages:
            frame = message.encode() if isinstance(message, str) else bytes(message)
            channel, payload = (frame[0], frame[1:]) if frame else (_DATA, b"")
            if channel not in self._opened_channels:
                self._opened_channels.add(channel)  # its first message has the port's number
            elif channel == _DATA:
                self._to_client += payload
                self._waiting_since_s = None
            elif channel == _ERRORS and payload:
                logger.debug("forwarding to the pod failed: %s", payload.decode(errors="replace"))
                self._pod_has_ended = True
        if not data or self._stream.close_code is not None:
            self._pod_has_ended = True

    @staticmethod
    def _write(connection: Any, data: bytearray) -> None:
        if data:
            with contextlib.suppress(*_LATER):
                sent = connection.send(bytes(data[:_CHUNK]))
                del data[:sent]


_SUBPROTOCOL = "v4.channel.k8s.io"


def open_websocket(
    configuration: Any, url: str, auth_headers: Mapping[str, str], timeout_s: float
) -> Any:
    """Return a socket that carries WebSocket frames.

    The official client does the same, but waits forever if the API server hangs.

    Args:
        configuration: The official client's, with the trusted certificates and the proxy.
        url: The URL, beginning with `http`.
        auth_headers: The headers with the credentials.
        timeout_s: How long each part may take: the connection, TLS, and the response.

    Raises:
        websocket.WebSocketException: The server refuses to forward.
        OSError: The server does not answer, or not in time.
    """
    websocket = importlib.import_module("websocket")
    ws_client = importlib.import_module("kubernetes.stream.ws_client")
    headers = {**auth_headers, "sec-websocket-protocol": _SUBPROTOCOL}
    options: dict[str, Any] = {"header": [f"{key}: {value}" for key, value in headers.items()]}
    if configuration.proxy or configuration.proxy_headers:
        options = ws_client.websocket_proxycare(options, configuration, url, headers)
    connection = websocket.WebSocket(sslopt=_tls_options(configuration), skip_utf8_validation=True)
    connection.connect(ws_client.get_websocket_url(url), timeout=timeout_s, **options)
    return connection.sock


def _tls_options(configuration: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"cert_reqs": ssl.CERT_NONE}
    if configuration.verify_ssl:
        certifi = importlib.import_module("certifi")
        trusted = configuration.ssl_ca_cert or certifi.where()
        options = {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": trusted}
        if configuration.assert_hostname is not None:
            options["check_hostname"] = configuration.assert_hostname
    named = {
        "certfile": configuration.cert_file,
        "keyfile": configuration.key_file,
        "server_hostname": configuration.tls_server_name,
    }
    return options | {key: value for key, value in named.items() if value}
