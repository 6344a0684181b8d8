"""Services of others, imitated on loopback: chat completions, the Prime Hub, Tinker."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from installations import ROOT, venv_python, wheel, with_envweave

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
            if message.get("role") not in ("system", "user", "assistant", "tool"):
                raise Failure(400, f"Invalid value: {message.get('role')!r}.")
            is_call = message["role"] == "assistant" and message.get("tool_calls")
            if not isinstance(message.get("content"), str | list) and not is_call:
                raise Failure(400, "Invalid type for 'content'.")
        _check_calls(messages)
        self.server.requests.append(request)
        reply = self.server.model(messages)
        if not isinstance(reply, str):
            return reply
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": request["model"],
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": reply, "refusal": None},
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


def _check_calls(messages: list[dict[str, Any]]) -> None:
    """Refuse calls without answers, and answers without calls, as OpenAI does."""
    is_open: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in is_open:
                raise Failure(400, "A 'tool' message must answer a preceding tool call.")
            is_open.discard(message["tool_call_id"])
        elif is_open:
            raise Failure(400, f"No response messages for the tool calls {sorted(is_open)}.")
        is_open |= {call["id"] for call in message.get("tool_calls") or ()}


def completion(message: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return the body of an answer with this message of the assistant."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    return {"object": "chat.completion", "choices": [choice], "usage": usage, **fields}


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


class HubRequest(NamedTuple):
    """One request: to the `"api"` or to the `"files"`, its path, and what it was shown."""

    host: str
    path: str
    authorization: str | None


@dataclass
class Release:
    """One version of an environment; `details` overrides what the API says of it."""

    filename: str
    content: bytes
    sha256: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass
class PrimeHub:
    """What the Hub holds, and how it behaves.

    Attributes:
        api_url: What `PRIME_API_BASE_URL` is set to.
        files_url: Where its index and its wheels are.
        key: The key that callers must send; `None` if none is needed.
        status: Answer every call of the API so, with `detail`.
        bare: Whether replies come without the envelope `{"data": …}`.
        redirect: Send every call of the API to this base URL.
        requests: All that were made.
    """

    api_url: str = ""
    files_url: str = ""
    key: str | None = None
    status: int | None = None
    detail: str = "no luck today"
    bare: bool = False
    redirect: str | None = None
    requests: list[HubRequest] = field(default_factory=list)
    releases: dict[tuple[str, str], dict[str, Release]] = field(default_factory=dict)

    def publish(
        self,
        env: str,
        version: str,
        files: Mapping[str, str],
        *,
        requires: Sequence[str] = (),
        **details: Any,
    ) -> Release:
        """Publish `owner/name`; the version that is published last is the latest."""
        owner, name = env.split("/")
        filename, content = wheel(name, version, files, requires)
        release = Release(filename, content, hashlib.sha256(content).hexdigest(), details)
        self.releases.setdefault((owner, name), {})[version] = release
        return release

    @property
    def downloads(self) -> list[str]:
        """The wheels that were downloaded."""
        return [one.path for one in self.requests if one.path.endswith(".whl")]

    def answer_api(self, path: str, authorization: str | None) -> tuple[int, Any]:
        if self.status is not None:
            return self.status, {"detail": self.detail}
        if self.key is not None and authorization != f"Bearer {self.key}":
            return 401, {"detail": "Invalid API key"}
        found = re.fullmatch(r"/api/v1/environmentshub/([^/]+)/([^/]+)/(versions|@.+)", path)
        if found is None:
            return 404, {"detail": "Not Found"}
        owner, name, what = found.groups()
        releases = self.releases.get((owner, name))
        if releases is None:
            return 404, {"detail": "Environment not found"}
        if what == "versions":
            return 200, self._wrapped({"versions": self._versions(releases)})
        version = what[1:] if what != "@latest" else list(releases)[-1]
        if version not in releases:
            return 404, {"detail": f"Version {version} not found"}
        return 200, self._wrapped(self._details(owner, name, version))

    def _wrapped(self, data: Any) -> Any:
        return data if self.bare else {"data": data}

    def _versions(self, releases: Mapping[str, Release]) -> list[dict[str, Any]]:
        return [
            {"version": version, "semantic_version": version, "sha256": one.sha256, "size": 1}
            for version, one in reversed(releases.items())
        ]

    def _details(self, owner: str, name: str, version: str) -> dict[str, Any]:
        release = self.releases[owner, name][version]
        data = {
            "owner": {"name": owner},
            "name": name,
            "visibility": "PUBLIC",
            "semantic_version": version,
            "content_hash": "c0ffee",
            "install_index_url": None,
            "simple_index_url": f"{self.files_url}/{owner}/simple/",
            "wheel_url": self._wheel_url(owner, name, version),
            "url_dependencies": [],
        }
        return {**data, **release.details}

    def _wheel_url(self, owner: str, name: str, version: str) -> str:
        filename = self.releases[owner, name][version].filename
        return f"{self.files_url}/files/{owner}/{name}/{version}/{filename}"

    def answer_files(self, path: str, _: str | None) -> tuple[int, Any]:
        if found := re.fullmatch(r"/([^/]+)/simple/([^/]+)/", path):
            links = [
                f'<a href="{self._wheel_url(owner, name, version)}#sha256={release.sha256}">'
                f"{release.filename}</a><br>"
                for (owner, name), releases in self.releases.items()
                if (owner, name.replace("_", "-")) == found.groups()
                for version, release in releases.items()
            ]
            page = "<!DOCTYPE html><html><body>" + "\n".join(links) + "</body></html>"
            return (200, page) if links else (404, {"detail": "Not Found"})
        if found := re.fullmatch(r"/files/([^/]+)/([^/]+)/([^/]+)/[^/]+", path):
            owner, name, version = found.groups()
            return 200, self.releases[owner, name][version].content
        return 404, {"detail": "Not Found"}


@contextmanager
def prime_hub() -> Iterator[PrimeHub]:
    """Serve an empty Hub."""
    hub = PrimeHub()
    with (
        _listening("api", hub, hub.answer_api) as hub.api_url,
        _listening("files", hub, hub.answer_files) as hub.files_url,
    ):
        yield hub


@contextmanager
def _listening(
    host: str, hub: PrimeHub, answer: Callable[[str, str | None], tuple[int, Any]]
) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            shown = self.headers.get("Authorization")
            hub.requests.append(HubRequest(host, path, shown))
            if host == "api" and hub.redirect is not None:
                self.send_response(307)
                self.send_header("Location", hub.redirect + path)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            status, body = answer(path, shown)
            kind, content = _written(body)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _written(body: Any) -> tuple[str, bytes]:
    if isinstance(body, bytes):
        return "application/octet-stream", body
    if isinstance(body, str):
        return "text/html", body.encode()
    return "application/json", json.dumps(body).encode()


PROGRAMS = ROOT / "tests/support/programs"
TINKER_KEY = "tml-loopback"
TINKER_MODEL = ["--base-model", "fake/tabular", "--tokenizer", "word_tokenizer:WordTokenizer"]
TINKER_WINDOW_MODEL = [
    *("--base-model", "fake/window", "--renderer", "qwen3_instruct"),
    *("--tokenizer", "word_tokenizer:trafficlight_tokenizer"),
]


class TinkerService:
    """The loopback service, and the trainer that is pointed at it."""

    def __init__(self, url: str, venv: str, program: str, model: Sequence[str]) -> None:
        self.url = url
        self.python = venv_python(venv)
        self.program, self.model = program, model

    def ask(self, path: str, **body):
        request = urllib.request.Request(f"{self.url}/{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)

    def command(self, *options) -> list[str]:
        program = f"envweave.examples.{self.program}"
        strict = ["-W", "error::RuntimeWarning"]
        return [str(self.python), *strict, "-m", program, *self.model, *options]

    def variables(self, **changes: str) -> dict[str, str]:
        own = {"TINKER_BASE_URL": self.url, "TINKER_API_KEY": TINKER_KEY, "OMP_NUM_THREADS": "1"}
        variables = with_envweave(**{**own, **changes})
        variables["PYTHONPATH"] += f"{os.pathsep}{PROGRAMS}"
        variables.pop("ENVWEAVE_GSM8K", None)
        return variables

    def train(self, *options, code=0, **changes: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*map(str, options)),
            env=self.variables(**changes),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done


@contextlib.contextmanager
def tinker_service(
    venv: str = "train",
    program: str = "train_gsm8k_tinker_rl",
    model: Sequence[str] = TINKER_MODEL,
) -> Iterator[TinkerService]:
    """Start the service, and end it."""
    command = [venv_python(venv), PROGRAMS / "tinker_service.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            yield TinkerService(url, venv, program, model)
        finally:
            process.terminate()


def read_run_log(run_dir: Path) -> list[dict[str, Any]]:
    """Return the objects of a run's log, `metrics.jsonl`, all of whose lines must be whole."""
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def without_time(log):
    """The log without what may differ: the time, and where the environments ran."""
    dropped = ("time_s", "env_backend", "docker_image", "num_envs")
    return [{key: value for key, value in line.items() if key not in dropped} for line in log]
