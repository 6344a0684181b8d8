"""An event loop of our own, for a sync caller of async environments."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar, final

from envweave.errors import BusyError, CallOrderError
from envweave.session.deadlines import GRACE_S

logger = logging.getLogger("envweave.session")

T = TypeVar("T")


@final
class PrivateLoop:
    """An event loop that nobody else runs on.

    It runs in the caller's thread. Where the caller is itself inside a running loop (a
    notebook), which allows no second one in the same thread, it runs in one owned thread,
    which `close` joins.

    Args:
        is_patient: Whether `close` waits for tasks and threads that environments left running
            until they end. Otherwise it waits a moment, and leaves them to themselves.
    """

    def __init__(self, *, is_patient: bool = True) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread: ThreadPoolExecutor | None = None
        self._workers: ThreadPoolExecutor | None = None  # of a loop that may not wait for them
        if not is_patient:
            self._workers = ThreadPoolExecutor(thread_name_prefix="envweave-worker")
            self._loop.set_default_executor(self._workers)
        self._idle_s = 0.0
        self._stopped_s = time.monotonic()
        self._owner = os.getpid()

    @property
    def is_inherited(self) -> bool:
        """Whether it was made before this process was forked, and belongs to the parent."""
        return self._owner != os.getpid()

    @property
    def is_closed(self) -> bool:
        """Whether `close` has been called."""
        return self._loop.is_closed()

    def idle_s(self) -> float:
        """Return how many seconds the loop has stood still, up to its last start."""
        return self._idle_s

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end and return what it returns. An interrupt cancels it first.

        Raises:
            CallOrderError: See `refuse_misuse`.
        """
        try:
            self.refuse_misuse()
        except CallOrderError:
            work.close()
            raise
        self._idle_s += time.monotonic() - self._stopped_s
        try:
            return self._run_here_or_apart(self._loop.create_task(work))
        finally:
            self._stopped_s = time.monotonic()

    def refuse_misuse(self) -> None:
        """Refuse callers who must not use it now.

        Raises:
            BusyError: Another thread runs something on it.
            CallOrderError: It belongs to the process that this one was forked from.
        """
        if self.is_inherited:  # what its loop waits on, both processes would
            raise CallOrderError(
                "This environment was made before this process was forked, and belongs to its "
                "parent. Make one in this process."
            )
        if self._loop.is_running():
            raise BusyError("Another thread is in a call on the same environment. Wait for it.")

    def _run_here_or_apart(self, task: asyncio.Task[T]) -> T:
        if not _is_loop_running():
            return self._complete(task)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="envweave-loop")
        running = self._thread.submit(self._complete, task)
        try:
            return running.result()
        except BaseException:
            if not running.done():
                self._loop.call_soon_threadsafe(task.cancel)
                wait([running])
            raise

    def _complete(self, task: asyncio.Task[T]) -> T:
        try:
            return self._run_on(task)
        except BaseException:
            if not task.done():
                task.cancel()
                self._run_on(self._loop.create_task(asyncio.wait([task])))
            raise

    def _run_on(self, task: asyncio.Task[T]) -> T:
        while True:
            try:
                return self._loop.run_until_complete(task)
            except RuntimeError:
                if task.done() or self._loop.is_closed() or self._loop.is_running():
                    raise
                # A stop was left over from a run that was interrupted; go on.

    def close(self) -> None:
        """Cancel what still runs, close the loop and join the thread.

        Raises:
            CallOrderError: See `refuse_misuse`; it stays open.
        """
        self.refuse_misuse()
        try:
            self.run(self._wind_up())
            if self._workers is not None:
                _dismiss(self._workers)
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=True)
            self._loop.close()

    async def _wind_up(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        everybody = asyncio.gather(*left, return_exceptions=True)
        if self._workers is None:
            await everybody
        else:
            await asyncio.wait((everybody,), timeout=GRACE_S)
            if not everybody.done():
                logger.warning(
                    "%d tasks were cancelled and go on; nobody waits for them", len(left)
                )
        await self._loop.shutdown_asyncgens()
        if self._workers is None:
            await self._loop.shutdown_default_executor()


def _is_loop_running() -> bool:
    """Whether the caller is itself inside a running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _dismiss(workers: ThreadPoolExecutor) -> None:
    """Wait a moment for threads to end. A thread cannot be interrupted."""
    waiting = threading.Thread(target=workers.shutdown, daemon=True)
    waiting.start()
    waiting.join(GRACE_S)
    if waiting.is_alive():
        logger.warning("threads that an environment started are still running")
