"""Bridges between blocking code and event loops.

`ToolLoop` runs `async` tools for callers without an event loop; `make_in_thread` runs blocking
constructors for callers on one. Not imported by the relay in a container, which needs no asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar, final

from envweave.errors import DeadlineError
from envweave.lifetime import OwnerProcess

_CLOSE_S = 5.0
MadeT = TypeVar("MadeT")


@final
class ToolLoop:
    """One event loop on one thread, made when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects starting and stopping the thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._owner = OwnerProcess()

    def run(self, name: str, make: Callable[[], Awaitable[Any]], left_s: float) -> Any:
        """Run the awaitable that `make` returns on the loop's thread; return its result.

        Raises:
            DeadlineError: It took longer than `left_s`, and was cancelled.
        """
        ends_s = time.monotonic() + left_s
        future: Future[ToolReturn] = asyncio.run_coroutine_threadsafe(
            awaited(make), self._started()
        )
        try:
            outcome = future.result(max(0.0, ends_s - time.monotonic()))
        except TimeoutError:
            future.cancel()
            raise DeadlineError(
                f"{name}() did not finish before the time limit of the run."
            ) from None
        except BaseException:
            future.cancel()
            raise
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or not self._owner.is_current:  # threads do not survive a fork
                self._loop = asyncio.new_event_loop()
                self._owner = OwnerProcess()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="envweave-tools", daemon=True
                )
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """Cancel running tools, and end the thread. Harmless twice."""
        with self._lock:
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is None or thread is None or not self._owner.is_current:
            return
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join(_CLOSE_S)


@final
class ToolReturn:
    """The outcome of a tool. An exception is a value here: some would end the thread it ran on."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error


def called(make: Callable[[], Any]) -> ToolReturn:
    """Call a tool; return its outcome."""
    try:
        return ToolReturn(make())
    except BaseException as error:  # noqa: BLE001 - the caller reports or raises it
        return ToolReturn(error=error)


async def awaited(make: Callable[[], Awaitable[Any]]) -> ToolReturn:
    """Call and await a tool; return its outcome."""
    try:
        return ToolReturn(await make())
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return ToolReturn(error=RuntimeError(f"the tool was cancelled: {error}"))
    except BaseException as error:  # noqa: BLE001 - the caller reports or raises it
        return ToolReturn(error=error)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=_CLOSE_S / 2))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


async def make_in_thread(make: Callable[[], MadeT], release: Callable[[MadeT], None]) -> MadeT:
    """Run `make` in a thread of the loop's executor and return its result.

    If the task is cancelled meanwhile, `release` is called with the result as soon as there is
    one, even if the loop has ended by then.
    """
    handover = _Handover(make, release)
    try:
        return await asyncio.to_thread(handover)
    except BaseException:
        handover.cancel()
        raise


@final
class _Handover(Generic[MadeT]):
    """Passes a result from the thread that makes it to the task, or releases it if cancelled."""

    def __init__(self, make: Callable[[], MadeT], release: Callable[[MadeT], None]) -> None:
        self._make = make
        self._release = release
        self._lock = threading.Lock()  # protects the two below
        self._made: list[MadeT] = []
        self._is_cancelled = False

    def __call__(self) -> MadeT:
        made = self._make()
        with self._lock:
            if not self._is_cancelled:
                self._made.append(made)
                return made
        self._release(made)
        return made

    def cancel(self) -> None:
        """Release the result, now or as soon as it is made."""
        with self._lock:
            self._is_cancelled = True
            made, self._made = self._made, []
        for one in made:
            self._release(one)
