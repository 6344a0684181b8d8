"""The session's end of its socket, which the threads of the code share with the runner.

Whoever waits for a message reads for all: an answer goes to the thread that asked, everything
else to the main thread. One reads at a time, and the main thread comes first.
"""

from __future__ import annotations

import _thread
import os
import select
from collections import deque
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, final

from envweave.sandbox.protocol.encoding import OWN
from envweave.sandbox.protocol.framing import Frames
from envweave.sandbox.protocol.messages import (
    DESCRIPTOR,
    HEADER_BYTES,
    Called,
    ToolAnswer,
    ToSession,
)
from envweave.sandbox.protocol.plain_values import encode, read_from_host

if TYPE_CHECKING:
    import msgspec

    from envweave.sandbox.inside.interrupts import Interrupts

__builtins__ = OWN

_READ_BYTES = 8192  # a larger buffer costs more to set up than most messages to read
_READ_BYTES_MOST = 1 << 20
_LONGEST_FRAME = 1 << 31
_LOOK_AGAIN_S = 1.0
_BROKEN = 70  # EX_SOFTWARE
_new_lock = _thread.allocate_lock
_read = os.read
_write = os.write
_exit = os._exit
_encode = encode
_decode = read_from_host


class _Lock(Protocol):
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...  # noqa: FBT001, FBT002 - as it is

    def release(self) -> None: ...


class TooLargeError(ValueError):
    """A message is larger than the host takes. Nothing was sent."""


@final
class SessionChannel:
    """Sends and receives messages, from any thread.

    A thread that waits has a lock of its own, and looks again when somebody releases it.
    """

    def __init__(self, message_bytes: int, interrupts: Interrupts) -> None:
        self._message_bytes = message_bytes
        self._interrupts = interrupts
        readable = select.poll()
        readable.register(DESCRIPTOR, select.POLLIN)
        self._until_readable = readable.poll
        self._calls = count(1)
        self.start_over()

    def start_over(self) -> None:
        """Forget what was half read, and every thread that waits: they are another process's."""
        self._frames = Frames(_LONGEST_FRAME)
        self._inbox: deque[ToSession] = deque()
        self._sending: _Lock = _new_lock()
        self._reading: _Lock = _new_lock()  # held by whoever reads
        self._main_reads = False
        self._main_waits: _Lock | None = None
        self._waiting: dict[int, _Lock] = {}
        self._answers: dict[int, ToolAnswer] = {}
        self._is_cut = False

    def cut(self) -> None:
        """Make the next use of the line end this process, which is a child of the session's."""
        self._is_cut = True

    def send(self, message: msgspec.Struct) -> None:
        """Send a message, whole.

        Raises:
            TooLargeError: It is larger than the host takes.
        """
        frame = self._frame(message)
        self._interrupts.hold()
        try:
            self._send(frame)
        finally:
            self._interrupts.let()

    def receive(self) -> ToSession:
        """Return the next message. For the main thread, between cells.

        Until `share` is called no other thread reads.
        """
        if not self._main_reads:
            if not self._reading.acquire(blocking=False):
                self._take_over()
            self._main_reads = True
        if self._inbox:
            return self._inbox.popleft()
        frames = self._frames
        while True:
            frame = frames.next()
            if frame is not None:
                return _decode(frame)
            self._read_more()

    def share(self) -> None:
        """Let other threads read, while a cell runs."""
        if self._main_reads:
            self._main_reads = False
            self._leave()

    def deliver(self, answer: ToolAnswer) -> None:
        """Give an answer to the thread that waits for it; drop it if none does any more."""
        lock = self._waiting.get(answer.call)
        if lock is not None:
            self._answers[answer.call] = answer
            _wake(lock)

    def ask(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> ToolAnswer:
        """Call a tool of the host's and wait for its answer, in any thread.

        Raises:
            TooLargeError: The arguments are larger than the host takes.
        """
        interrupts = self._interrupts
        call = next(self._calls)
        frame = self._frame(Called(call, name, args, kwargs))
        waits: _Lock = _new_lock()
        waits.acquire()
        interrupts.hold()
        try:
            self._waiting[call] = waits
            self._send(frame)
            while True:
                if call in self._answers:
                    return self._answers[call]
                if self._may_read():
                    try:
                        interrupts.wait(self._until_readable)
                        self._read_for_all()
                    finally:
                        self._leave()
                else:
                    interrupts.wait(lambda: waits.acquire(timeout=_LOOK_AGAIN_S))
        finally:
            self._waiting.pop(call, None)
            self._answers.pop(call, None)
            interrupts.let()

    def _frame(self, message: msgspec.Struct) -> bytes:
        frame = _encode(message)
        size = len(frame) - HEADER_BYTES
        if size > self._message_bytes:
            raise TooLargeError(f"{size} bytes, and {self._message_bytes} is the most.")
        return frame

    def _send(self, frame: bytes) -> None:
        if self._is_cut:
            _exit(0)
        size = len(frame)
        sending = self._sending
        sending.acquire()
        try:
            sent = _write(DESCRIPTOR, frame)
            while sent < size:
                sent += _write(DESCRIPTOR, memoryview(frame)[sent:])
        except OSError:
            # Half a message cannot be taken back, and without its line a session is nobody's.
            _exit(_BROKEN)
        finally:
            sending.release()

    def _read_more(self) -> None:
        if self._is_cut:
            _exit(0)
        frames = self._frames
        size = _READ_BYTES
        if not frames.is_empty:
            size = min(max(size, frames.missing), _READ_BYTES_MOST)
        try:
            data = _read(DESCRIPTOR, size)
        except OSError:
            _exit(_BROKEN)
        if not data:
            _exit(0)
        frames.feed(data)

    def _read_for_all(self) -> None:
        self._read_more()
        while (frame := self._frames.next()) is not None:
            message = _decode(frame)
            if isinstance(message, ToolAnswer):
                self.deliver(message)
            else:
                self._inbox.append(message)

    def _may_read(self) -> bool:
        """Become the one who reads, unless somebody does, or the main thread is to come first."""
        if self._inbox or self._main_waits is not None:
            return False
        return self._reading.acquire(blocking=False)

    def _take_over(self) -> None:
        """Wait, in the main thread, until the thread that reads has got something."""
        waits: _Lock = _new_lock()
        waits.acquire()
        self._main_waits = waits
        while not self._reading.acquire(blocking=False):
            waits.acquire(timeout=_LOOK_AGAIN_S)
        self._main_waits = None

    def _leave(self) -> None:
        """Stop reading, and wake one who may go on with it."""
        self._reading.release()
        if self._main_waits is not None:
            _wake(self._main_waits)
            return
        for call in list(self._waiting):
            lock = self._waiting.get(call)
            if lock is not None and call not in self._answers:
                _wake(lock)
                return


def _wake(lock: _Lock) -> None:
    with suppress(RuntimeError):  # awake already
        lock.release()
