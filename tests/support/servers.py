"""Servers for tests: in a thread of this process, in a process, and clients without a socket."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import uvicorn

from envweave import create_fastapi_app
from envweave.client.address import parse_address
from envweave.client.connection import BlockingConnection
from envweave.client.socket import BlockingSocket
from envweave.errors import StartupError
from envweave.providers.base import WatchedProvider
from envweave.registry import EnvSpec
from envweave.server.app import AppState
from envweave.server.dialects.uvicorn_fast_path import FastPathProtocol
from envweave.server.listen import listen
from envweave.server.options import ServerOptions
from envweave.server.run import Serving
from envweave.server.runtime.local import LocalRuntime
from envweave.wire.messages import Call

if TYPE_CHECKING:
    from starlette.testclient import TestClient


@contextmanager
def served(env: Any, *args: Any, uds: Path | None = None, **options: Any) -> Iterator[str]:
    """Serve an environment while the block runs; yield the URL."""
    app = create_fastapi_app(env, *args, **options)
    with app_served(app, uds) as url:
        yield url


@contextmanager
def app_served(app: Any, uds: Path | None = None, **settings: Any) -> Iterator[str]:
    """Serve an ASGI app while the block runs, with more settings of uvicorn; yield the URL."""
    if uds is None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(uds))
        listener.listen(512)
        url = f"unix://{uds}"
    config = uvicorn.Config(
        app,
        log_level="error",
        ws=settings.pop("ws", FastPathProtocol),
        loop="envweave.server.event_loop:ServerEventLoop",
        ws_ping_interval=None,
        ws_per_message_deflate=False,
        ws_max_size=64 * 2**20,
        timeout_graceful_shutdown=5,
        **settings,
    )
    server = _Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert server.is_ready.wait(30)
        assert server.started, "the server did not start; its log says why"
        yield url
    finally:
        server.stop()
        thread.join(30)
        listener.close()
        assert not thread.is_alive(), "the server did not stop"


class _Server(uvicorn.Server):
    """uvicorn, which stops at once when asked to, instead of polling every tenth of a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_ready = threading.Event()
        self._stop_requested = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        with contextlib.suppress(RuntimeError):  # it has stopped already
            self._loop.call_soon_threadsafe(self._stop_requested.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await super().startup(sockets)
        finally:
            self.is_ready.set()

    async def main_loop(self) -> None:
        ticking = asyncio.ensure_future(super().main_loop())
        await self._stop_requested.wait()
        ticking.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for one in [*self.servers, *(sockets or [])]:
            one.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:
                    await asyncio.sleep(0.005)
        for task in self.server_state.tasks:
            task.cancel()
        await self.lifespan.shutdown()


class RecordingProvider(WatchedProvider):
    """Records what it is asked to start, as (image, configuration), and starts nothing."""

    token = None

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def start_container(self, image: str, port: int | None = None, env_vars: Any = None, **_: Any):
        self.asked.append((image, json.loads(env_vars["ENVWEAVE_CONFIG"])))
        raise StartupError("there is no engine")

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        raise AssertionError

    def stop_container(self) -> None:
        pass

    def why_gone(self) -> str | None:
        return None

    def another(self) -> RecordingProvider:
        raise AssertionError


@contextmanager
def served_by_us(env: Any, **options: Any) -> Iterator[tuple[str, LocalRuntime]]:
    """Serve an environment as `serve` does, in threads of this process; yield URL and runtime."""
    chosen = ServerOptions(**options)
    runtimes: list[LocalRuntime] = []

    def make_runtime() -> LocalRuntime:
        runtimes.append(LocalRuntime(EnvSpec("served", env), {}, chosen))
        return runtimes[-1]

    ready: list[str] = []
    is_ready = threading.Event()

    def on_ready(url: str) -> None:
        ready.append(url)
        is_ready.set()

    server = Serving(AppState(make_runtime, chosen), listen("127.0.0.1", 0), on_ready)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert is_ready.wait(20)
        yield ready[0], runtimes[-1]
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"


@dataclass
class Running:
    """A server that runs.

    Attributes:
        process: The process itself.
        url: Where it serves.
        port: The port of that.
    """

    process: subprocess.Popen[bytes]
    url: str
    port: int


@contextmanager
def process_serving(env_id: str, *, port: int = 0, **options: Any) -> Iterator[Running]:
    """Run `envweave serve` while the block runs; what is left of it is killed."""
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    reading, writing = os.pipe()
    here = Path(__file__).parent
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "envweave.cli", "serve", env_id),
            *(f"--port={port}", f"--ready-fd={writing}", *arguments),
        ],
        pass_fds=[writing],
        env={**os.environ, "PYTHONPATH": str(here)},
        stdout=subprocess.DEVNULL,
    )
    os.close(writing)
    try:
        with os.fdopen(reading) as pipe:
            line = pipe.readline()
        assert line, "the server did not start; its log says why"
        url = json.loads(line)["url"]
        yield Running(process, url, int(url.rpartition(":")[2]))
    finally:
        process.kill()
        process.wait(30)


def wait_for(claim: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait until something is so."""
    ends_s = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < ends_s, "it did not come about"
        time.sleep(0.02)


@contextmanager
def client_of(env: Any, *args: Any, **keywords: Any) -> Iterator[TestClient]:
    """Serve an environment in this process while the block runs; yield who calls it."""
    from starlette.testclient import TestClient

    app = create_fastapi_app(env, *args, **keywords)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def post_step(client: TestClient, delta: int = 1, **more: Any) -> Any:
    headers = more.pop("headers", {})
    return client.post("/step", json={"action": {"delta": delta}, **more}, headers=headers)


def error_in(response: Any) -> str:
    """The code of a refusal, whose body holds a fault and nothing else."""
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"code", "message"}
    assert "Traceback" not in body["error"]["message"]
    return f"{response.status_code} {body['error']['code']}"


WebSocket = BlockingSocket
"""A WebSocket of a client, which sends any frame that a test asks it to."""


def open_websocket(url: str, path: str | None = None, **options: Any) -> WebSocket:
    """Connect to a server, by default to its own endpoint."""
    at = () if path is None else (path,)
    return WebSocket(parse_address(url), *at, **options)


def host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def http_connection(url: str, timeout_s: float = 20.0) -> http.client.HTTPConnection:
    """Return a plain HTTP connection to a server, which sends what no client would."""
    return http.client.HTTPConnection(*host_and_port(url), timeout=timeout_s)


def lose_session(venv: Any, row: int) -> None:
    """Close the session of a row of a remote vector over another connection, if it has one."""
    transport = venv._transport
    session, ours = transport._sessions._rows[row], transport._calls.connection
    if session.loss is not None:
        return
    other = BlockingConnection(ours.address, ours.exchange.encoding)
    other.call(Call(id=session.caller.last + 1, method="close", session=session.caller.session))
    other.end()
