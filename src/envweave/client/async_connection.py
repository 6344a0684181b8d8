"""A connection for async callers: many sessions, on one event loop at a time."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, final

from envweave.client.address import Address
from envweave.client.async_socket import AsyncSocket, dial_apart
from envweave.client.connection import dial, dial_place
from envweave.client.errors import silent
from envweave.client.managed_server import ManagedServer, NoReplacementError, Route, ServerGoneError
from envweave.client.socket import ANSWER_S
from envweave.errors import CallOrderError, ConnectionLostError, DeadlineError, EnvWeaveError
from envweave.lifetime import OwnerProcess
from envweave.wire.encoding import Encoding
from envweave.wire.faults import error_of
from envweave.wire.messages import Call, Reply, gather_calls
from envweave.wire.protocol import PATIENCE_S, Backoff, Exchange, Key
from envweave.wire.websocket import Message


@final
class AsyncConnection:
    """Carries the calls of async callers on many sessions.

    One that breaks is made again, and what was not answered is sent again. It is looked after
    while a loop runs, also while nobody calls.

    Attributes:
        address: Where the server is, or was at first.
        exchange: The calls under way.
    """

    def __init__(
        self,
        address: Address,
        encoding: Encoding,
        *,
        token: str | None = None,
        patience_s: float = PATIENCE_S,
        users: int = 1,
        place: ManagedServer | None = None,
    ) -> None:
        self.address = address
        self.exchange = Exchange(encoding)
        self._token = token
        self._route = None if place is None else Route(place)
        self._patience_s = patience_s
        self._users = users
        self._line: AsyncSocket | None = None
        self._since_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[Key, asyncio.Future[Reply]] = {}
        self._unsent: list[bytes] = []  # calls of this turn of the loop
        self._mending: asyncio.Task[None] | None = None
        self._patience = Backoff(patience_s)
        self._loss: ConnectionLostError | None = None  # why the last try, or connection, ended
        self._is_ended = False
        self._owner = OwnerProcess()

    async def ask(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """Return what the server says to a call without a session.

        Raises:
            DeadlineError: It says nothing.
            EnvWeaveError: What it was refused with, or why it cannot be asked.
        """
        try:
            try:
                reply = await self.call(self.exchange.question(method, params), ANSWER_S)
            except NoReplacementError:
                raise
            except ServerGoneError:  # any server can answer it
                reply = await self.call(self.exchange.question(method, params), ANSWER_S)
        except DeadlineError:
            raise silent(self.address, method, ANSWER_S) from None
        if reply.fault is not None:
            raise error_of(reply.fault)
        return reply.result

    async def call(self, call: Call, timeout_s: float | None = None) -> Reply:
        """Make a call and wait for its reply, as long as it takes or for so long.

        Who is cancelled meanwhile leaves a call that runs on; `abandon` its session.

        Raises:
            DeadlineError: No reply came in time. It may yet come; `abandon` its session.
            ConnectionLostError: The server could not be reached, or not again.
            WireError: A message could not be read, by us or by the server.
        """
        self._attend()
        for told in self.exchange.epitaphs((call,)):
            return told
        key = call.session, call.id
        data = self.exchange.frame((call,))
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[key] = reply
        if self._line is None:
            self._mend_soon()
        else:
            self._send_soon(self._line, data)
        try:
            if timeout_s is None:
                return await reply
            async with asyncio.timeout(timeout_s):
                return await reply
        except TimeoutError:
            if reply.done() and not reply.cancelled() and reply.exception() is not None:
                raise  # a connection's own
            raise DeadlineError(
                f"The server at {self.address.url} did not answer within {timeout_s:g} s."
            ) from None
        finally:
            self._waiting.pop(key, None)

    def _send_soon(self, line: AsyncSocket, data: bytes) -> None:
        """Send a call, with the others that are made in the same turn of the loop."""
        if len(self._waiting) == 1:
            self._put(line, data)  # there are no others
            return
        if not self._unsent and self._loop is not None:
            self._loop.call_soon(self._send_gathered)
        self._unsent.append(data)

    def _send_gathered(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._line is not None:
            for data in gather_calls(self.exchange.encoding, unsent, self.exchange.limit_bytes):
                self._put(self._line, data)

    def _attend(self) -> None:
        """Listen on the loop that runs now."""
        if not self._owner.is_current:
            raise CallOrderError(
                f"The connection to {self.address.url} was made before this process was forked, "
                "and belongs to its parent. Make the environment in this process."
            )
        if self._is_ended:
            raise ConnectionLostError(f"The connection to {self.address.url} was closed.")
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._mending = loop, None
            self._send_gathered()  # what the last loop did not come to
        if self._line is not None:
            self._line.attend()

    def _put(self, line: AsyncSocket, data: bytes) -> None:
        if self.exchange.encoding.is_text:
            line.send_text(data)
        else:
            line.send(data)

    def _deliver(self, message: Message) -> None:
        try:
            replies = self.exchange.read(message)
        except EnvWeaveError as error:
            if self._line is not None:
                self._line.drop()
            self._lose(error)
            return
        if replies:
            self._patience.renew()
        for reply in replies:
            waiting = self._waiting.get((reply.session, reply.id))
            if waiting is not None and not waiting.done():
                waiting.set_result(reply)
        self._send_closings()

    def _send_closings(self) -> None:
        if self._line is not None and (closings := self.exchange.closings()):
            self._send_gathered()  # the last calls of these sessions may be among them
            for data in closings:
                self._put(self._line, data)

    def _lose(self, error: EnvWeaveError) -> None:
        """Take note that the connection is gone; make it again if anybody needs it."""
        if time.monotonic() - self._since_s > self._patience_s:
            self._patience.renew()  # it held for long; this is a new break, not the same
        self._line = None
        self._unsent.clear()  # the next connection begins with everything that waits
        if not isinstance(error, ConnectionLostError):
            self._give_up(error)
            return
        self._loss = error
        if not self._is_ended and (self._waiting or self.exchange.has_sessions):
            self._mend_soon()

    def _give_up(self, error: EnvWeaveError) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)

    def _mend_soon(self) -> None:
        if self._mending is None or self._mending.done():
            self._mending = asyncio.ensure_future(self._mend())
            self._mending.add_done_callback(self._mended)

    def _mended(self, task: asyncio.Task[None]) -> None:
        """Tell who waits, if even the trying failed."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._give_up(ConnectionLostError(f"{self.address.url} cannot be reached: {error}"))

    async def _mend(self) -> None:
        """Connect again, with pauses, and send what was not answered."""
        encoding, route = self.exchange.encoding, self._route
        if route is None:
            call = partial(dial, self.address, encoding, self._token)
        else:
            call = partial(dial_place, route, encoding)
        while self._is_wanted():
            if (loss := self._loss) is not None:
                pause_s = self._patience.pause_s(time.monotonic())
                if pause_s is None:
                    self._patience.renew()
                    self._loss = None
                    self._give_up(loss)
                    return
                await asyncio.sleep(pause_s)
            try:
                opened = await dial_apart(call)
            except ServerGoneError as error:
                if not isinstance(error, NoReplacementError):  # else they are buried
                    self.exchange.bury(error)
                self._patience.renew()
                self._loss = None
                self._give_up(error)
                return
            except ConnectionLostError as error:
                self._loss = error
            except EnvWeaveError as error:
                self._give_up(error)
                return
            else:
                if not self._is_wanted():
                    opened.close()
                    return
                self._since_s, self._loss = time.monotonic(), None
                line = AsyncSocket(opened, self.address, self._deliver, self._lose)
                self._line = line
                for data in self.exchange.again():
                    self._put(line, data)

    def _is_wanted(self) -> bool:
        return self._line is None and not self._is_ended

    def abandon(self, session: str) -> None:
        """Have a session closed that nobody wants any more, when the server can be told."""
        self.exchange.abandon(session)
        self._send_closings()

    @property
    def is_ours(self) -> bool:
        """Whether this process made it, and no other that forked."""
        return self._owner.is_current

    @property
    def is_ended(self) -> bool:
        """Whether it was ended."""
        return self._is_ended

    def leave(self) -> bool:
        """Count one user less; with the last, hang up and return true."""
        self._users -= 1
        if self._users <= 0:
            self.end()
        return self._users <= 0

    def end(self) -> None:
        """Hang up. May be called twice. A forked copy of the process does no such thing."""
        if not self._owner.is_current:
            return
        self._is_ended = True
        self._give_up(ConnectionLostError(f"The connection to {self.address.url} was closed."))
        mending, self._mending = self._mending, None
        if mending is not None and not mending.get_loop().is_closed():
            mending.cancel()
        self._send_gathered()
        line, self._line = self._line, None
        if line is not None:
            self.exchange.abandon_all()
            for data in self.exchange.closings():
                self._put(line, data)
            line.close()
