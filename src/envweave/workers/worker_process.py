"""One worker process, as its trainer sees it: started, asked, found dead, ended."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, final

from envweave.errors import OptionError, format_error
from envweave.vector.process.shared_memory import MESSAGE, EventFd, TurnSlot, TurnTable
from envweave.workers.channel import Channel, PeerGoneError, pack, pack_by_value, uninterrupted
from envweave.workers.launch import boot, ending

CLOSE_S = 10.0
"""How long an environment's `close` may take before its worker is ended."""

_BOOT = boot("an envweave worker process", "envweave.workers.main")


class WorkerLostError(Exception):
    """A worker process is gone. The message says how. Never leaves the transport.

    Attributes:
        offender: The row whose code took too long, if that is why.
    """

    def __init__(self, message: str, offender: int | None = None) -> None:
        super().__init__(message)
        self.offender = offender


class WorkerIPC(NamedTuple):
    """What a worker shares with its trainer.

    Attributes:
        board: The turns of all workers.
        turn: This worker's place on it.
        bell: Wakes this worker.
        caller_bell: Wakes the trainer.
        looks: How often to look at the board before sleeping.
    """

    board: TurnTable
    turn: TurnSlot
    bell: EventFd
    caller_bell: EventFd
    looks: int


@final
class WorkerProcess:
    """A process that runs environments, one turn at a time."""

    def __init__(self, seat: WorkerIPC) -> None:
        self.seat = seat
        self._owner = os.getpid()
        self._by_value = False  # whether the worker cannot import some class of our messages
        self._owes = False  # whether it has not answered the last message
        self._heard: tuple[int, bytes | bytearray] = (-1, b"")  # the last answer, by its turn
        seat.board.clear(seat.turn)
        seat.bell.hush()
        ours, theirs = socket.socketpair()
        fds = {seat.board.memory.fd, *seat.bell.fds, *seat.caller_bell.fds, theirs.fileno()}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this very interpreter
                [sys.executable, *interpreter_flags(), "-c", _BOOT, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=tuple(fds),
                start_new_session=True,  # a Ctrl-C is for the trainer, which tells its workers
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._channel = Channel(ours)
        self._pidfd = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def define(self, host: str, definition: bytes) -> None:
        """Tell it what to run; `answer` returns what it says of that.

        Args:
            host: The import path of what runs environments.
            definition: What that is given, packed.

        Raises:
            WorkerLostError: It is gone.
        """
        seat = self.seat
        paths = json.dumps([path for path in sys.path if isinstance(path, str)]).encode()
        told = {
            "board": seat.board.memory.fd,
            "place": seat.turn.place,
            "bell": seat.bell.fds,
            "caller_bell": seat.caller_bell.fds,
            "looks": seat.looks,
            "parent": os.getpid(),
            "logs": (
                logging.root.manager.disable,
                logging.getLogger("envweave").getEffectiveLevel(),
            ),
            "host": host,
        }
        with self._whole():
            self._channel.send(paths)
            self._channel.send(pack(told))
            self._channel.send(definition)

    def poll_fd(self) -> int:
        """Return what can be read when the process has ended."""
        return self._channel.fileno() if self._pidfd is None else self._pidfd

    def give(self, kind: int) -> int:
        """Give the worker its turn; return the turn's number."""
        words, turn = self.seat.board.words, self.seat.turn
        number = words[turn.go] + 1
        words[turn.kind] = kind
        words[turn.go] = number
        self.seat.bell.ring()
        return number

    def next_turn(self) -> int:
        """Return the number of the turn that comes next."""
        return self.seat.board.words[self.seat.turn.go] + 1

    def has_begun(self, number: int) -> bool:
        """Whether the worker was given this turn. Whoever asks was interrupted: it rings again."""
        self.seat.bell.ring()
        return self.seat.board.words[self.seat.turn.go] >= number

    def has_done(self, number: int) -> bool:
        """Whether the worker has finished this turn."""
        return self.seat.board.words[self.seat.turn.done] >= number

    @property
    def is_busy(self) -> bool:
        """Whether the worker has not finished the last turn that it was given."""
        words, turn = self.seat.board.words, self.seat.turn
        return words[turn.done] != words[turn.go]

    @property
    def has_more(self) -> bool:
        """Whether a message goes with what was done."""
        return bool(self.seat.board.words[self.seat.turn.more])

    def tell(self, *message: Any, fd: int | None = None, timeout_s: float | None = None) -> None:
        """Give the worker its turn, with a message, when it is done with the last.

        Raises:
            WorkerLostError: It is gone, or an environment's code took longer than `timeout_s`.
            OptionError: It cannot be sent; nothing was.
        """
        by_value = self._by_value or fd is not None  # what is followed by an fd is told once
        try:
            packed = (pack_by_value if by_value else pack)(message)
        except Exception as error:
            raise OptionError(
                f"What {message[0]}() is given cannot be sent to a worker process: "
                f"{format_error(error)}"
            ) from error
        self.settle(timeout_s)
        with self._whole():
            self._owes = True
            # First the turn: what is larger than the connection's buffer is taken then.
            self.give(MESSAGE)
            self._channel.send(packed)
            if fd is not None:
                self._channel.send_fd(fd)

    def settle(self, timeout_s: float | None) -> None:
        """Take the answer to the last message, if whoever waited for it was interrupted.

        Raises:
            WorkerLostError: It is gone, or an environment's code took longer than `timeout_s`.
        """
        if self._owes:
            self._hear(timeout_s)

    def answer(self, *message: Any, timeout_s: float | None = None) -> Any:
        """Wait for the answer to a message, which may have to be told again, and return it.

        Raises:
            WorkerLostError: It is gone, or an environment's code took longer than `timeout_s`.
        """
        kind, value = self._read(self._hear(timeout_s))
        if kind == "done":
            return value
        if kind == "unreadable" and not self._by_value:
            self._by_value = True
            self.tell(*message, timeout_s=timeout_s)
            return self.answer(*message, timeout_s=timeout_s)
        raise value if isinstance(value, Exception) else WorkerLostError(f"it said: {value}")

    def say(self, packed: bytes) -> None:
        """Send a message to a worker that keeps its own pace.

        Raises:
            WorkerLostError: It is gone.
        """
        with self._whole():
            self._channel.send(packed)

    def hear(self, timeout_s: float | None = None) -> Any:
        """Return the worker's next message.

        Raises:
            WorkerLostError: It is gone, or an environment's code took longer than `timeout_s`.
        """
        self._await(timeout_s)
        with self._whole():
            packed = self._channel.recv_packed()
        return self._read(packed)

    def _hear(self, timeout_s: float | None) -> bytes | bytearray:
        """Return the answer to the last turn. Who is interrupted may ask again."""
        number = self.next_turn() - 1
        if self._heard[0] != number:
            self._await(timeout_s)
            with self._whole():
                self._heard = number, self._channel.recv_packed()
                self._owes = False
        return self._heard[1]

    def _read(self, packed: bytes | bytearray) -> Any:
        try:
            return pickle.loads(packed)  # noqa: S301 - from our own worker
        except Exception as error:
            self.end()
            raise _unreadable(error) from error

    @property
    def connection(self) -> socket.socket:
        """The connection itself, for an event loop."""
        return self._channel.connection

    def _await(self, timeout_s: float | None) -> None:
        """Wait until the worker says something, or an environment's code has taken too long."""
        if self.has_ended:
            raise self.lost()
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        poll.register(self.poll_fd(), select.POLLIN)
        left = timeout_s
        while True:
            heard = dict(poll.poll(None if left is None else left * 1000 + 1))
            if self._channel.fileno() in heard:
                return
            if heard:
                raise self.lost()
            left = None if timeout_s is None else self.check_deadline(timeout_s)

    def check_deadline(self, timeout_s: float) -> float:
        """Return how many seconds the code that runs has left.

        Raises:
            WorkerLostError: None; the worker was ended.
        """
        running = self.running()
        if running is None:
            return timeout_s
        row, taken_s = running
        if taken_s < timeout_s:
            return timeout_s - taken_s
        self.end()
        raise WorkerLostError(
            f"environment {row} took longer than timeout_s={timeout_s:g}, so its worker process "
            f"{self.pid} was ended",
            row,
        )

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Send or receive one whole message; half of one would garble the next."""
        with uninterrupted():
            try:
                yield
            except PeerGoneError:
                raise self.lost() from None
            except BaseException:
                self.end()
                raise

    def running(self) -> tuple[int, float] | None:
        """Return which environment's code is running, and for how many seconds; or `None`."""
        words, turn = self.seat.board.words, self.seat.turn
        since, row = words[turn.since], words[turn.row]
        if not since or words[turn.since] != since:  # it came back just now
            return None
        return row, (time.monotonic_ns() - since) / 1e9

    @property
    def has_ended(self) -> bool:
        """Whether it was found dead, or ended by us."""
        return self._channel.fileno() < 0

    @property
    def is_gone(self) -> bool:
        """Whether there is no process any more."""
        return self.has_ended or self._process.poll() is not None

    def lost(self) -> WorkerLostError:
        """End what is left of it, and return how it ended, in words."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # it has hung up, so it is about to end by itself
        self.end()
        return WorkerLostError(ending(self._process.returncode, self.pid))

    def end(self) -> None:
        """End the process and all that it started, at once. May be called twice.

        A forked copy of the trainer only lets go of it.
        """
        if self.has_ended:
            return
        if self._owner == os.getpid():
            self.kill()
            self._process.wait()
        self._channel.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def kill(self) -> None:
        """Let the kernel end the process and all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def tell_close(self) -> None:
        """Tell it to close its environments and end."""
        if self._owner == os.getpid():
            with contextlib.suppress(WorkerLostError):
                self.tell("close")

    def speaks_within(self, timeout_s: float) -> bool:
        """Wait so long for its next message, whatever its code does; return whether it came."""
        if self.has_ended:
            return False
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        return bool(poll.poll(max(timeout_s, 0) * 1000))

    def await_close(self, timeout_s: float) -> Exception | None:
        """Wait until it has done so, or is ended; return what failed, if anything did."""
        failure: Exception | None = None
        try:
            if self._owner == os.getpid() and self.speaks_within(timeout_s):
                self.answer("close")
                self._process.wait(1.0)
        except (WorkerLostError, subprocess.TimeoutExpired):
            pass  # it is gone already, or will be in a moment
        except Exception as error:  # noqa: BLE001 - an author's close; the others go on
            failure = error
        finally:
            self.end()
        return failure


def _unreadable(error: Exception) -> WorkerLostError:
    return WorkerLostError(f"its answer cannot be read: {format_error(error)}")


def interpreter_flags() -> list[str]:
    """Return the options that this interpreter runs with, such as `-O` or `-W error`."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing does
    return flags
