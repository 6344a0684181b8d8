"""Servers for tests: in a thread of this process, with a real socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from envweave.api.serving import create_fastapi_app
from envweave.server.short_way import ShortWayProtocol


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
        ws=settings.pop("ws", ShortWayProtocol),
        ws_ping_interval=None,
        ws_per_message_deflate=False,
        ws_max_size=64 * 2**20,
        timeout_graceful_shutdown=5,
        **settings,
    )
    server = uvicorn.Server(config)
    ready = threading.Event()
    startup = server.startup

    async def start(sockets: Any = None) -> None:
        try:
            await startup(sockets)
        finally:
            ready.set()

    server.startup = start  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert ready.wait(30)
        assert server.started, "the server did not start; its log says why"
        yield url
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
        assert not thread.is_alive(), "the server did not stop"
