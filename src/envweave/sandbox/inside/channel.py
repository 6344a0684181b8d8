"""The session's end of its socket, shared by the runner and the threads of the code.

A thread that waits for a message reads for all: an answer goes to the thread that called the tool,
everything else to the main thread. One thread reads at a time, and the main thread has priority.
"""

from __future__ import annotations

import _thread
import os
import select
from collections import deque
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, final

from envweave.sandbox.protocol.decoding import read_from_host
from envweave.sandbox.protocol.encoding import OWN, encode
from envweave.sandbox.protocol.framing import Frames
from envweave.sandbox.protocol.messages import (
    DESCRIPTOR,
    HEADER_BYTES,
    Called,
    ToolAnswer,
    ToSession,
)

if TYPE_CHECKING:
    import msgspec

    from envweave.sandbox.inside.interrupts import Interrupts

__builtins__ = OWN

_READ_BYTES = 8192  # a larger buffer costs more to set up than most messages to read
_MAX_READ_BYTES = 1 << 20
_MAX_FRAME_BYTES = 1 << 31
_RECHECK_S = 1.0
_BROKEN = 70  # EX_SOFTWARE
_new_lock = _thread.allocate_lock
_read = os.read
_write = os.write
_exit = os._exit
_encode = encode
_decode = read_from_host


class _Lock(Protocol):
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...  # noqa: FBT001, FBT002 - the standard library's

    def release(self) -> None: ...


class TooLargeError(ValueError):
    """A message is larger than the host accepts. Nothing was sent."""


@final
class SessionChannel:
    """Sends and receives messages, from any thread.

    Each waiting thread has a lock of its own, and checks again when that is released.
    """

    def __init__(self, message_bytes: int, interrupts: Interrupts) -> None:
        self._message_bytes = message_bytes
        self._interrupts = interrupts
        readable = select.poll()
        readable.register(DESCRIPTOR, select.POLLIN)
        self._until_readable = readable.poll
        self._calls = count(1)
        self.reset()

    def reset(self) -> None:
        """Forget partial messages and waiting threads: they belong to the process forked from."""
        self._frames = Frames(_MAX_FRAME_BYTES)
        self._inbox: deque[ToSession] = deque()
        self._sending: _Lock = _new_lock()
        self._reading: _Lock = _new_lock()  # held by the thread that reads
        self._main_reads = False
        self._main_waits: _Lock | None = None
        self._waiting: dict[int, _Lock] = {}
        self._answers: dict[int, ToolAnswer] = {}
        self._is_disconnected = False

    def disconnect(self) -> None:
        """Make the next use of the socket end this process, which is a child of the session."""
        self._is_disconnected = True

    def send(self, message: msgspec.Struct) -> None:
        """Send a complete message.

        Raises:
            TooLargeError: It is larger than the host accepts.
        """
        frame = self._frame(message)
        self._interrupts.block()
        try:
            self._send(frame)
        finally:
            self._interrupts.unblock()

    def receive(self) -> ToSession:
        """Return the next message. For the main thread, between cells.

        No other thread reads until `share` is called.
        """
        if not self._main_reads:
            if not self._reading.acquire(blocking=False):
                self._wait_to_read()
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
        """Let other threads read while a cell runs."""
        if self._main_reads:
            self._main_reads = False
            self._stop_reading()

    def deliver(self, answer: ToolAnswer) -> None:
        """Pass an answer to the thread that waits for it; drop it if there is none."""
        lock = self._waiting.get(answer.call)
        if lock is not None:
            self._answers[answer.call] = answer
            _wake(lock)

    def call_tool(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> ToolAnswer:
        """Call a tool of the host and wait for its answer, in any thread.

        Raises:
            TooLargeError: The arguments are larger than the host accepts.
        """
        interrupts = self._interrupts
        call = next(self._calls)
        frame = self._frame(Called(call, name, args, kwargs))
        waits: _Lock = _new_lock()
        waits.acquire()
        interrupts.block()
        try:
            self._waiting[call] = waits
            self._send(frame)
            while True:
                if call in self._answers:
                    return self._answers[call]
                if self._try_to_read():
                    try:
                        interrupts.wait(self._until_readable)
                        self._read_for_all()
                    finally:
                        self._stop_reading()
                else:
                    interrupts.wait(lambda: waits.acquire(timeout=_RECHECK_S))
        finally:
            self._waiting.pop(call, None)
            self._answers.pop(call, None)
            interrupts.unblock()

    def _frame(self, message: msgspec.Struct) -> bytes:
        frame = _encode(message)
        size = len(frame) - HEADER_BYTES
        if size > self._message_bytes:
            raise TooLargeError(f"{size} bytes, more than the limit of {self._message_bytes}.")
        return frame

    def _send(self, frame: bytes) -> None:
        if self._is_disconnected:
            _exit(0)
        size = len(frame)
        sending = self._sending
        sending.acquire()
        try:
            sent = _write(DESCRIPTOR, frame)
            while sent < size:
                sent += _write(DESCRIPTOR, memoryview(frame)[sent:])
        except OSError:
            # Half a message cannot be undone, and a session is useless without its connection.
            _exit(_BROKEN)
        finally:
            sending.release()

    def _read_more(self) -> None:
        if self._is_disconnected:
            _exit(0)
        frames = self._frames
        size = _READ_BYTES
        if not frames.is_empty:
            size = min(max(size, frames.missing), _MAX_READ_BYTES)
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

    def _try_to_read(self) -> bool:
        """Become the reader, unless another thread is, or the main thread has priority."""
        if self._inbox or self._main_waits is not None:
            return False
        return self._reading.acquire(blocking=False)

    def _wait_to_read(self) -> None:
        """Wait, in the main thread, until the reading thread has received something."""
        waits: _Lock = _new_lock()
        waits.acquire()
        self._main_waits = waits
        while not self._reading.acquire(blocking=False):
            waits.acquire(timeout=_RECHECK_S)
        self._main_waits = None

    def _stop_reading(self) -> None:
        """Stop reading, and wake a thread that may continue."""
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
    with suppress(RuntimeError):  # already awake
        lock.release()
