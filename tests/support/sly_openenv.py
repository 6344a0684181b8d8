"""An OpenEnv server in a thread that answers, pings, hangs up and lies as it is told."""

from __future__ import annotations

import http
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

SCHEMAS: dict[str, Any] = {
    "action": {"type": "object", "title": "Act", "properties": {"say": {"type": "string"}}},
    "observation": {"type": "object", "title": "Seen", "properties": {"heard": {}}},
    "state": {},
}


class Sly:
    """What the server is told.

    Attributes:
        url: Where it is, for `make`.
        schemas: What it says of its environment; `None` for nothing.
        heard: Every request that came.
        tokens: What callers showed, at each HTTP request.
        connections: How many there were.
        left: Released when a connection has ended.
        greeting: What it says before anything is asked, and then hangs up; `None` for nothing.
        answer: Given a request and the connection, returns the reply, or `None` for none.
    """

    def __init__(self) -> None:
        self.url = ""
        self.schemas: Any = SCHEMAS
        self.heard: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []
        self.connections = 0
        self.left = threading.Semaphore(0)
        self.greeting: str | None = None
        self.answer: Callable[[dict[str, Any], ServerConnection], Any] = usual

    def look(self, _: ServerConnection, request: Request) -> Response | None:
        self.tokens.append(request.headers.get("Authorization"))
        if request.path == "/ws":
            return None
        told = self.schemas if request.path == "/schema" else {"name": "Sly"}
        body = json.dumps(told).encode() if told is not None else b"<html>"
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
                self.heard.append(request)
                reply = self.answer(request, connection)
                if reply is not None:
                    connection.send(reply if isinstance(reply, str) else json.dumps(reply))
        except ConnectionClosed:
            pass
        finally:
            self.left.release()


def shown(heard: Any = "", reward: Any = None, done: bool = False, **more: Any) -> dict[str, Any]:
    data = {"observation": {"heard": heard}, "reward": reward, "done": done, **more}
    return {"type": "observation", "data": data}


def usual(request: dict[str, Any], _: ServerConnection) -> Any:
    """Answer as every OpenEnv server would."""
    if request["type"] == "close":
        return None
    if request["type"] == "state":
        return {"type": "state", "data": {"episode_id": "theirs", "step_count": 1, "extra": 5}}
    return shown(request.get("data", {}).get("say", ""), 1.0)


@contextmanager
def sly_server() -> Iterator[Sly]:
    sly = Sly()
    server: Server = serve(sly.handle, "127.0.0.1", 0, process_request=sly.look, ping_interval=None)
    sly.url = f"openenv://127.0.0.1:{server.socket.getsockname()[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield sly
    finally:
        server.shutdown()
        thread.join(30)
