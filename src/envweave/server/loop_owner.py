"""An event loop of its own, for an application that nobody tells when it starts and stops.

An ASGI server tells an application by its lifespan, and then runs it on one loop from start to
stop. Where the application is mounted in another one, or a test calls it without a lifespan, it
may be called from one loop now and another one later, while its sessions belong to one loop only.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

CLOSE_S = 10.0
"""How long the end of the process waits for what is left to be closed."""


@final
class ServerLoopThread:
    """A loop that runs in a thread, until it is let go of, or the end of the process."""

    def __init__(self, stop: Callable[[], Awaitable[None]]) -> None:
        self.loop = asyncio.new_event_loop()
        thread = threading.Thread(
            target=_run, args=(self.loop,), name="envweave-server", daemon=True
        )
        thread.start()
        weakref.finalize(self, _end, self.loop, thread, stop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _end(
    loop: asyncio.AbstractEventLoop, thread: threading.Thread, stop: Callable[[], Awaitable[None]]
) -> None:
    async def finish() -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await stop()
        finally:
            loop.call_soon(loop.stop)

    asyncio.run_coroutine_threadsafe(finish(), loop)
    if threading.current_thread() is not thread:
        thread.join(2 * CLOSE_S)


@final
class LoopOwner:
    """The loop of an application: its server's, or else one in a thread of its own.

    Args:
        begin: Called when it has a new loop, before anything runs there.
        stop: Called on a loop of its own before that ends.
    """

    def __init__(self, begin: Callable[[], None], stop: Callable[[], Awaitable[None]]) -> None:
        self._begin = begin
        self._stop = stop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: ServerLoopThread | None = None
        self._lock = threading.Lock()  # two threads may make the first call

    def settle(self) -> bool:
        """Take the loop which runs now, from start to stop; return whether there was none."""
        with self._lock:
            if self._loop is not None:
                return False
            self._begin()
            self._loop = asyncio.get_running_loop()
            return True

    def leave(self) -> None:
        """Let go of the loop, which stops."""
        self._loop = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop; where nobody settled, it is started when it is first needed."""
        loop = self._loop
        if loop is None:
            with self._lock:
                if self._loop is None:
                    self._begin()
                    self._thread = ServerLoopThread(self._stop)
                    self._loop = self._thread.loop
                loop = self._loop
        return loop


@final
class RunningLoop:
    """Runs an application on its one loop, as pure ASGI middleware."""

    def __init__(self, app: ASGIApp, home: LoopOwner) -> None:
        self.app = app
        self._home = home

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on, to this loop or to the application's own."""
        here = asyncio.get_running_loop()
        if scope["type"] == "lifespan" or here is (there := self._home.loop):
            await self.app(scope, receive, send)
            return

        async def receive_there() -> Message:
            message: Message = await _on(here, receive())
            return message

        async def send_there(message: Message) -> None:
            await _on(here, send(message))

        await _on(there, self.app(scope, receive_there, send_there))


async def _on(loop: asyncio.AbstractEventLoop, work: Awaitable[Any]) -> Any:
    """Do something on another loop, and wait for it on this one."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_of(work), loop))


async def _of(work: Awaitable[Any]) -> Any:
    return await work
