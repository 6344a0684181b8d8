"""The host's end of a container's input and output: a thread that carries bytes, and trusts none.

An engine hands on what a container prints in frames of its own. In those that are its output stand
the frames of `docker_words`, and in some of these the bytes of a session, which go to a socket as
if the session were at its other end: `AsyncSession` speaks with it as with any other.
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
from envweave.sandbox.protocol.framing import Frames
from envweave.sandbox.protocol.plain_values import encode

_DEATH_S = 30.0


@final
class ContainerHandle:
    """The handle of a session that the program in a container started.

    What is sent to its socket goes to the session, and what the session says comes from there.

    Args:
        say: Has a word sent to the program.

    Attributes:
        number: Its id in the container, which cannot be guessed.
        far: The other end of its socket, which the line reads and writes; `None` once it is gone.
        beyond: The limit that it is beyond, as far as the program told.
    """

    def __init__(self, say: Callable[[ToContainer], None]) -> None:
        self.number = secrets.randbits(62)
        self.work: str | None = None
        self.socket, far = socket.socketpair()
        far.setblocking(False)  # noqa: FBT003 - the standard library's
        self.far: socket.socket | None = far
        self.beyond: Literal["disk", "memory"] | None = None
        self._send = say
        self._owner = OwnerProcess()
        self._is_killed = False
        self._death = ExitReason("lost", why="its container did not say what became of it")
        self._is_over = threading.Event()

    # Called by the session. See `SessionHandle`.

    is_stopped = False

    def watch(self, calls: WatcherCalls, in_use: threading.Lock) -> None:
        """Do nothing: the limits of its container hold while no run is open too."""

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
        if not self._is_over.wait(_DEATH_S):
            self.kill()
        return self._death

    def excess(self) -> Literal["disk", "memory"] | None:
        """Return the limit that it exceeded at the last check, and request another check."""
        if self.beyond is None:
            self._send(InspectRequest(self.number))
        return self.beyond

    def branch(self, seed: int | None, deadline: float) -> NoReturn:  # noqa: ARG002 - of Body
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
        far, self.far = self.far, None
        if far is not None:
            with contextlib.suppress(OSError):
                far.shutdown(socket.SHUT_RDWR)
            far.close()

    def end(self, death: ExitReason) -> None:
        """Record why it ended, and signal the end of the data to the reader."""
        if not self._is_over.is_set():
            self._death = death
            self._is_over.set()
        self.hang_up()


KILL_S = 20.0
"""How long a session may take to be gone after it was killed; then its container is removed."""

_JOIN_S = 10.0
_ERRORS_KEPT = 8 << 10
_OUTPUT, _ERRORS = 1, 2
_read: msgspec.msgpack.Decoder[FromContainer] = msgspec.msgpack.Decoder(FromContainer)


class ChannelClosed(Exception):  # noqa: N818 - an event, not a failure of ours
    """The other end is gone, or violated the protocol."""

    def __init__(self, death: ExitReason | None) -> None:
        super().__init__(str(death))
        self.death = death


@final
class StdioMux:
    """A line to the program in one container.

    Its methods may be called by any thread; none but `ask` and `close` waits for anything.

    Args:
        attached: The container's input and output. Closed with the line.
        look: Returns why the container no longer answers, after it closed the stream.
        let_go: Called once by the line's own thread, when it is over and not by `close`.
        kill_s: How long a session may take to be gone after it was killed.
    """

    def __init__(
        self,
        attached: socket.socket,
        look: Callable[[], ExitReason],
        let_go: Callable[[], None],
        kill_s: float = KILL_S,
    ) -> None:
        attached.setblocking(False)  # noqa: FBT003 - the standard library's
        self._attached = attached
        self._look = look
        self._let_go = let_go
        self._kill_s = kill_s
        self._streams = Streams()
        self._frames = Frames(FRAME_BYTES)
        self._out: deque[memoryview] = deque()  # to the container
        self._in: deque[memoryview] = deque()  # to the session's socket
        self._orders: deque[ToContainer | ContainerHandle] = deque()  # of other threads
        self._answers: queue.SimpleQueue[FromContainer | None] = queue.SimpleQueue()
        self._is_asked = False
        self._asking = threading.Lock()  # held from a request to its answer
        self._body: ContainerHandle | None = None
        self._dying: dict[int, float] = {}
        self._is_closing = False
        self._death: ExitReason | None = None
        self._wakes, self._woken = socket.socketpair()
        self._wakes.setblocking(False)  # noqa: FBT003 - the standard library's
        self._woken.setblocking(False)  # noqa: FBT003 - the standard library's
        self._thread = threading.Thread(target=self._carry, name="envweave-container", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the connection is closed."""
        return not self._thread.is_alive() or self._death is not None

    def errors(self) -> list[str]:
        """Return the last lines of the program's stderr."""
        lines = bytes(self._streams.errors).decode(errors="replace").splitlines()
        return [line.rstrip() for line in lines if line.strip()]

    def send(self, message: ToContainer) -> None:
        """Queue a message. It is dropped if the connection is closed."""
        self._orders.append(message)
        self._wake()

    def ask(self, message: ToContainer | None, timeout_s: float) -> FromContainer:
        """Send a message, if any, and wait for the answer.

        Raises:
            SessionLostError: There is none, or none in time: then the line is over.
        """
        with self._asking:
            self._is_asked = True
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
                self._is_asked = False
        if answer is None:
            raise SessionLostError(f"{self._death or 'The container was closed'}.")
        return answer

    def adopt(self, body: ContainerHandle) -> None:
        """Carry the bytes of this session from now on, and of no other."""
        self._orders.append(body)
        self._wake()

    def close(self) -> None:
        """Close the connection. Harmless twice."""
        self._is_closing = True
        self._wake()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it has been woken before, or is gone
            self._wakes.send(b"w")

    # The rest runs in the thread of the connection only.

    def _carry(self) -> None:
        death: ExitReason | None = None
        try:
            self._serve()
        except ChannelClosed as over:
            death = over.death
        except OSError:
            death = None  # it was cut at the other end
        except Exception as error:  # noqa: BLE001 - hostile bytes may raise whatever a decoder can
            death = ExitReason(
                "closed", why=f"it sent the host what cannot be read ({_named(error)})"
            )
        if not self._is_closing and death is None:
            death = self._look()
        self._end(death or ExitReason("lost", why="its container was closed"))

    def _end(self, death: ExitReason) -> None:
        self._death = death
        if self._body is not None:
            self._body.end(death)
        self._take_orders_in_vain(death)
        self._answers.put(None)
        with contextlib.suppress(OSError):
            self._attached.shutdown(socket.SHUT_RDWR)  # a fork may have copies of it
        self._attached.close()
        self._wakes.close()
        self._woken.close()
        if not self._is_closing:
            self._let_go()

    def _take_orders_in_vain(self, death: ExitReason) -> None:
        while self._orders:
            order = self._orders.popleft()
            if isinstance(order, ContainerHandle):
                order.end(death)

    def _serve(self) -> None:
        while not self._is_closing:
            ready = self._wait()
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
            self._take_orders()
            if self._attached in ready and not self._in:
                self._hear()
            self._read_on()
            self._hear_host()
            self._flush()

    def _wait(self) -> set[socket.socket]:
        """Wait until there is something to do.

        What neither side takes is not added to: one that floods the other waits.
        """
        lines = {self._woken: select.POLLIN}
        wanted = (0 if self._in else select.POLLIN) | (select.POLLOUT if self._out else 0)
        if wanted:
            lines[self._attached] = wanted
        far = None if self._body is None else self._body.far
        wanted = (0 if self._out else select.POLLIN) | (select.POLLOUT if self._in else 0)
        if far is not None and wanted:
            lines[far] = wanted
        waiting = select.poll()
        by_descriptor = {}
        for line, wanted in lines.items():
            waiting.register(line, wanted)
            by_descriptor[line.fileno()] = line
        return {by_descriptor[one] for one, _ in waiting.poll(self._patience_ms())}

    def _patience_ms(self) -> float | None:
        if not self._dying:
            return None
        left_s = min(self._dying.values()) - time.monotonic()
        if left_s <= 0:
            raise ChannelClosed(
                ExitReason("closed", why=f"it was killed, and not gone in {self._kill_s:g} s")
            )
        return 1000 * left_s + 1

    def _take_orders(self) -> None:
        while self._orders:
            order = self._orders.popleft()
            if isinstance(order, ContainerHandle):
                self._leave_body(ExitReason("unknown"))
                self._body = order
                continue
            if isinstance(order, Kill):
                body = self._body
                if body is None or body.number != order.number:
                    continue  # it is gone
                self._leave_body(ExitReason("unknown"))
                self._dying[order.number] = time.monotonic() + self._kill_s
            self._out.append(memoryview(encode(order)))

    def _leave_body(self, death: ExitReason) -> None:
        body, self._body = self._body, None
        self._in.clear()
        if body is not None:
            body.end(death)

    def _hear(self) -> None:
        """Read what the container sends."""
        try:
            data = self._attached.recv(4 * DATA_BYTES)
        except BlockingIOError:
            return
        if not data:
            if self._body is not None:
                self._body.hang_up()  # readers need not wait until the reason is known
            raise ChannelClosed(None)
        self._frames.feed(self._streams.output_of(data))

    def _read_on(self) -> None:
        """Handle messages of the container, unless the session has bytes to read first."""
        self._feed()
        while not self._in:
            frame = self._frames.next()
            if frame is None:
                return
            self._handle(_read.decode(frame))
            self._feed()

    def _handle(self, message: FromContainer) -> None:
        body = self._body
        if isinstance(message, Data):
            if body is not None and message.number == body.number:
                self._in.append(memoryview(message.data))
        elif isinstance(message, SessionEnded):
            self._dying.pop(message.number, None)
            if body is not None and message.number == body.number:
                self._leave_body(ExitReason(message.kind, message.code))
        elif isinstance(message, LimitExceeded):
            if body is not None and message.number == body.number:
                body.beyond = message.limit
        elif self._is_asked:
            self._is_asked = False
            self._answers.put(message)
        else:
            raise ValueError("an unexpected answer")

    def _feed(self) -> None:
        """Write the session's bytes to its reader."""
        far = None if self._body is None else self._body.far
        if far is None:
            self._in.clear()
            return
        try:
            _send(far, self._in)
        except OSError:
            self._in.clear()  # the reader is gone, and has it killed

    def _hear_host(self) -> None:
        body = self._body
        if body is None or body.far is None or self._out:
            return
        try:
            data = body.far.recv(DATA_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._out.append(memoryview(encode(Data(body.number, data))))
        else:
            body.hang_up()

    def _flush(self) -> None:
        _send(self._attached, self._out)


@final
class Streams:
    """Separates stdout and stderr of a container in what an engine sends.

    Attributes:
        errors: The last of the latter.
    """

    def __init__(self) -> None:
        self.errors = bytearray()
        self._head = b""
        self._left = 0
        self._stream = 0

    def output_of(self, data: bytes) -> bytes:
        """Return what of this the container wrote to its output."""
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
            if self._stream == _OUTPUT:
                output.append(part)
            elif self._stream == _ERRORS:
                self.errors += part
                del self.errors[:-_ERRORS_KEPT]
        return b"".join(output)


def _send(line: socket.socket, pending: deque[memoryview]) -> None:
    """Send what can be sent at once.

    Raises:
        OSError: The other end is gone.
    """
    with contextlib.suppress(BlockingIOError):
        while pending:
            rest = pending[0][line.send(pending[0]) :]
            if rest:
                pending[0] = rest
            else:
                pending.popleft()


def _named(error: Exception) -> str:
    return type(error).__name__
