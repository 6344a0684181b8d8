"""The thread on which all talk with MCP servers happens, whichever loop a caller is on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import TypeVar, final

T = TypeVar("T")

_JOIN_S = 30.0


@final
class LoopThread:
    """One event loop on one thread, which callers on any other loop can use.

    A connection to a server belongs to the task that made it, so it needs a loop that lasts as
    long as itself. A caller's does not: a sync caller has none between two calls.
    """

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(
            target=_serve, args=(self.loop,), name="envweave-mcp", daemon=True
        )
        self._thread.start()
        self._stop = weakref.finalize(self, _stop, self.loop)
        self._stop.atexit = False

    async def run(self, make: Callable[[], Awaitable[T]]) -> T:
        """Run what `make` returns on the thread, and wait for it on the caller's loop.

        Cancelling the caller cancels it.
        """

        async def made() -> T:
            return await make()

        running = made()
        try:
            future = asyncio.run_coroutine_threadsafe(running, self.loop)
        except RuntimeError:  # it is closed
            running.close()
            raise
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Cancel what is left, and end the thread. Harmless twice."""
        if self.owner != os.getpid():
            self._stop.detach()
            return
        self._stop()
        self._thread.join(_JOIN_S)


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # it is closed
        loop.call_soon_threadsafe(loop.stop)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=_JOIN_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
