"""The host's end of the stdin and stdout of a container. It treats every byte as hostile.

A thread copies the data. The engine sends the output of a container in frames, which separate
stdout and stderr. The stdout contains the frames of `messages`, and some of these the bytes of a
session. They are copied to a socket pair, so `AsyncSession` uses it like a local session.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal, NoReturn, final

import msgspec

from envweave.codeact.executors.docker.messages import (
    DATA_BYTES,
    FRAME_BYTES,
    Data,
    FromContainer,
    InspectRequest,
    Interrupt,
    Kill,
    LimitExceeded,
    SessionEnded,
    ToContainer,
)
from envweave.errors import BranchError, SessionLostError
from envweave.lifetime import OwnerProcess
from envweave.sandbox.processes.process import ExitReason
from envweave.sandbox.processes.watcher import WatcherCalls
from envweave.sandbox.protocol.encoding import encode
from envweave.sandbox.protocol.framing import Frames

_EXIT_REASON_S = 30.0


@final
class ContainerHandle:
    """The handle of a session that the relay in a container started.

    Its socket is connected to the session.

    Args:
        send: Sends a message to the relay.

    Attributes:
        number: Its id in the container, which cannot be guessed.
        remote: The other end of its socket, for the mux; `None` once it is closed.
        exceeded: The limit that the session exceeds, by the last report of the relay.
    """

    def __init__(self, send: Callable[[ToContainer], None]) -> None:
        self.number = secrets.randbits(62)
        self.work: str | None = None
        self.socket, remote = socket.socketpair()
        remote.setblocking(False)  # noqa: FBT003 - the standard library's
        self.remote: socket.socket | None = remote
        self.exceeded: Literal["disk", "memory"] | None = None
        self._send = send
        self._owner = OwnerProcess()
        self._is_killed = False
        self._exit_reason = ExitReason("lost", why="its container did not report why it ended")
        self._is_over = threading.Event()

    # Called by the session. See `SessionHandle`.

    is_stopped = False

    def watch(self, calls: WatcherCalls, in_use: threading.Lock) -> None:
        """Do nothing: the limits of its container also apply between runs."""

    def wake(self) -> None:
        """Do nothing: it is never stopped."""

    def interrupt(self) -> None:
        """Interrupt the code."""
        self._send(Interrupt(self.number))

    def kill(self) -> None:
        """End it; if it is not gone soon, its container is removed."""
        if not self._is_killed and self._owner.is_current:
            self._is_killed = True
            self._send(Kill(self.number))

    def exit_reason(self) -> ExitReason:
        """Return why it is gone."""
        if not self._is_over.wait(_EXIT_REASON_S):
            self.kill()
        return self._exit_reason

    def excess(self) -> Literal["disk", "memory"] | None:
        """Return the limit that it exceeded at the last check, and request another check."""
        if self.exceeded is None:
            self._send(InspectRequest(self.number))
        return self.exceeded

    def branch(  # the arguments are those of `SessionHandle`
        self,
        seed: int | None,  # noqa: ARG002
        deadline: float,  # noqa: ARG002
        *,
        reseed: bool = True,  # noqa: ARG002
        strict: bool = False,  # noqa: ARG002
    ) -> NoReturn:
        """Refuse.

        Raises:
            BranchError: Always.
        """
        raise BranchError("A session in a container cannot be branched.")

    def release(self) -> None:
        """Kill it, and close its descriptors."""
        self.kill()
        self.socket.close()

    # Called by the thread of the connection.

    def hang_up(self) -> None:
        """Signal the end of the data to the reader."""
        remote, self.remote = self.remote, None
        if remote is not None:
            with contextlib.suppress(OSError):
                remote.shutdown(socket.SHUT_RDWR)
            remote.close()

    def end(self, reason: ExitReason) -> None:
        """Record why it ended, and signal the end of the data to the reader."""
        if not self._is_over.is_set():
            self._exit_reason = reason
            self._is_over.set()
        self.hang_up()


KILL_S = 20.0
"""How long a session may take to end after it was killed; then its container is removed."""

_JOIN_S = 10.0
_ERRORS_KEPT = 8 << 10
_STDOUT, _STDERR = 1, 2
_read: msgspec.msgpack.Decoder[FromContainer] = msgspec.msgpack.Decoder(FromContainer)


class ChannelClosed(Exception):  # noqa: N818 - an event, not a failure of ours
    """The other end is gone, or violated the protocol."""

    def __init__(self, reason: ExitReason | None) -> None:
        super().__init__(str(reason))
        self.reason = reason


@final
class StdioMux:
    """Multiplexes messages and the bytes of a session over the stdio of one container.

    Thread-safe; only `request` and `close` block.

    Args:
        attached: The container's stdin and stdout. Closed with the mux.
        find_reason: Returns why the container no longer answers, after it closed the stream.
        on_lost: Called once in the thread of the mux, when it ended other than by `close`.
        kill_s: How long a session may take to end after it was killed.
    """

    def __init__(
        self,
        attached: socket.socket,
        find_reason: Callable[[], ExitReason],
        on_lost: Callable[[], None],
        kill_s: float = KILL_S,
    ) -> None:
        attached.setblocking(False)  # noqa: FBT003 - the standard library's
        self._attached = attached
        self._find_reason = find_reason
        self._on_lost = on_lost
        self._kill_s = kill_s
        self._streams = Streams()
        self._frames = Frames(FRAME_BYTES)
        self._out: deque[memoryview] = deque()  # to the container
        self._in: deque[memoryview] = deque()  # to the session's socket
        self._queue: deque[ToContainer | ContainerHandle] = deque()  # from other threads
        self._answers: queue.SimpleQueue[FromContainer | None] = queue.SimpleQueue()
        self._is_awaiting = False
        self._request_lock = threading.Lock()  # held from a request to its answer
        self._session: ContainerHandle | None = None
        self._dying: dict[int, float] = {}
        self._is_closing = False
        self._exit_reason: ExitReason | None = None
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)  # noqa: FBT003 - the standard library's
        self._woken.setblocking(False)  # noqa: FBT003 - the standard library's
        self._thread = threading.Thread(target=self._run, name="envweave-container", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the connection is closed."""
        return not self._thread.is_alive() or self._exit_reason is not None

    def errors(self) -> list[str]:
        """Return the last lines of the program's stderr."""
        lines = bytes(self._streams.errors).decode(errors="replace").splitlines()
        return [line.rstrip() for line in lines if line.strip()]

    def send(self, message: ToContainer) -> None:
        """Queue a message. It is dropped if the connection is closed."""
        self._queue.append(message)
        self._wake()

    def request(self, message: ToContainer | None, timeout_s: float) -> FromContainer:
        """Send a message, if any, and wait for the answer.

        Raises:
            SessionLostError: The connection is closed, or no answer came in time, which closes it.
        """
        with self._request_lock:
            self._is_awaiting = True
            if message is not None:
                self.send(message)
            try:
                answer = None if self.is_over else self._answers.get(timeout=timeout_s)
            except queue.Empty:
                self.close()
                raise SessionLostError(
                    f"The program in the container did not answer within {timeout_s:g} s."
                ) from None
            finally:
                self._is_awaiting = False
        if answer is None:
            raise SessionLostError(f"{self._exit_reason or 'The container was closed'}.")
        return answer

    def adopt(self, session: ContainerHandle) -> None:
        """Copy the bytes of this session from now on, and of no other."""
        self._queue.append(session)
        self._wake()

    def close(self) -> None:
        """Close the connection. Harmless twice."""
        self._is_closing = True
        self._wake()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it is awake already, or closed
            self._waker.send(b"w")

    # The rest runs in the thread of the connection only.

    def _run(self) -> None:
        reason: ExitReason | None = None
        try:
            self._serve()
        except ChannelClosed as closed:
            reason = closed.reason
        except OSError:
            reason = None  # the other end closed it
        except Exception as error:  # noqa: BLE001 - a decoder may raise anything
            reason = ExitReason(
                "closed", why=f"it sent invalid data to the host ({type(error).__name__})"
            )
        if not self._is_closing and reason is None:
            reason = self._find_reason()
        self._end(reason or ExitReason("lost", why="its container was closed"))

    def _end(self, reason: ExitReason) -> None:
        self._exit_reason = reason
        if self._session is not None:
            self._session.end(reason)
        self._end_queued(reason)
        self._answers.put(None)
        with contextlib.suppress(OSError):
            self._attached.shutdown(socket.SHUT_RDWR)  # a forked process may have copies of it
        self._attached.close()
        self._waker.close()
        self._woken.close()
        if not self._is_closing:
            self._on_lost()

    def _end_queued(self, reason: ExitReason) -> None:
        while self._queue:
            item = self._queue.popleft()
            if isinstance(item, ContainerHandle):
                item.end(reason)

    def _serve(self) -> None:
        while not self._is_closing:
            ready = self._wait()
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
            self._handle_queue()
            if self._attached in ready and not self._in:
                self._receive()
            self._handle_frames()
            self._receive_from_host()
            self._flush()

    def _wait(self) -> set[socket.socket]:
        """Wait until there is something to do.

        Backpressure: a side is not read while its data is still unsent to the other.
        """
        sockets = {self._woken: select.POLLIN}
        events = (0 if self._in else select.POLLIN) | (select.POLLOUT if self._out else 0)
        if events:
            sockets[self._attached] = events
        remote = None if self._session is None else self._session.remote
        events = (0 if self._out else select.POLLIN) | (select.POLLOUT if self._in else 0)
        if remote is not None and events:
            sockets[remote] = events
        poll = select.poll()
        by_descriptor = {}
        for one, events in sockets.items():
            poll.register(one, events)
            by_descriptor[one.fileno()] = one
        return {by_descriptor[number] for number, _ in poll.poll(self._timeout_ms())}

    def _timeout_ms(self) -> float | None:
        if not self._dying:
            return None
        left_s = min(self._dying.values()) - time.monotonic()
        if left_s <= 0:
            raise ChannelClosed(
                ExitReason(
                    "closed", why=f"it was killed, and did not end within {self._kill_s:g} s"
                )
            )
        return 1000 * left_s + 1

    def _handle_queue(self) -> None:
        while self._queue:
            item = self._queue.popleft()
            if isinstance(item, ContainerHandle):
                self._end_session(ExitReason("unknown"))
                self._session = item
                continue
            if isinstance(item, Kill):
                session = self._session
                if session is None or session.number != item.number:
                    continue  # it is gone
                self._end_session(ExitReason("unknown"))
                self._dying[item.number] = time.monotonic() + self._kill_s
            self._out.append(memoryview(encode(item)))

    def _end_session(self, reason: ExitReason) -> None:
        session, self._session = self._session, None
        self._in.clear()
        if session is not None:
            session.end(reason)

    def _receive(self) -> None:
        """Read data from the container."""
        try:
            data = self._attached.recv(4 * DATA_BYTES)
        except BlockingIOError:
            return
        if not data:
            if self._session is not None:
                self._session.hang_up()  # readers need not wait until the reason is known
            raise ChannelClosed(None)
        self._frames.feed(self._streams.take_stdout(data))

    def _handle_frames(self) -> None:
        """Handle messages of the container, until the session's reader has to read first."""
        self._feed()
        while not self._in:
            frame = self._frames.next()
            if frame is None:
                return
            self._handle(_read.decode(frame))
            self._feed()

    def _handle(self, message: FromContainer) -> None:
        session = self._session
        if isinstance(message, Data):
            if session is not None and message.number == session.number:
                self._in.append(memoryview(message.data))
        elif isinstance(message, SessionEnded):
            self._dying.pop(message.number, None)
            if session is not None and message.number == session.number:
                self._end_session(ExitReason(message.kind, message.code))
        elif isinstance(message, LimitExceeded):
            if session is not None and message.number == session.number:
                session.exceeded = message.limit
        elif self._is_awaiting:
            self._is_awaiting = False
            self._answers.put(message)
        else:
            raise ValueError("an unexpected answer")

    def _feed(self) -> None:
        """Write the session's bytes to its reader."""
        remote = None if self._session is None else self._session.remote
        if remote is None:
            self._in.clear()
            return
        try:
            _send(remote, self._in)
        except OSError:
            self._in.clear()  # the reader is gone; it kills the session

    def _receive_from_host(self) -> None:
        session = self._session
        if session is None or session.remote is None or self._out:
            return
        try:
            data = session.remote.recv(DATA_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._out.append(memoryview(encode(Data(session.number, data))))
        else:
            session.hang_up()

    def _flush(self) -> None:
        _send(self._attached, self._out)


@final
class Streams:
    """Separates the stdout and the stderr of a container in the engine's frames.

    Attributes:
        errors: The end of the stderr.
    """

    def __init__(self) -> None:
        self.errors = bytearray()
        self._head = b""
        self._left = 0
        self._stream = 0

    def take_stdout(self, data: bytes) -> bytes:
        """Return the bytes of the container's stdout in this data."""
        output = []
        at = 0
        while at < len(data):
            if not self._left:
                taken = data[at : at + 8 - len(self._head)]
                self._head += taken
                at += len(taken)
                if len(self._head) == 8:
                    self._stream = self._head[0]
                    self._left = int.from_bytes(self._head[4:], "big")
                    self._head = b""
                continue
            part = data[at : at + self._left]
            at += len(part)
            self._left -= len(part)
            if self._stream == _STDOUT:
                output.append(part)
            elif self._stream == _STDERR:
                self.errors += part
                del self.errors[:-_ERRORS_KEPT]
        return b"".join(output)


def _send(connection: socket.socket, pending: deque[memoryview]) -> None:
    """Send as much as possible without blocking.

    Raises:
        OSError: The other end is gone.
    """
    with contextlib.suppress(BlockingIOError):
        while pending:
            rest = pending[0][connection.send(pending[0]) :]
            if rest:
                pending[0] = rest
            else:
                pending.popleft()
