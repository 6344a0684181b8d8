"""A proxy that cuts connections at random points: before, within and after messages."""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import threading
from types import TracebackType
from typing import Self


class CuttingProxy:
    """Carries bytes between clients and one server, and cuts each connection after a while.

    How many bytes a connection may carry is drawn anew for each; the two ends learn of the cut
    at the same moment, wherever in a message it falls.

    Attributes:
        port: Where it listens, on loopback.
        cuts: How many connections it has cut.
        sent_by_server: Every byte that the server sent, of all connections, if it records.
    """

    def __init__(
        self,
        server: tuple[str, int] | str,
        *,
        seed: int = 0,
        mean_bytes: int = 1 << 30,
        records: bool = False,
    ) -> None:
        self._server = server
        self._rng = random.Random(seed)
        self._mean_bytes = mean_bytes
        self.cuts = 0
        self.is_cutting = True
        self.sent_by_server = bytearray()
        self._records = records
        self._servers: set[socket.socket] = set()  # the ends that the server speaks on
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._left: dict[socket.socket, list[int]] = {}  # what a pair may still carry
        self._stopping, self._stop = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._stopping, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._stopping:
                    return
                if key.fileobj is self._listener:
                    self._take()
                elif isinstance(key.fileobj, socket.socket):
                    self._carry(key.fileobj)

    def _take(self) -> None:
        client, _ = self._listener.accept()
        try:
            if isinstance(self._server, str):
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
            else:
                server = socket.create_connection(self._server)
        except OSError:
            client.close()
            return
        allowed = [int(self._rng.expovariate(1 / self._mean_bytes))]
        self._servers.add(server)
        for one, other in ((client, server), (server, client)):
            self._peers[one], self._left[one] = other, allowed
            self._selector.register(one, selectors.EVENT_READ)

    def _carry(self, source: socket.socket) -> None:
        if source not in self._peers:
            return
        try:
            chunk = source.recv(65536)
        except OSError:
            chunk = b""
        left = self._left[source]
        is_cut = self.is_cutting and len(chunk) > left[0]
        if is_cut:
            chunk = chunk[: left[0]]
            self.cuts += 1
        left[0] -= len(chunk)
        if self._records and source in self._servers:
            self.sent_by_server += chunk
        if chunk:
            with contextlib.suppress(OSError):
                self._peers[source].sendall(chunk)
        if is_cut or not chunk:
            self._drop(source)

    def _drop(self, one: socket.socket) -> None:
        for end in (one, self._peers[one]):
            self._servers.discard(end)
            self._selector.unregister(end)
            del self._left[end]
        other = self._peers.pop(one)
        del self._peers[other]
        one.close()
        other.close()

    def cut_all(self) -> None:
        """Cut the connections that there are now."""
        for one in list(self._peers):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # whoever carries finds it closed
                self.cuts += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.send(b"x")
        self._thread.join()
        for one in [*self._peers, self._listener, self._stop, self._stopping]:
            one.close()
        self._selector.close()
