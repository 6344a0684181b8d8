"""Turns: how a vector and its workers wake each other through shared memory.

Each worker has a slot of shared words. The caller starts a turn by counting `go` up, the worker
finishes it by counting `done` up. Both spin on the other's word for a while before they sleep on
an event descriptor. A turn may come with a message over the worker's connection, either way.
`TurnWorker` is a worker as the caller sees it; the worker itself runs `serve_turns`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import select
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, final

from envweave.errors import OptionError, format_error
from envweave.vector.process.shared_columns import SharedColumns
from envweave.workers.channel import Channel, PeerGoneError
from envweave.workers.deadlines import CodeClock
from envweave.workers.launch import WorkerLostError, WorkerProcess
from envweave.workers.pickling import pack, pack_by_value, pack_failure, pack_reply
from envweave.workers.shared_memory import SharedMemory

WIDTH = 16
"""Words per worker: two cache lines of its own."""

_SPINS = 3000
"""How often to read a word before sleeping: for about 0.2 ms."""


def spin_count(processes: int) -> int:
    """Return how often each of these processes may read a word before it sleeps.

    With more of them than cores they would keep each other from working. On processors that may
    show two writes in another order (all but x86), only the kernel's event makes sure of it.
    """
    if processes > cores() or platform.machine() not in ("x86_64", "AMD64"):
        return 0
    return _SPINS


def cores() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@final
class EventFd:
    """A descriptor that one process sleeps on and another one notifies."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.fds: tuple[int, ...] = (read_fd, write_fd)
        self._write_fd = write_fd
        self._is_event = read_fd == write_fd

    @classmethod
    def new(cls) -> EventFd:
        """Make one."""
        if hasattr(os, "eventfd"):
            fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            return cls(fd, fd)
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        return cls(read_fd, write_fd)

    def fileno(self) -> int:
        """Return what to poll: it can be read after a notification."""
        return self.fds[0]

    def notify(self) -> None:
        """Wake the process that sleeps on it."""
        try:
            if self._is_event:
                os.eventfd_write(self._write_fd, 1)
            else:
                os.write(self._write_fd, b"\0")
        except BlockingIOError:
            pass  # its counter is full, so nothing sleeps on it

    def clear(self) -> None:
        """Forget past notifications."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fds[0], 8 if self._is_event else 4096)

    def close(self) -> None:
        """Close it. May be called twice."""
        for fd in set(self.fds):
            os.close(fd)
        self.fds = ()
        self._write_fd = -1  # the number may be another file's by now


class TurnSlot(NamedTuple):
    """The words of one worker in a `TurnTable`, as indices.

    Attributes:
        go: How many turns the caller has started.
        done: How many of them the worker has finished.
        kind: What the turn is about.
        more: Whether a message from the worker goes with what was done.
        clock: The first word of the worker's `CodeClock`.
    """

    go: int
    done: int
    kind: int
    more: int
    clock: int

    @classmethod
    def of(cls, index: int) -> TurnSlot:
        """Return the slot of one worker."""
        return cls(*range(index * WIDTH, index * WIDTH + 5))

    @property
    def worker_index(self) -> int:
        """Which worker's it is."""
        return self.go // WIDTH


MESSAGE, STEP_ALL = range(2)
"""Kinds of turns: a message says it; every environment's action is in its shared column."""


@final
class TurnTable:
    """The slots of all workers, in shared memory."""

    def __init__(self, memory: SharedMemory) -> None:
        self.memory = memory
        self.words = memory.words()

    @classmethod
    def of(cls, workers: int) -> TurnTable:
        """Make one for a number of workers."""
        return cls(SharedMemory.of(workers * WIDTH * 8))

    def clear(self, slot: TurnSlot) -> None:
        """Forget what a worker that is gone has written."""
        for index in range(slot.go, slot.clock + CodeClock.SIZE):
            self.words[index] = 0

    def clock(self, slot: TurnSlot) -> CodeClock:
        """Return the clock of one worker."""
        return CodeClock(self.words, slot.clock)

    def close(self) -> None:
        """Release the memory. May be called twice."""
        self.words.release()
        self.memory.close()


