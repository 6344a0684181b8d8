"""The code's end of the line to the host: what a session of the sandbox says, said by a thread."""

from __future__ import annotations

import socket
import threading
from itertools import count
from typing import Any, final

import msgspec

from envweave.codeact.executors.local.interrupts import Interrupts
from envweave.sandbox.frames import Frames
from envweave.sandbox.inside.line import TooLargeError
from envweave.sandbox.messages import HEADER_BYTES, Answer, Called, ToSession
from envweave.sandbox.plain import encode, read_from_host

_READ_BYTES = 64 << 10
_LONGEST_FRAME = 1 << 31


class HostGoneError(Exception):
    """Nobody listens any more."""


@final
class Line:
    """Sends and receives messages.

    The thread of the code reads between cells. Within one, whoever waits for a tool does, one
    thread at a time.
    """

    def __init__(self, end: socket.socket, message_bytes: int, interrupts: Interrupts) -> None:
        self._end = end
        self._message_bytes = message_bytes
        self._interrupts = interrupts
        self._frames = Frames(_LONGEST_FRAME)
        self._calls = count(1)
        self._asking = threading.Lock()  # held by who waits for a tool

    def receive(self) -> ToSession:
        """Return the next message.

        Raises:
            HostGoneError: There will be none.
        """
        while (frame := self._frames.next()) is None:
            try:
                data = self._end.recv(_READ_BYTES)
            except OSError:
                data = b""
            if not data:
                raise HostGoneError
            self._frames.feed(data)
        return read_from_host(frame)

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
            self._end.sendall(frame)
        except OSError:
            raise HostGoneError from None

    def ask(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Answer:
        """Call a tool of the host's and wait for its answer, in any thread of the code's.

        An interrupt waits meanwhile: the host answers before it interrupts.

        Raises:
            TooLargeError: The arguments are larger than the host takes.
        """
        with self._asking:
            self._interrupts.hold()
            try:
                call = next(self._calls)
                self.send(Called(call, name, args, kwargs))
                while True:
                    answer = self.receive()
                    if isinstance(answer, Answer) and answer.call == call:
                        return answer
            except HostGoneError:
                raise SystemExit from None
            finally:
                self._interrupts.let()

    def close(self) -> None:
        """Hang up."""
        self._end.close()
