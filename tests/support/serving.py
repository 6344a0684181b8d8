"""Servers for tests: in a thread of this process, with a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from envweave.api.serving import create_fastapi_app
from envweave.server.dialects.uvicorn_fast_path import FastPathProtocol


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
    """uvicorn, which stops when it is told to, and does not look for it every tenth of a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_ready = threading.Event()
        self._is_told = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        with contextlib.suppress(RuntimeError):  # it has stopped already
            self._loop.call_soon_threadsafe(self._is_told.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await super().startup(sockets)
        finally:
            self.is_ready.set()

    async def main_loop(self) -> None:
        ticking = asyncio.ensure_future(super().main_loop())
        await self._is_told.wait()
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
