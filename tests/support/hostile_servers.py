"""Servers and proxies that misbehave: for clients, which must cope with it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http
import json
import random
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

from envweave.wire.encoding import MSGPACK

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

Answer = Callable[["Peer", dict[str, Any]], bool]
"""Given each call; returns whether it has dealt with it."""


class Peer:
    """One connection of a client, once the handshake is done."""

    def __init__(self, peer_socket: socket.socket, description: Any) -> None:
        self.peer_socket = peer_socket
        self._description = description

    def put(self, data: bytes, opcode: int = 2, *, is_final: bool = True) -> None:
        size = len(data)
        head = bytes([0x80 * is_final | opcode])
        if size < 126:
            head += bytes([size])
        else:
            head += b"\x7f" + struct.pack("!Q", size)
        self.peer_socket.sendall(head + data)

    def say(self, call: dict[str, Any], **reply: Any) -> bool:
        session = call.get("session", "")
        self.put(MSGPACK.encode({"id": call["id"], "session": session, **reply}))
        return True

    def serve(self, answer: Answer) -> None:
        """Answer every call as a server would, unless `answer` has dealt with it."""
        while (data := self._read()) is not None:
            plain = MSGPACK.decode(data)
            for call in plain.get("calls", [plain]):
                if not answer(self, call):
                    self.say(call, result=self._result(call["method"]))

    def _result(self, method: str) -> Any:
        return {
            "describe": self._description,
            "open": {"agents": None},
            "reset": {
                "observation": {"value": 0},
                "is_reset": True,
                "episode_id": "e-0",
                "position": [1, 0, 0, "e"],
            },
            "step": {
                "observation": {"value": 1},
                "reward": 1.0,
                "episode_id": "e-0",
                "step_index": 1,
            },
            "state": {"episode_id": "e-0", "step_count": 1},
        }.get(method)

    def _read(self) -> bytes | None:
        head = self._exactly(2)
        size = head[1] & 0x7F
        if size > 125:
            size = int.from_bytes(self._exactly(2 if size == 126 else 8), "big")
        key, data = self._exactly(4), self._exactly(size)
        if head[0] & 0x0F == 8:
            return None
        return bytes(byte ^ key[i % 4] for i, byte in enumerate(data))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.peer_socket.recv(size - len(data))
            if not chunk:
                raise ConnectionError
            data += chunk
        return data


@contextmanager
def scripted_server(behave: Callable[[Peer], None], description: Any = None) -> Iterator[str]:
    """Serve while the block runs; yield the URL. Each connection is given to `behave`."""
    listener = socket.create_server(("127.0.0.1", 0))
    sockets: list[socket.socket] = []

    def meet(peer_socket: socket.socket) -> None:
        with contextlib.suppress(OSError), peer_socket:
            _shake_hands(peer_socket)
            behave(Peer(peer_socket, description))

    def run() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer_socket, _ = listener.accept()
                sockets.append(peer_socket)
                threading.Thread(target=meet, args=(peer_socket,), daemon=True).start()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for peer_socket in sockets:
            peer_socket.close()
        thread.join(30)


def _shake_hands(peer_socket: socket.socket) -> None:
    head = b""
    while b"\r\n\r\n" not in head:
        chunk = peer_socket.recv(65536)
        if not chunk:
            raise ConnectionError
        head += chunk
    key = next(one for one in head.split(b"\r\n") if one.lower().startswith(b"sec-websocket-key:"))
    accept = base64.b64encode(hashlib.sha1(key.partition(b": ")[2] + _MAGIC).digest())
    peer_socket.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n"
        b"Sec-WebSocket-Protocol: envweave.v1.msgpack\r\n\r\n"
    )


SCHEMAS: dict[str, Any] = {
    "action": {"type": "object", "title": "Act", "properties": {"say": {"type": "string"}}},
    "observation": {"type": "object", "title": "Seen", "properties": {"echo": {}}},
    "state": {},
}


class ScriptedOpenEnvServer:
    """A scripted OpenEnv server.

    Attributes:
        url: Where it is, for `make`.
        schemas: What it says of its environment; `None` for nothing.
        requests: Every request received.
        tokens: What callers showed, at each HTTP request.
        connections: How many there were.
        left: Released when a connection has ended.
        greeting: What it says before anything is asked, and then hangs up; `None` for nothing.
        answer: Given a request and the connection, returns the reply, or `None` for none.
    """

    def __init__(self) -> None:
        self.url = ""
        self.schemas: Any = SCHEMAS
        self.requests: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []
        self.connections = 0
        self.left = threading.Semaphore(0)
        self.greeting: str | None = None
        self.answer: Callable[[dict[str, Any], ServerConnection], Any] = usual

    def look(self, _: ServerConnection, request: Request) -> Response | None:
        self.tokens.append(request.headers.get("Authorization"))
        if request.path == "/ws":
            return None
        document = self.schemas if request.path == "/schema" else {"name": "Scripted"}
        body = json.dumps(document).encode() if document is not None else b"<html>"
        headers = Headers({"Content-Length": str(len(body)), "Connection": "close"})
        return Response(http.HTTPStatus.OK, "OK", headers, body)

    def handle(self, connection: ServerConnection) -> None:
        self.connections += 1
        try:
            if self.greeting is not None:
                connection.send(self.greeting)
                return
            for frame in connection:
                request = json.loads(frame)
                self.requests.append(request)
                reply = self.answer(request, connection)
                if reply is not None:
                    connection.send(reply if isinstance(reply, str) else json.dumps(reply))
        except ConnectionClosed:
            pass
        finally:
            self.left.release()


def shown(text: Any = "", reward: Any = None, done: bool = False, **more: Any) -> dict[str, Any]:
    data = {"observation": {"echo": text}, "reward": reward, "done": done, **more}
    return {"type": "observation", "data": data}


def usual(request: dict[str, Any], _: ServerConnection) -> Any:
    """Answer as every OpenEnv server would."""
    if request["type"] == "close":
        return None
    if request["type"] == "state":
        return {"type": "state", "data": {"episode_id": "theirs", "step_count": 1, "extra": 5}}
    return shown(request.get("data", {}).get("say", ""), 1.0)


@contextmanager
def scripted_openenv_server() -> Iterator[ScriptedOpenEnvServer]:
    sly = ScriptedOpenEnvServer()
    server: Server = serve(sly.handle, "127.0.0.1", 0, process_request=sly.look, ping_interval=None)
    sly.url = f"openenv://127.0.0.1:{server.socket.getsockname()[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield sly
    finally:
        server.shutdown()
        thread.join(30)


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
                one.shutdown(socket.SHUT_RDWR)  # the forwarding thread finds it closed
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
