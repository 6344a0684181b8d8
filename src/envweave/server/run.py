"""Running a server process: uvicorn, signals, draining and exit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, final

import uvicorn

from envweave.server.app import AppState, build_plain_app
from envweave.server.dialects.uvicorn_fast_path import FastPathProtocol
from envweave.server.event_loop import ServerEventLoop
from envweave.server.listen import Listener
from envweave.server.security import HeaderLimitedProtocol

logger = logging.getLogger("envweave.server")

LEAVE_S = 5.0
"""How long connections may take to close after all sessions are closed."""


@final
class _Uvicorn(uvicorn.Server):
    """uvicorn, with signals left to us and a callback when it accepts calls."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()


@final
class Serving:
    """Serves an application on a listener until it is stopped.

    On the first SIGTERM or SIGINT the server stops accepting sessions; running episodes may
    continue for `drain_s`. The second one ends everything at once; so does the end of the process
    that holds the other end of the lifeline, if there is one.
    """

    def __init__(
        self,
        state: AppState,
        listener: Listener,
        on_ready: Callable[[str], None],
        lifeline_fd: int | None = None,
    ) -> None:
        self._state = state
        self._listener = listener
        self._lifeline_fd = lifeline_fd
        self._stopping: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._signals = 0
        self._stop_requested = asyncio.Event()
        self._server = _Uvicorn(
            uvicorn.Config(
                build_plain_app(state),
                loop="none",
                http=partial(  # type: ignore[arg-type] # any callable works
                    HeaderLimitedProtocol, head_timeout_s=state.service.options.head_timeout_s
                ),
                ws=FastPathProtocol,
                ws_max_size=state.service.options.max_message_bytes,
                # A blocking client that waits for a model cannot answer a ping.
                ws_ping_interval=None,
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=int(LEAVE_S),
                backlog=2048,
            ),
            lambda: on_ready(listener.url),
        )

    def run(self) -> int:
        """Serve until stopped, and return the exit code: 0 after a graceful stop.

        Raises:
            EnvWeaveError: The environment cannot be made.
        """
        self._loop = loop = self._new_loop()
        with _handled(self.stop), asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(self._serve())

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        """Return an event loop; one that runs no environments need not survive them."""
        if not self._state.service.options.workers:
            return ServerEventLoop()
        try:
            import uvloop
        except ImportError:  # no wheel for this platform
            return asyncio.new_event_loop()
        return uvloop.new_event_loop()

    def stop(self) -> None:
        """Begin to stop, as a signal does. May be called from any thread."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(self._on_signal)

    async def _serve(self) -> int:
        self._state.loop_owner.adopt_running_loop()
        service = self._state.service
        try:
            if self._lifeline_fd is not None:
                loop = asyncio.get_running_loop()
                loop.add_reader(self._lifeline_fd, self._on_lifeline, self._lifeline_fd)
            await self._start_or_stop(service.start())
            if not self._signals:
                await self._server.serve(sockets=[self._listener.socket])
            return 0 if self._signals < 2 else 128 + signal.SIGTERM
        finally:
            await self._finish()
            self._listener.close()

    async def _start_or_stop(self, starting: Coroutine[Any, Any, None]) -> None:
        """Wait for the start, or for a signal that stops it."""
        started = asyncio.ensure_future(starting)
        stopped = asyncio.ensure_future(self._stop_requested.wait())
        try:
            await asyncio.wait({started, stopped}, return_when="FIRST_COMPLETED")
            if started.done():
                started.result()
        finally:
            started.cancel()
            stopped.cancel()

    def _on_signal(self) -> None:
        self._signals += 1
        self._stop_requested.set()
        if self._signals == 1:
            logger.info("stopping with %d running episodes", self._state.service.table.live)
            self._stopping = asyncio.ensure_future(self._drain())
            return
        self._server.force_exit = True
        self._server.should_exit = True
        if self._stopping is not None:
            self._stopping.cancel()

    def _on_lifeline(self, fd: int) -> None:
        if not os.read(fd, 1024):
            assert self._loop is not None
            self._loop.remove_reader(fd)
            self._on_signal()
            self._on_signal()

    async def _drain(self) -> None:
        service = self._state.service
        try:
            await service.stop(service.options.drain_s)
        finally:
            self._server.should_exit = True

    async def _finish(self) -> None:
        service = self._state.service
        if self._stopping is not None:
            await asyncio.wait({self._stopping})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await service.stop()
                await service.table.close()
                await service.runtime.close()


@contextlib.contextmanager
def _handled(handle: Callable[[], None]) -> Iterator[None]:
    """Handle SIGTERM and SIGINT, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield  # its owner stops the server
        return
    names = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(name, lambda *_: handle()) for name in names]
    try:
        yield
    finally:
        for name, handler in zip(names, before, strict=True):
            signal.signal(name, handler)


def write_line(fd: int, line: bytes) -> None:
    """Write a line to a file descriptor, and close it."""
    with contextlib.suppress(OSError), os.fdopen(fd, "wb") as file:
        file.write(line + b"\n")


def leave(code: int) -> int:
    """Return the exit code; exit at once if other threads would keep the process alive.

    A synchronous call past its deadline cannot be stopped, and its thread would delay the exit for
    as long as it runs.
    """
    alive = [one for one in threading.enumerate() if one is not threading.main_thread()]
    if any(not one.daemon for one in alive):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
