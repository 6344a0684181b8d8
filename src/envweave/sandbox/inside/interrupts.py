"""When the time limit may interrupt: while code runs, and never while a message is half sent."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # `signal` wraps it in enums, at a microsecond a call
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
    """The code has run for as long as it may. Raised in the code, wherever it is.

    It is an interrupt to whatever runs the code of others, as event loops and test runners do:
    they let that pass, and would go on after anything else.
    """


@final
class Interrupts:
    """Turns the host's signal into `TimeLimit`, once a cell.

    The signal comes at any time, between any two instructions of the main thread. It raises only
    between `begin` and `end`, and not where `hold` says that something must be done whole.
    """

    def __init__(self) -> None:
        self._main = _this_thread()
        self._running = False
        self._held = False
        self._pending = False
        self._interrupted = False
        self._cell = 0
        _set_handler(_INTERRUPT, self._on_signal)

    def begin(self) -> None:
        """Let the signal raise from here on, whatever the last cell made of its handler."""
        if _get_handler(_INTERRUPT) != self._on_signal:
            _set_handler(_INTERRUPT, self._on_signal)
        self._held = self._pending = self._interrupted = False
        self._cell += 1
        self._running = True

    def end(self) -> bool:
        """Let it raise no more, and say whether it came."""
        self._running = False
        return self._interrupted

    @property
    def running(self) -> bool:
        """Whether a cell runs that has not been interrupted."""
        return self._running

    def hold(self) -> None:
        """Put the signal off, in the main thread."""
        if _this_thread() == self._main:
            self._held = True

    def let(self) -> None:
        """Let the signal raise again: at once, if it came."""
        if _this_thread() == self._main:
            self._held = False
            if self._pending:
                self._pending = False
                self._raise()

    def wait(self, waiting: Callable[[], object]) -> None:
        """Call what waits and changes nothing; the signal raises out of it, though held."""
        if _this_thread() != self._main:
            waiting()
            return
        try:
            self.let()
            waiting()
        finally:
            self._held = True

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        if self._running:
            if self._held:
                self._pending = True
            elif _is_between_callbacks(frame):
                # Raised here, it would lose the callback that the loop has in its hands, and
                # `asyncio.run` would wait for a task that nobody goes on with.
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
            raise TimeLimit("The code ran for longer than it may.")


def _is_between_callbacks(frame: FrameType | None) -> bool:
    """Return whether an event loop runs there that has not called anything of the code's."""
    while frame is not None and frame.f_code.co_filename.endswith(_LOOP):
        if frame.f_code.co_name == "_run_once":
            return True
        frame = frame.f_back
    return False
