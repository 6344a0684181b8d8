"""A port of this machine that leads to a port of a pod, through the API server.

Each caller's connection has a WebSocket of its own, in which every message begins with the number
of a channel: 0 is what the two ends say to each other, 1 what the cluster says of failures.
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
from envweave.wire.websocket import ClientStream

logger = logging.getLogger("envweave.providers")

MOST_CONNECTIONS = 512
"""How many callers there may be at once."""

_DATA, _FAILURES = 0, 1
_CHUNK = 2**16
_FULL = 2**20  # more is not read while so much waits to be written
_LAST_WORDS_S = 1.0
_JOIN_S = 5.0
_DOUBT_S = 10.0
_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@final
class PortForward:
    """A port of loopback, open until `close`.

    Args:
        connect: Makes a connection to the pod: a socket with the frames of a WebSocket.
        port: Which port; `None` for one that is free.
        is_lost: Asked when a caller has waited for an answer for `doubt_s` seconds, and again
            after as many: whether none will ever come, so that its connection shall end.
        doubt_s: How long an answer may take without a question.

    Attributes:
        port: Which one it is.

    Raises:
        StartupError: The port is in use.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        port: int | None = None,
        *,
        is_lost: Callable[[], bool] = lambda: False,
        doubt_s: float = _DOUBT_S,
    ) -> None:
        self._connect = connect
        self._is_lost = is_lost
        self._doubt_s = doubt_s
        try:
            self._listener = socket.create_server(("127.0.0.1", port or 0), backlog=128)
        except OSError as error:
            raise StartupError(
                f"Port {port} of this machine is in use ({error.strerror}). Stop what listens "
                "there, or leave port out to have one that is free."
            ) from None
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()  # over the next three
        self._lines: set[_Tunnel] = set()
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
            lines = list(self._lines)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits there
        self._listener.close()
        for line in lines:
            line.hang_up()
        ends_s = time.monotonic() + _JOIN_S
        self._accepting.join(_JOIN_S)  # first: it may have a thread that is not started yet
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, ends_s - time.monotonic()))

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError as error:
                if self._listener.fileno() < 0 or self._is_closed:
                    return
                logger.warning("a connection to a pod was not taken: %s", error)
                time.sleep(0.1)  # no descriptors left, perhaps, and others may give some back
                continue
            line = _Tunnel(caller, self._is_lost, self._doubt_s)
            thread = threading.Thread(
                target=self._serve, args=(line,), name=f"envweave-line-{self.port}", daemon=True
            )
            with self._lock:
                is_welcome = not self._is_closed and len(self._lines) < MOST_CONNECTIONS
                if is_welcome:
                    self._lines.add(line)
            if is_welcome:
                is_welcome = self._begin(thread)
            if not is_welcome:
                self._forget(line)

    def _begin(self, thread: threading.Thread) -> bool:
        """Start a thread; `False` if the system has none left."""
        try:
            thread.start()
        except RuntimeError as error:
            logger.warning("a connection to a pod was not taken: %s", error)
            return False
        with self._lock:
            self._threads = {one for one in self._threads if one.is_alive()} | {thread}
        return True

    def _forget(self, line: _Tunnel) -> None:
        line.end()
        with self._lock:
            self._lines.discard(line)

    def _serve(self, line: _Tunnel) -> None:
        try:
            line.run(self._connect)
        except StartupError as error:
            # The caller finds the line dead, and asks what became of the pod.
            logger.debug("no connection to the pod: %s", error)
        except OSError as error:
            logger.debug("a connection to the pod broke: %s", error)
        finally:
            self._forget(line)


