"""Interrupting code at the time limit: only while it runs, and never within a message."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # `signal` wraps it in enums, which costs a microsecond per call
import _thread
import sys
from collections.abc import Callable
from types import FrameType
from typing import final

from envweave.sandbox.protocol.encoding import OWN
from envweave.sandbox.protocol.messages import INTERRUPT

__builtins__ = OWN

_INTERRUPT = INTERRUPT
_get_handler = _signal.getsignal
_set_handler = _signal.signal
_this_thread = _thread.get_ident
_modules = sys.modules
_LOOP = (
    "/asyncio/base_events.py",
    "/asyncio/events.py",
    "/asyncio/selector_events.py",
    "/asyncio/unix_events.py",
    "/selectors.py",
)


class TimeLimit(KeyboardInterrupt):
    """The code reached its time limit. Raised in the code, wherever it is.

    A `KeyboardInterrupt`, so that event loops, test runners and the like let it pass; after any
    other exception they would continue.
    """


@final
class Interrupts:
    """Turns the host's signal into `TimeLimit`, once per cell.

    The signal may arrive between any two instructions of the main thread. It raises only between
    `begin` and `end`, and not between `block` and `unblock`.
    """

    def __init__(self) -> None:
        self._main = _this_thread()
        self._running = False
        self._blocked = False
        self._pending = False
        self._interrupted = False
        self._cell = 0
        _set_handler(_INTERRUPT, self._on_signal)

    def begin(self) -> None:
        """Enable the signal, whatever the last cell did to its handler."""
        if _get_handler(_INTERRUPT) != self._on_signal:
            _set_handler(_INTERRUPT, self._on_signal)
        self._blocked = self._pending = self._interrupted = False
        self._cell += 1
        self._running = True

    def end(self) -> bool:
        """Disable it; return whether it fired."""
        self._running = False
        return self._interrupted

    @property
    def running(self) -> bool:
        """Whether a cell is running that has not been interrupted."""
        return self._running

    def block(self) -> None:
        """Postpone the signal, in the main thread."""
        if _this_thread() == self._main:
            self._blocked = True

    def unblock(self) -> None:
        """Let the signal raise again: at once, if it fired meanwhile."""
        if _this_thread() == self._main:
            self._blocked = False
            if self._pending:
                self._pending = False
                self._raise()

    def wait(self, wait: Callable[[], object]) -> None:
        """Call a function that only waits; the signal raises out of it, though blocked."""
        if _this_thread() != self._main:
            wait()
            return
        try:
            self.unblock()
            wait()
        finally:
            self._blocked = True

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        if self._running:
            if self._blocked:
                self._pending = True
            elif _is_between_callbacks(frame):
                # Raised here, it would lose the callback that the loop is about to run, and
                # `asyncio.run` would wait for a task that never continues.
                loop = _modules["_asyncio"]._get_running_loop()  # noqa: SLF001 - as asyncio does
                loop.call_soon_threadsafe(self._raise_in, self._cell)
            else:
                self._raise()

    def _raise_in(self, cell: int) -> None:
        if cell == self._cell:
            self._raise()

    def _raise(self) -> None:
        if self._running:
            self._running = False
            self._interrupted = True
            raise TimeLimit("The code exceeded its time limit.")


def _is_between_callbacks(frame: FrameType | None) -> bool:
    """Whether an event loop runs there that is not inside a callback of the code."""
    while frame is not None and frame.f_code.co_filename.endswith(_LOOP):
        if frame.f_code.co_name == "_run_once":
            return True
        frame = frame.f_back
    return False
