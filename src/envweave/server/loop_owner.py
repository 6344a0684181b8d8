"""The event loop that an application runs on.

An ASGI server sends lifespan events and runs the application on one loop from start to stop. An
application that is mounted in another one, or tested without a lifespan, may be called from
several loops, while its sessions belong to one loop only. It then gets a loop in its own thread.
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
"""How long process exit waits for open sessions to close."""


@final
class ServerLoopThread:
    """A loop in a thread, until it is garbage-collected or the process exits."""

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
        begin: Called when there is a new loop, before anything runs on it.
        stop: Called on the loop in its own thread before that loop ends.
    """

    def __init__(self, begin: Callable[[], None], stop: Callable[[], Awaitable[None]]) -> None:
        self._begin = begin
        self._stop = stop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: ServerLoopThread | None = None
        self._lock = threading.Lock()  # two threads may make the first call

    def adopt_running_loop(self) -> bool:
        """Use the running loop until `release`; return False if there is a loop already."""
        with self._lock:
            if self._loop is not None:
                return False
            self._begin()
            self._loop = asyncio.get_running_loop()
            return True

    def release(self) -> None:
        """Forget the adopted loop, which is about to stop."""
        self._loop = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop; one in its own thread is started if none was adopted."""
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

    def __init__(self, app: ASGIApp, owner: LoopOwner) -> None:
        self.app = app
        self._owner = owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a call, on this loop or on the application's own."""
        here = asyncio.get_running_loop()
        if scope["type"] == "lifespan" or here is (there := self._owner.loop):
            await self.app(scope, receive, send)
            return

        async def receive_there() -> Message:
            message: Message = await _on(here, receive())
            return message

        async def send_there(message: Message) -> None:
            await _on(here, send(message))

        await _on(there, self.app(scope, receive_there, send_there))


async def _on(loop: asyncio.AbstractEventLoop, work: Awaitable[Any]) -> Any:
    """Run an awaitable on another loop, and wait for it on this one."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(work), loop))


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work
