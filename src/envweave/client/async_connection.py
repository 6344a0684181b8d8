"""A connection for async callers: many sessions, on one event loop at a time."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, final

from envweave.client.address import Address
from envweave.client.async_socket import AsyncSocket, dial_in_thread
from envweave.client.connection import dial, dial_managed
from envweave.client.errors import silent
from envweave.client.managed_server import ManagedServer, NoReplacementError, Route, ServerGoneError
from envweave.client.socket import ANSWER_S
from envweave.errors import CallOrderError, ConnectionLostError, DeadlineError, EnvWeaveError
from envweave.lifetime import OwnerProcess
from envweave.wire.encoding import Encoding
from envweave.wire.faults import error_of
from envweave.wire.messages import Call, Reply, gather_calls
from envweave.wire.protocol import RECONNECT_S, Backoff, Exchange, Key
from envweave.wire.websocket import Message


@final
class AsyncConnection:
    """Carries the calls of async callers on many sessions.

    It reconnects when it breaks and sends unanswered calls again, whenever its event loop runs,
    also between calls.

    Attributes:
        address: Where the server is, or was at first.
        exchange: The calls in flight.
    """

    def __init__(
        self,
        address: Address,
        encoding: Encoding,
        *,
        token: str | None = None,
        reconnect_s: float = RECONNECT_S,
        users: int = 1,
        managed: ManagedServer | None = None,
    ) -> None:
        self.address = address
        self.exchange = Exchange(encoding)
        self._token = token
        self._route = None if managed is None else Route(managed)
        self._reconnect_s = reconnect_s
        self._users = users
        self._socket: AsyncSocket | None = None
        self._since_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[Key, asyncio.Future[Reply]] = {}
        self._unsent: list[bytes] = []  # calls of this turn of the loop
        self._reconnecting: asyncio.Task[None] | None = None
        self._backoff = Backoff(reconnect_s)
        self._loss: ConnectionLostError | None = None  # why the last attempt or connection ended
        self._is_ended = False
        self._owner = OwnerProcess()

    async def call_server(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """Make a call without a session, and return its value.

        Raises:
            DeadlineError: The server did not reply in time.
            EnvWeaveError: The call was refused, or the server cannot be reached.
        """
        try:
            try:
                reply = await self.call(self.exchange.server_call(method, params), ANSWER_S)
            except NoReplacementError:
                raise
            except ServerGoneError:  # any server can answer it
                reply = await self.call(self.exchange.server_call(method, params), ANSWER_S)
        except DeadlineError:
            raise silent(self.address, method, ANSWER_S) from None
        if reply.fault is not None:
            raise error_of(reply.fault)
        return reply.result

    async def call(self, call: Call, timeout_s: float | None = None) -> Reply:
        """Make a call and wait for its reply, without limit or for `timeout_s`.

        If the caller is cancelled, the call continues at the server; `abandon` its session.

        Raises:
            DeadlineError: No reply came in time. It may still come; `abandon` its session.
            ConnectionLostError: The server could not be reached, or not again.
            WireError: A message could not be read, by us or by the server.
        """
        self._attach()
        for lost in self.exchange.replies_for_lost((call,)):
            return lost
        key = call.session, call.id
        data = self.exchange.frame((call,))
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[key] = reply
        if self._socket is None:
            self._reconnect_soon()
        else:
            self._send_soon(self._socket, data)
        try:
            if timeout_s is None:
                return await reply
            async with asyncio.timeout(timeout_s):
                return await reply
        except TimeoutError:
            if reply.done() and not reply.cancelled() and reply.exception() is not None:
                raise  # it came from the connection, not from this time limit
            raise DeadlineError(
                f"The server at {self.address.url} did not answer within {timeout_s:g} s."
            ) from None
        finally:
            self._waiting.pop(key, None)

    def _send_soon(self, socket: AsyncSocket, data: bytes) -> None:
        """Send a call together with the others of the same turn of the event loop."""
        if len(self._waiting) == 1:
            self._send(socket, data)
            return
        if not self._unsent and self._loop is not None:
            self._loop.call_soon(self._send_gathered)
        self._unsent.append(data)

    def _send_gathered(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._socket is not None:
            for data in gather_calls(self.exchange.encoding, unsent, self.exchange.limit_bytes):
                self._send(self._socket, data)

    def _attach(self) -> None:
        """Read on the running loop."""
        if not self._owner.is_current:
            raise CallOrderError(
                f"The connection to {self.address.url} was made before this process was forked, "
                "and belongs to its parent. Make the environment in this process."
            )
        if self._is_ended:
            raise ConnectionLostError(f"The connection to {self.address.url} was closed.")
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._reconnecting = loop, None
            self._send_gathered()  # what the previous loop left unsent
        if self._socket is not None:
            self._socket.attach()

    def _send(self, socket: AsyncSocket, data: bytes) -> None:
        if self.exchange.encoding.is_text:
            socket.send_text(data)
        else:
            socket.send(data)

    def _deliver(self, message: Message) -> None:
        try:
            replies = self.exchange.read(message)
        except EnvWeaveError as error:
            if self._socket is not None:
                self._socket.drop()
            self._lose(error)
            return
        if replies:
            self._backoff.reset()
        for reply in replies:
            waiting = self._waiting.get((reply.session, reply.id))
            if waiting is not None and not waiting.done():
                waiting.set_result(reply)
        self._send_closes()

    def _send_closes(self) -> None:
        if self._socket is not None and (closes := self.exchange.pop_closes()):
            self._send_gathered()  # the last calls of these sessions may be among them
            for data in closes:
                self._send(self._socket, data)

    def _lose(self, error: EnvWeaveError) -> None:
        """Record that the connection is gone; reconnect if there are calls or sessions."""
        if time.monotonic() - self._since_s > self._reconnect_s:
            self._backoff.reset()  # it lasted long enough that this is a new break
        self._socket = None
        self._unsent.clear()  # the next connection begins with every unanswered call
        if not isinstance(error, ConnectionLostError):
            self._fail_calls(error)
            return
        self._loss = error
        if not self._is_ended and (self._waiting or self.exchange.has_sessions):
            self._reconnect_soon()

    def _fail_calls(self, error: EnvWeaveError) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)

    def _reconnect_soon(self) -> None:
        if self._reconnecting is None or self._reconnecting.done():
            self._reconnecting = asyncio.ensure_future(self._reconnect())
            self._reconnecting.add_done_callback(self._on_reconnect_done)

    def _on_reconnect_done(self, task: asyncio.Task[None]) -> None:
        """Fail the waiting calls if reconnecting raised an unexpected error."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail_calls(ConnectionLostError(f"{self.address.url} cannot be reached: {error}"))

    async def _reconnect(self) -> None:
        """Reconnect, with pauses, and send unanswered calls again."""
        encoding, route = self.exchange.encoding, self._route
        if route is None:
            call = partial(dial, self.address, encoding, self._token)
        else:
            call = partial(dial_managed, route, encoding)
        while self._is_needed():
            if (loss := self._loss) is not None:
                pause_s = self._backoff.pause_s(time.monotonic())
                if pause_s is None:
                    self._backoff.reset()
                    self._loss = None
                    self._fail_calls(loss)
                    return
                await asyncio.sleep(pause_s)
            try:
                opened = await dial_in_thread(call)
            except ServerGoneError as error:
                if not isinstance(error, NoReplacementError):  # else they are marked already
                    self.exchange.mark_server_lost(error)
                self._backoff.reset()
                self._loss = None
                self._fail_calls(error)
                return
            except ConnectionLostError as error:
                self._loss = error
            except EnvWeaveError as error:
                self._fail_calls(error)
                return
            else:
                if not self._is_needed():
                    opened.close()
                    return
                self._since_s, self._loss = time.monotonic(), None
                socket = AsyncSocket(opened, self.address, self._deliver, self._lose)
                self._socket = socket
                for data in self.exchange.frames_to_resend():
                    self._send(socket, data)

    def _is_needed(self) -> bool:
        return self._socket is None and not self._is_ended

    def abandon(self, session: str) -> None:
        """Close a session that is no longer used."""
        self.exchange.abandon(session)
        self._send_closes()

    @property
    def is_ours(self) -> bool:
        """Whether this process made it, rather than a parent that forked."""
        return self._owner.is_current

    @property
    def is_ended(self) -> bool:
        """Whether it was ended."""
        return self._is_ended

    def join(self) -> None:
        """Add one user."""
        self._users += 1

    def leave(self) -> bool:
        """Remove one user; the last one disconnects. Return whether it was the last."""
        self._users -= 1
        if self._users <= 0:
            self.end()
        return self._users <= 0

    def end(self) -> None:
        """Disconnect. May be called twice. Does nothing in a forked copy of the process."""
        if not self._owner.is_current:
            return
        self._is_ended = True
        self._fail_calls(ConnectionLostError(f"The connection to {self.address.url} was closed."))
        reconnecting, self._reconnecting = self._reconnecting, None
        if reconnecting is not None and not reconnecting.get_loop().is_closed():
            reconnecting.cancel()
        self._send_gathered()
        socket, self._socket = self._socket, None
        if socket is not None:
            self.exchange.abandon_all()
            for data in self.exchange.pop_closes():
                self._send(socket, data)
            socket.close()
