"""Calls to the sessions of a worker process, by number: both ends, for every kind of worker.

A call is `[number, method, session, params, timeout_s]`, its reply `[number, kind, payload,
status]`. `params` and `payload` are encoded by themselves, so that what cannot be decoded spoils
only its own call. How they are encoded is all that kinds of workers differ in: process sessions
exchange pickles (`session_worker.py`), a server and its workers MessagePack that is ready for the
client (`server/runtime/worker_host.py`). `status` is plain data on the session, with every reply.

A call with number 0 has no reply, and a reply with number 0 answers none: a worker sends it by
itself. `PING`, `CANCEL` and `END` are carried out by the host. Every other method is the
`Sessions`' own, so a new kind of call needs nothing here.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, final

from envweave.workers.channel import FrameConnection
from envweave.workers.launch import WorkerLostError

DONE, FAILED, UNREADABLE = 0, 1, 2
"""Kinds of replies: a result, an error, or the parameters could not be decoded."""

PING, CANCEL, END = "ping", "cancel", "end"

PING_NUMBER = -1
"""The number of every ping, and of its reply, which has nothing else."""


class CallEncoding(Protocol):
    """How parameters, results and errors are sent."""

    def encode_call(self, params: Any) -> bytes:
        """Encode the parameters of a call, for the worker."""
        ...

    def encode_reply(self, value: Any) -> bytes:
        """Encode a result, in the worker."""
        ...

    def encode_error(self, error: Exception) -> bytes:
        """Encode what a call raised, in the worker. Raises nothing."""
        ...

    def decode(self, packed: bytes) -> Any:
        """Decode parameters or a result."""
        ...

    def decode_error(self, packed: bytes) -> Exception:
        """Decode what a call raised."""
        ...


# The worker's side


class Sessions(Protocol):
    """The sessions of a host, and what they can be called for."""

    async def call(self, method: str, session: int, params: Any, timeout_s: float | None, /) -> Any:
        """Carry out a call; what it raises is sent to the caller."""
        ...

    async def replace(self, session: int, value: Any, error: Exception, /) -> Any:
        """Return what to send in place of a result that could not be encoded, or raise."""
        ...

    def status(self, session: int) -> Any:
        """Return the plain data that goes with every reply."""
        ...

    def notify(self, method: str, session: int) -> None:
        """Carry out a call that has no reply."""

    def abandon(self, session: int) -> None:
        """Called when a call was to be cancelled that had already returned."""


@final
class SessionHost:
    """Carries out the calls of a worker's sessions, on the event loop that runs."""

    def __init__(self, sessions: Sessions, encoding: CallEncoding) -> None:
        self._sessions = sessions
        self._encoding = encoding
        self._running: dict[int, asyncio.Task[None]] = {}  # by the numbers of the calls
        self._connection: FrameConnection | None = None
        self._is_over = asyncio.Event()

    def open(self, connection: socket.socket) -> None:
        """Answer what arrives on a connection from now on."""
        opened = self._connection = FrameConnection(connection)

        def on_message(message: list[Any]) -> None:
            self.handle(message, opened.send)

        opened.attach(on_message, self._is_over.set)

    async def wait(self) -> None:
        """Wait until the other side asks for the end, or is gone."""
        await self._is_over.wait()

    def handle(
        self, message: list[Any], send: Callable[[list[Any]], None]
    ) -> asyncio.Task[None] | None:
        """Start a call; `send` is called with the reply, unless it is cancelled before."""
        number, method, session, packed, timeout_s = message
        if method == PING:
            send([number])
        elif method == END:
            self._is_over.set()
        elif method == CANCEL:
            running = self._running.get(number)
            if running is None or not running.cancel():
                self._sessions.abandon(session)
        elif number == 0:
            self._sessions.notify(method, session)
        else:
            call = self._answer(number, method, session, packed, timeout_s, send)
            task = self._running[number] = asyncio.ensure_future(call)
            task.add_done_callback(lambda _: self._running.pop(number))
            return task
        return None

    async def _answer(
        self,
        number: int,
        method: str,
        session: int,
        packed: bytes,
        timeout_s: float | None,
        send: Callable[[list[Any]], None],
    ) -> None:
        encoding, sessions = self._encoding, self._sessions
        kind = UNREADABLE
        try:
            params = encoding.decode(packed)
            kind = FAILED
            value = await sessions.call(method, session, params, timeout_s)
            try:
                payload = encoding.encode_reply(value)
            except Exception as error:  # noqa: BLE001 - whatever an author's object raises
                value = await sessions.replace(session, value, error)
                payload = encoding.encode_reply(value)
            kind = DONE
        except Exception as error:  # noqa: BLE001 - sent to the caller, which raises it
            payload = encoding.encode_error(error)
        send([number, kind, payload, sessions.status(session)])

    def report(self, value: Any) -> None:
        """Send something that no call has asked for."""
        self._send([0, DONE, self._encoding.encode_reply(value), None])

    def report_error(self, error: Exception) -> None:
        """Send an error that no call has raised."""
        self._send([0, FAILED, self._encoding.encode_error(error), None])

    def _send(self, reply: list[Any]) -> None:
        assert self._connection is not None
        self._connection.send(reply)

    async def cancel_all(self) -> None:
        """Cancel all calls that run, and wait for their end."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def close(self) -> None:
        """Send what is left to send, and answer no more."""
        if self._connection is not None:
            self._connection.detach()


# The caller's side


class WorkerReply(NamedTuple):
    """A reply of a worker.

    Attributes:
        encoding: How it is encoded.
        kind: `DONE`, `FAILED` or `UNREADABLE`.
        payload: The result, or an error.
        status: What `Sessions.status` returned.
    """

    encoding: CallEncoding
    kind: int
    payload: bytes
    status: Any

    @property
    def is_done(self) -> bool:
        """Whether it is a result."""
        return self.kind == DONE

    def value(self) -> Any:
        """Return the result.

        Raises:
            Exception: What the call raised.
        """
        if self.kind == DONE:
            return self.encoding.decode(self.payload)
        raise self.encoding.decode_error(self.payload)


class PendingCall(NamedTuple):
    """A call whose reply has not arrived.

    Attributes:
        number: Its number.
        session: The session that it calls.
        future: Gets the reply.
        on_reply: Called with the reply, also if the caller was cancelled.
        due_s: When the reply is due; `None` if the call may take any time.
    """

    number: int
    session: int
    future: asyncio.Future[WorkerReply]
    on_reply: Callable[[WorkerReply], None] | None
    due_s: float | None


class LoopConnection(Protocol):
    """A connection to a worker, for an event loop. See `FrameConnection`."""

    def attach(self, on_message: Callable[[Any], Any], on_lost: Callable[[], None]) -> None:
        """Deliver what arrives on the loop that runs."""
        ...

    def send(self, message: Any) -> None:
        """Send a message; dropped if the worker is gone."""
        ...

    def detach(self) -> None:
        """Leave the loop. May be called twice."""
        ...


@final
class WorkerConnection:
    """Numbers the calls to one worker, and hands each reply to its caller.

    Attributes:
        connection: The connection to the worker; `None` while there is none.
    """

    def __init__(self, encoding: CallEncoding) -> None:
        self._encoding = encoding
        self._pending: dict[int, PendingCall] = {}
        self._numbers = itertools.count(1)
        self.connection: LoopConnection | None = None

    def message(
        self, method: str, session: int, params: Any, timeout_s: float | None = None
    ) -> list[Any]:
        """Return a call as a message, with a new number."""
        packed = self._encoding.encode_call(params)
        return [next(self._numbers), method, session, packed, timeout_s]

    def submit(
        self,
        method: str,
        session: int,
        params: Any,
        timeout_s: float | None = None,
        on_reply: Callable[[WorkerReply], None] | None = None,
    ) -> PendingCall:
        """Make a call."""
        assert self.connection is not None
        message = self.message(method, session, params, timeout_s)
        future: asyncio.Future[WorkerReply] = asyncio.get_running_loop().create_future()
        due_s = None if timeout_s is None else time.monotonic() + timeout_s
        call = PendingCall(message[0], session, future, on_reply, due_s)
        self._pending[call.number] = call
        self.connection.send(message)
        return call

    def notify(self, method: str, session: int = 0, number: int = 0) -> None:
        """Send a message that has no reply; dropped if there is no worker."""
        if self.connection is not None:
            self.connection.send([number, method, session, None, None])

    def cancel(self, call: PendingCall) -> None:
        """Have the worker cancel a call; its reply is dropped."""
        self._pending.pop(call.number, None)
        self.notify(CANCEL, call.session, call.number)

    def read(self, message: list[Any]) -> WorkerReply:
        """Return a reply that was received as a message."""
        return WorkerReply(self._encoding, *message[1:])

    def receive(self, message: list[Any]) -> WorkerReply | None:
        """Hand a reply to its caller; return one that no call has asked for."""
        number = message[0]
        if number == PING_NUMBER:
            return None
        reply = self.read(message)
        if number == 0:
            return reply
        call = self._pending.pop(number, None)
        if call is not None:
            if call.on_reply is not None:
                call.on_reply(reply)
            if not call.future.done():
                call.future.set_result(reply)
        return None

    @property
    def has_pending(self) -> bool:
        """Whether a reply is expected."""
        return bool(self._pending)

    @property
    def due_s(self) -> float | None:
        """When the first reply is due, of the calls that have a time limit."""
        return min((c.due_s for c in self._pending.values() if c.due_s is not None), default=None)

    def fail(self, loss: WorkerLostError) -> None:
        """The worker is gone: leave the connection, and fail all pending calls."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.detach()
        pending, self._pending = self._pending, {}
        for call in pending.values():
            if not call.future.done():
                call.future.set_exception(loss)
