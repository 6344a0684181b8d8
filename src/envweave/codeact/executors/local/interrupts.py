"""When the time limit may interrupt a thread of code: while code runs, and not in our own."""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
from types import FrameType
from typing import Any, final

from envweave.sandbox.inside import interrupts

# A prototype of our own: `ctypes.pythonapi` hands everybody the same function object.
_set_exception = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)

_LOOP = ("/asyncio/base_events.py", "/selectors.py")


class TimeLimit(interrupts.TimeLimit):
    """The code has run for as long as it may.

    It is made by the interpreter, in the middle of whatever the thread does, without a message.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*(args or ("The code ran for longer than it may.",)))


TimeLimit.__module__ = interrupts.TimeLimit.__module__  # so a traceback names it the same


@final
class Interrupts:
    """Raises `TimeLimit` in one thread, at most once a cell.

    It comes between any two instructions of Python's. Code that waits in C does not see it before
    that returns; `pause` and event loops are woken.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects all that follows
        self._thread = 0
        self._running = False
        self._held = False
        self._pending = False
        self._interrupted = False
        self._cell = 0
        self._wake = threading.Event()

    def begin(self) -> None:
        """Let it raise from here on, in this thread."""
        with self._lock:
            self._thread = threading.get_ident()
            self._held = self._pending = self._interrupted = False
            self._cell += 1
            self._wake = threading.Event()
            self._running = True

    def end(self) -> bool:
        """Let it raise no more, and say whether it came. Harmless twice."""
        with self._lock:
            self._running = False
            _set_exception(self._thread, None)  # one that was set, and has not come yet
            return self._interrupted

    @property
    def running(self) -> bool:
        """Whether a cell runs that has not been interrupted."""
        return self._running and not self._interrupted

    def interrupt(self, *, again: bool = False) -> None:
        """Interrupt what runs, from any thread. Harmless when nothing runs.

        Args:
            again: Also if it was interrupted before, and went on.
        """
        with self._lock:
            if not self._running or (self._interrupted and not again):
                return
            self._interrupted = True
            if self._held:
                self._pending = True
            elif not self._told_loop():
                _set_exception(self._thread, id(TimeLimit))
        self._wake.set()

    def _told_loop(self) -> bool:
        """Have the event loop of the code raise it; say whether there is one that waits.

        Raised in the loop itself, it would lose the callback that the loop has in its hands.
        """
        loop = _loop_between_callbacks(self._thread)
        if loop is None:
            return False
        try:
            loop.call_soon_threadsafe(self._raise_in, self._cell)
        except RuntimeError:  # closed meanwhile
            return False
        return True

    def hold(self) -> None:
        """Put it off, if this is the thread of the code."""
        if threading.get_ident() == self._thread:
            with self._lock:
                self._held = True

    def let(self) -> None:
        """Let it raise again: at once, if it came."""
        if threading.get_ident() != self._thread:
            return
        with self._lock:
            self._held = False
            came, self._pending = self._pending, False
        if came:
            raise TimeLimit

    def pause(self, seconds: float) -> None:
        """Sleep, until it comes."""
        self.hold()
        try:
            self._wake.wait(seconds)
        finally:
            self.let()

    def _raise_in(self, cell: int) -> None:
        if cell == self._cell and self._running:
            raise TimeLimit


def _loop_between_callbacks(thread: int) -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in a thread and has not called anything of the code's."""
    # A copy of all frames: nothing else tells what another thread does.
    frame: FrameType | None = sys._current_frames().get(thread)  # noqa: SLF001 - the only way
    while frame is not None and frame.f_code.co_filename.endswith(_LOOP):
        if frame.f_code.co_name == "_run_once":
            found = frame.f_locals.get("self")
            return found if isinstance(found, asyncio.AbstractEventLoop) else None
        frame = frame.f_back
    return None
