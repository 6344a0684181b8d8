"""The code's end of the line to the host: what a session of the sandbox says, said by a thread."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, final

import msgspec

from envweave.codeact.executors.local.interrupts import Interrupts
from envweave.sandbox.inside.channel import TooLargeError
from envweave.sandbox.protocol.framing import Frames
from envweave.sandbox.protocol.messages import HEADER_BYTES, Called, ToolAnswer, ToSession
from envweave.sandbox.protocol.plain_values import encode, read_from_host

_READ_BYTES = 64 << 10
_LONGEST_FRAME = 1 << 31
_LOOK_AGAIN_S = 0.05


class HostGoneError(Exception):
    """Nobody listens any more."""


@final
class Line:
    """Sends and receives messages, from any thread of the code's.

    Who waits for one reads for all: a call of the host's is for the thread that serves it, and an
    answer for the thread that asked.
    """

    def __init__(self, end: socket.socket, message_bytes: int, interrupts: Interrupts) -> None:
        self._end = end
        self._message_bytes = message_bytes
        self._interrupts = interrupts
        self._numbers = count(1)
        self._sending = threading.Lock()  # held while a frame is sent
        self._reading = threading.Lock()  # held by who reads; protects the frames
        self._frames = Frames(_LONGEST_FRAME)
        self._calls: deque[ToSession] = deque()
        self._answers: dict[int, ToolAnswer] = {}

    def receive(self) -> ToSession:
        """Return what the host calls for next.

        Raises:
            HostGoneError: There will be nothing.
        """
        while not self._calls:
            self._read(lambda: bool(self._calls))
        return self._calls.popleft()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message, whole.

        Raises:
            TooLargeError: It is larger than the host takes.
            HostGoneError: Nobody takes it.
        """
        frame = encode(message)
        size = len(frame) - HEADER_BYTES
        if size > self._message_bytes:
            raise TooLargeError(f"{size} bytes, and {self._message_bytes} is the most.")
        try:
            with self._sending:
                self._end.sendall(frame)
        except OSError:
            raise HostGoneError from None

    def ask(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> ToolAnswer:
        """Call a tool of the host's and wait for its answer.

        An interrupt waits meanwhile: at the deadline the host answers, too.

        Raises:
            TooLargeError: The arguments are larger than the host takes.
        """
        number = next(self._numbers)
        self._interrupts.hold()
        try:
            self.send(Called(number, name, args, kwargs))
            while number not in self._answers:
                self._read(lambda: number in self._answers)
            return self._answers.pop(number)
        except HostGoneError:
            raise SystemExit from None
        finally:
            self._interrupts.let()

    def _read(self, is_there: Callable[[], bool]) -> None:
        """Read a message, if nobody else does and has not brought it meanwhile."""
        if not self._reading.acquire(timeout=_LOOK_AGAIN_S):
            return
        try:
            if is_there():
                return
            message = self._next()
            if isinstance(message, ToolAnswer):
                self._answers[message.call] = message
            else:
                self._calls.append(message)
        finally:
            self._reading.release()

    def _next(self) -> ToSession:
        while (frame := self._frames.next()) is None:
            try:
                data = self._end.recv(_READ_BYTES)
            except OSError:
                data = b""
            if not data:
                raise HostGoneError
            self._frames.feed(data)
        return read_from_host(frame)

    def close(self) -> None:
        """Hang up."""
        self._end.close()