class TurnChannels(NamedTuple):
    """What a worker shares with its caller for their turns.

    Attributes:
        table: The turns of all workers.
        slot: This worker's slot in it.
        event: Wakes this worker.
        caller_event: Wakes the caller.
        spins: How often to read a word before sleeping.
    """

    table: TurnTable
    slot: TurnSlot
    event: EventFd
    caller_event: EventFd
    spins: int

    @property
    def fds(self) -> set[int]:
        """The descriptors that the worker inherits."""
        return {self.table.memory.fd, *self.event.fds, *self.caller_event.fds}

    @property
    def args(self) -> tuple[Any, ...]:
        """What `inherited` makes the same of in the worker."""
        slot, event, caller_event = self.slot.worker_index, self.event.fds, self.caller_event.fds
        return self.table.memory.fd, slot, event, caller_event, self.spins

    @classmethod
    def inherited(
        cls,
        table: int,
        slot: int,
        event: tuple[int, int],
        caller_event: tuple[int, int],
        spins: int,
    ) -> TurnChannels:
        """Return those that this worker has inherited."""
        for fd in {table, *event, *caller_event}:
            os.set_inheritable(fd, False)  # noqa: FBT003 - by position only
        return cls(
            TurnTable(SharedMemory(table)),
            TurnSlot.of(slot),
            EventFd(*event),
            EventFd(*caller_event),
            spins,
        )


class TurnHost(Protocol):
    """What a worker does in its turns."""

    def step_all(self) -> Any:
        """Step every environment, by the shared columns; return what they cannot hold."""

    def call(self, name: str, args: tuple[Any, ...], channel: Channel) -> Any:
        """Answer a message."""

    def sendable(self, reply: Any) -> Any:
        """Return a reply that could not be pickled, with failures for what could not be."""

    def close(self) -> None:
        """Close every environment."""


def serve_turns(host: TurnHost, channel: Channel, turns: TurnChannels) -> None:
    """Take turns until the caller sends `close`.

    Raises:
        PeerGoneError: The caller is gone.
    """
    words, spins, slot = turns.table.words, turns.spins, turns.slot
    event, caller_event = turns.event, turns.caller_event
    poll = select.poll()
    poll.register(event.fileno(), select.POLLIN)
    poll.register(channel.fileno(), 0)  # reports only that the other end is closed
    go, done, kind, more = slot.go, slot.done, slot.kind, slot.more
    count = 0
    while True:
        count += 1
        for _ in range(spins):
            if words[go] == count:
                break
        else:
            while words[go] != count:
                if any(fd == channel.fileno() for fd, _ in poll.poll()):
                    raise PeerGoneError
                event.clear()
        reply: bytes | None
        is_last = False
        if words[kind] == MESSAGE:
            reply, is_last = answer(host, channel.receive(), channel)
        else:
            extras = host.step_all()
            reply = None if extras is None else pack_done(host, extras)
        words[more] = reply is not None
        words[done] = count
        caller_event.notify()
        if reply is not None:
            # After the turn: the caller receives what is larger than the connection's buffer.
            channel.send(reply)
        if is_last:
            return


def answer(host: TurnHost, packed: bytes | bytearray, channel: Any) -> tuple[bytes, bool]:
    """Return the reply to a message, and whether it was the last one."""
    try:
        name, *args = pickle.loads(packed)  # noqa: S301 - from our own parent
    except Exception as error:  # noqa: BLE001 - a class that cannot be imported here
        return pack_reply(("unreadable", format_error(error))), False
    try:
        if name == "close":
            host.close()
            return pack_reply(("done", None)), True
        return pack_done(host, host.call(name, tuple(args), channel)), False
    except PeerGoneError:
        raise
    except Exception as error:  # noqa: BLE001 - sent to the caller, which raises it
        return pack_failure(error), name == "close"