@final
class _Tunnel:
    """A caller's connection, and the one to the pod that belongs to it."""

    def __init__(self, caller: socket.socket, is_lost: Callable[[], bool], doubt_s: float) -> None:
        self._caller = caller
        self._is_lost = is_lost
        self._doubt_s = doubt_s
        self._asked_s: float | None = None  # since when the caller waits for an answer
        self._pod: Any = None
        self._is_hung_up = False
        self._stream = ClientStream()
        self._to_pod = bytearray()
        self._to_caller = bytearray()
        self._greeted: set[int] = set()
        self._is_over = False  # the pod's end

    def hang_up(self) -> None:
        """Have whoever runs it stop, from another thread."""
        self._is_hung_up = True
        for one in (self._caller, self._pod):
            if one is not None:
                with contextlib.suppress(OSError):
                    # Not the method of its own class: that of TLS takes from the other thread
                    # what it reads with.
                    socket.socket.shutdown(one, socket.SHUT_RDWR)

    def end(self) -> None:
        """Close both connections."""
        self._caller.close()
        if self._pod is not None:
            self._pod.close()

    def run(self, connect: Callable[[], Any]) -> None:
        """Carry what either end says to the other, until one of them has had enough."""
        self._pod = connect()
        if self._is_hung_up:
            return
        for one in (self._caller, self._pod):
            one.settimeout(0)
            with contextlib.suppress(OSError):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        ends_s: float | None = None  # when a caller that has hung up hears no more
        while not self._is_hung_up and (ends_s is None or time.monotonic() < ends_s):
            self._wait(self._patience_s(ends_s), ends_s is None)
            if ends_s is None and len(self._to_pod) < _FULL and not self._hear_caller():
                ends_s = time.monotonic() + _LAST_WORDS_S
            if len(self._to_caller) < _FULL:
                self._hear_pod()
            self._tell(self._pod, self._to_pod)
            self._tell(self._caller, self._to_caller)
            if self._is_over and not self._to_caller:
                return
            if self._is_in_doubt() and self._is_lost():
                return
        if not self._is_hung_up:
            self._to_pod += self._stream.close()
            self._tell(self._pod, self._to_pod)

    def _patience_s(self, ends_s: float | None) -> float | None:
        """Return for how long nothing need happen; `None` if that may be for ever."""
        limits = [] if ends_s is None else [ends_s]
        if self._asked_s is not None:
            limits.append(self._asked_s + self._doubt_s)
        return min(limits) - time.monotonic() if limits else None

    def _is_in_doubt(self) -> bool:
        """Whether the caller has waited long enough to ask; from then on it waits anew."""
        now_s = time.monotonic()
        if self._asked_s is None or now_s < self._asked_s + self._doubt_s:
            return False
        self._asked_s = now_s
        return True

    def _wait(self, timeout_s: float | None, is_heard: bool) -> None:  # noqa: FBT001 - our own
        """Wait until either end says something, or can be told something."""
        pod, caller = 0, 0
        if len(self._to_caller) < _FULL and not self._is_over:
            if isinstance(self._pod, ssl.SSLSocket) and self._pod.pending():
                return  # decrypted already, of which the system knows nothing
            pod |= select.POLLIN
        if is_heard and len(self._to_pod) < _FULL:
            caller |= select.POLLIN
        pod |= select.POLLOUT if self._to_pod else 0
        caller |= select.POLLOUT if self._to_caller else 0
        poll = select.poll()
        for one, events in ((self._pod, pod), (self._caller, caller)):
            if events:  # an end that has hung up is told whether or not anybody asks
                poll.register(one, events)
        poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)

    def _hear_caller(self) -> bool:
        """Take what the caller says; `False` if it will say no more."""
        try:
            data = self._caller.recv(_CHUNK)
        except _LATER:
            return True
        if data:
            self._to_pod += self._stream.binary(bytes((_DATA,)) + data)
            self._asked_s = time.monotonic()
        return bool(data)

    def _hear_pod(self) -> None:
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
            told = message.encode() if isinstance(message, str) else bytes(message)
            channel, said = (told[0], told[1:]) if told else (_DATA, b"")
            if channel not in self._greeted:
                self._greeted.add(channel)  # the first names the port
            elif channel == _DATA:
                self._to_caller += said
                self._asked_s = None
            elif channel == _FAILURES and said:
                logger.debug("the pod's port: %s", said.decode(errors="replace"))
                self._is_over = True
        if not data or self._stream.close_code is not None:
            self._is_over = True

    @staticmethod
    def _tell(one: Any, data: bytearray) -> None:
        if data:
            with contextlib.suppress(*_LATER):
                sent = one.send(bytes(data[:_CHUNK]))
                del data[:sent]


_FORWARD = "v4.channel.k8s.io"


def open_line(configuration: Any, url: str, authority: Mapping[str, str], timeout_s: float) -> Any:
    """Return a socket that carries the frames of a WebSocket.

    The official client does the same, but would wait for ever for an API server that hangs.

    Args:
        configuration: The official client's, which says whom to trust, and by which proxy to go.
        url: Where, beginning with `http`.
        authority: The headers that say who we are.
        timeout_s: How long each part of it may take: the connection, TLS, and the answer.

    Raises:
        websocket.WebSocketException: What answers there does not forward.
        OSError: Nobody answers, or not in time.
    """
    websocket = importlib.import_module("websocket")
    forwarding = importlib.import_module("kubernetes.stream.ws_client")
    headers = {**authority, "sec-websocket-protocol": _FORWARD}
    options: dict[str, Any] = {"header": [f"{key}: {value}" for key, value in headers.items()]}
    if configuration.proxy or configuration.proxy_headers:
        options = forwarding.websocket_proxycare(options, configuration, url, headers)
    line = websocket.WebSocket(sslopt=_tls(configuration), skip_utf8_validation=True)
    line.connect(forwarding.get_websocket_url(url), timeout=timeout_s, **options)
    return line.sock


def _tls(configuration: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"cert_reqs": ssl.CERT_NONE}
    if configuration.verify_ssl:
        certifi = importlib.import_module("certifi")
        trusted = configuration.ssl_ca_cert or certifi.where()
        told = {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": trusted}
        if configuration.assert_hostname is not None:
            told["check_hostname"] = configuration.assert_hostname
    named = {
        "certfile": configuration.cert_file,
        "keyfile": configuration.key_file,
        "server_hostname": configuration.tls_server_name,
    }
    return told | {key: value for key, value in named.items() if value}
