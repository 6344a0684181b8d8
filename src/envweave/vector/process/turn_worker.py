"""A worker process of a vector, as the caller sees it: it takes turns."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any, final

from envweave.errors import OptionError, format_error
from envweave.vector.process.turns import MESSAGE, TurnChannels
from envweave.workers.launch import WorkerLostError, WorkerProcess
from envweave.workers.pickling import pack, pack_by_value

HOST = "envweave.vector.process.vector_worker:run"


@final
class TurnWorker:
    """A worker process that steps some rows of a vector, one turn at a time.

    Attributes:
        process: The process itself.
    """

    def __init__(self, turns: TurnChannels, definition: bytes) -> None:
        self._turns = turns
        self._words = turns.table.words
        self._by_value = False  # whether the worker cannot import some class of our messages
        self._owes_reply = False  # whether the reply to the last message was not received
        self._last_reply: tuple[int, bytes | bytearray] = (-1, b"")  # with the number of its turn
        turns.table.clear(turns.slot)
        turns.event.clear()
        self.process = WorkerProcess(clock=turns.table.clock(turns.slot), fds=turns.fds)
        self.process.define(HOST, definition, *turns.args)

    def start_turn(self, kind: int) -> int:
        """Start the worker's turn; return the turn's number."""
        words, slot = self._words, self._turns.slot
        number: int = words[slot.go] + 1
        words[slot.kind] = kind
        words[slot.go] = number
        self._turns.event.notify()
        return number

    def next_turn(self) -> int:
        """Return the number of the next turn."""
        number: int = self._words[self._turns.slot.go] + 1
        return number

    def has_begun(self, number: int) -> bool:
        """Whether this turn was started. Called after an interrupt, so it notifies again."""
        self._turns.event.notify()
        return bool(self._words[self._turns.slot.go] >= number)

    def has_done(self, number: int) -> bool:
        """Whether the worker has finished this turn."""
        return bool(self._words[self._turns.slot.done] >= number)

    @property
    def is_busy(self) -> bool:
        """Whether the worker has not finished the last turn that was started."""
        words, slot = self._words, self._turns.slot
        return bool(words[slot.done] != words[slot.go])

    @property
    def has_more(self) -> bool:
        """Whether a message goes with what was done."""
        return bool(self._words[self._turns.slot.more])

    def pack(self, *message: Any) -> bytes:
        """Pickle a message so that the worker can read it."""
        return (pack_by_value if self._by_value else pack)(message)

    def send(
        self,
        *message: Any,
        packed: bytes | None = None,
        fd: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Start the worker's turn with a message, once it has finished the last one.

        Args:
            message: A name and its arguments.
            packed: The message as `pack` returned it, if that was called before.
            fd: A descriptor to pass with it.
            timeout_s: How long an environment's code may take to finish the last turn.

        Raises:
            WorkerLostError: It is gone, or an environment's code took longer than `timeout_s`.
            OptionError: The message cannot be pickled; nothing was sent.
        """
        if packed is None:
            try:
                # A message with a descriptor cannot be sent a second time, so it goes by value.
                packed = pack_by_value(message) if fd is not None else self.pack(*message)
            except Exception as error:
                raise OptionError(
                    f"The arguments of {message[0]}() cannot be sent to a worker process: "
                    f"{format_error(error)}"
                ) from error
        self.drain(timeout_s)
        channel = self.process.channel
        with self.process.whole_message():
            self._owes_reply = True
            # First the turn: the worker then receives what is larger than the socket's buffer.
            self.start_turn(MESSAGE)
            channel.send(packed)
            if fd is not None:
                channel.send_fd(fd)

    def drain(self, timeout_s: float | None) -> None:
        """Receive the reply to the last message, if the wait for it was interrupted.

        Raises:
            WorkerLostError: It is gone, or an environment's code took longer than `timeout_s`.
        """
        if self._owes_reply:
            self._receive(timeout_s)

    def reply(self, *message: Any, timeout_s: float | None = None) -> Any:
        """Wait for the reply to a message, which may have to be sent again, and return it.

        Raises:
            WorkerLostError: It is gone, or an environment's code took longer than `timeout_s`.
        """
        kind, value = self._load(self._receive(timeout_s))
        if kind == "done":
            return value
        if kind == "unreadable" and not self._by_value:
            self._by_value = True
            self.send(*message, timeout_s=timeout_s)
            return self.reply(*message, timeout_s=timeout_s)
        raise value if isinstance(value, Exception) else WorkerLostError(f"it replied: {value}")

    def _receive(self, timeout_s: float | None) -> bytes | bytearray:
        """Return the reply to the last turn. May be called again after an interrupt."""
        number = self.next_turn() - 1
        if self._last_reply[0] != number:
            self.process.await_message(timeout_s)
            with self.process.whole_message():
                self._last_reply = number, self.process.channel.receive()
                self._owes_reply = False
        return self._last_reply[1]

    def _load(self, packed: bytes | bytearray) -> Any:
        try:
            return pickle.loads(packed)  # noqa: S301 - from our own worker
        except Exception as error:
            self.process.end()
            raise WorkerLostError(f"its reply cannot be read: {format_error(error)}") from error

    def request_close(self) -> None:
        """Send it a request to close its environments and end."""
        if self.process.is_ours:
            with contextlib.suppress(WorkerLostError):
                self.send("close")

    def await_close(self, timeout_s: float) -> Exception | None:
        """Wait until it has done so, or end it; return what failed, if anything did."""
        failure: Exception | None = None
        try:
            if self.process.is_ours and self.process.has_message(timeout_s):
                self.reply("close")
                self.process.exits_within(1.0)
        except WorkerLostError:
            pass  # it is gone already
        except Exception as error:  # noqa: BLE001 - an author's close; the others go on
            failure = error
        finally:
            self.process.end()
        return failure