def pack_done(host: TurnHost, reply: Any) -> bytes:
    """Pickle what a turn returned; with failures in place of what cannot be pickled."""
    try:
        return pack_reply(("done", reply))
    except Exception:  # noqa: BLE001 - whatever an author's object raises
        try:
            return pack_reply(("done", host.sendable(reply)))
        except Exception as error:  # noqa: BLE001 - sent to the caller
            return pack_failure(error)


HOST = "envweave.vector.process.vector_worker:run"


@final
class MessagePickles:
    """Pickles of the messages to one worker, and of its replies."""

    def __init__(self) -> None:
        self._by_value = False  # whether the worker cannot import some class of our messages

    def pack(self, message: tuple[Any, ...]) -> bytes:
        """Pickle a message so that the worker can read it."""
        return (pack_by_value if self._by_value else pack)(message)

    def read_reply(
        self,
        receive: Callable[[], bytes | bytearray],
        send_again: Callable[[], None],
        end: Callable[[], None],
    ) -> Any:
        """Return the reply to a message, which is sent again if the worker could not read it.

        Args:
            receive: Waits for a reply.
            send_again: Sends the message once more.
            end: Ends the worker, if its reply cannot be read.

        Raises:
            WorkerLostError: The reply cannot be read.
            Exception: What the worker raised.
        """
        while True:
            packed = receive()
            try:
                kind, value = pickle.loads(packed)  # noqa: S301 - from our own worker
            except Exception as error:
                end()
                text = f"its reply cannot be read: {format_error(error)}"
                raise WorkerLostError(text) from error
            if kind == "done":
                return value
            if kind != "unreadable" or self._by_value:
                is_error = isinstance(value, Exception)
                raise value if is_error else WorkerLostError(f"it replied: {value}")
            self._by_value = True
            send_again()


@final
class TurnWorker:
    """A worker process that steps some rows of a vector, one turn at a time.

    Attributes:
        process: The process itself.
    """

    def __init__(self, turns: TurnChannels, definition: bytes) -> None:
        self._turns = turns
        self._words = turns.table.words
        self._pickles = MessagePickles()
        self._owes_reply = False  # whether the reply to the last message was not received
        self._last_reply: tuple[int, bytes | bytearray] = (-1, b"")  # with the number of its turn
        turns.table.clear(turns.slot)
        turns.event.clear()
        self.process = WorkerProcess(clock=turns.table.clock(turns.slot), fds=turns.fds)
        self.process.define(HOST, definition, *turns.args)

    def share(
        self,
        shared: SharedColumns,
        memory: SharedMemory,
        fill: Mapping[int, Any],
        timeout_s: float | None,
    ) -> None:
        """Fix the columns, and wait until the worker has done so too.

        Raises:
            WorkerLostError: It is gone, or an environment's code took longer than `timeout_s`.
        """
        layout, count = shared.layout, len(shared.rewards)
        self.send("share", layout, shared.acts.kinds, count, fill, fd=memory.fd)
        self.reply(timeout_s=timeout_s)

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

    def await_soon(self) -> None:
        """Do nothing: the pool polls for a moment."""

    def notify_when_done(self) -> None:
        """Do nothing: the worker signals the end of every turn."""

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
        return self._pickles.pack(message)

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
        return self._pickles.read_reply(
            lambda: self._receive(timeout_s),
            lambda: self.send(*message, timeout_s=timeout_s),
            self.process.end,
        )

    def _receive(self, timeout_s: float | None) -> bytes | bytearray:
        """Return the reply to the last turn. May be called again after an interrupt."""
        number = self.next_turn() - 1
        if self._last_reply[0] != number:
            self.process.await_message(timeout_s)
            with self.process.whole_message():
                self._last_reply = number, self.process.channel.receive()
                self._owes_reply = False
        return self._last_reply[1]

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
