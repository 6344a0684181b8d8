"""A server on loopback that speaks `POST /v1/chat/completions`, with a scripted model behind it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Model = Callable[[list[dict[str, str]]], Any]
"""Takes the messages; returns a text, or a `Failure`."""


class Failure(Exception):
    """Answer with this status instead of a completion."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class ChatServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, model: Model, api_key: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model = model
        self.api_key = api_key
        self.requests: list[dict[str, Any]] = []

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            self._answer(200, self._complete(body))
        except Failure as failure:
            kind = "invalid_request_error" if failure.status < 500 else "server_error"
            error = {"message": str(failure), "type": kind, "param": None, "code": None}
            self._answer(failure.status, {"error": error}, failure.headers)

    def _complete(self, body: bytes) -> dict[str, Any]:
        if self.path != "/v1/chat/completions":
            raise Failure(404, f"Invalid URL (POST {self.path})")
        if self.headers["Authorization"] != f"Bearer {self.server.api_key}":
            raise Failure(401, "Incorrect API key provided.")
        request = json.loads(body)
        messages = request.get("messages")
        if not isinstance(request.get("model"), str) or not messages:
            raise Failure(400, "you must provide a model and messages")
        for message in messages:
            if message.get("role") not in ("system", "user", "assistant"):
                raise Failure(400, f"Invalid value: {message.get('role')!r}.")
            if not isinstance(message.get("content"), str):
                raise Failure(400, "Invalid type for 'content'.")
        self.server.requests.append(request)
        said = self.server.model(messages)
        if not isinstance(said, str):
            return said
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": request["model"],
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": said, "refusal": None},
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }

    def _answer(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@contextlib.contextmanager
def chat_server(model: Model, api_key: str = "sk-test") -> Iterator[ChatServer]:
    server = ChatServer(model, api_key)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="chat-server")
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
