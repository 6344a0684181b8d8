"""A connection for a blocking caller: no thread, no event loop.

It reconnects when it breaks and sends unanswered calls again; the server runs each call once. The
caller sees an error only after reconnecting has failed for a while.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, final

from envweave.client.address import Address
from envweave.client.errors import not_envweave, silent
from envweave.client.managed_server import ManagedServer, NoReplacementError, Route, ServerGoneError
from envweave.client.socket import ANSWER_S, CONNECT_S, BlockingSocket
from envweave.errors import CallOrderError, ConnectionLostError, DeadlineError
from envweave.lifetime import OwnerProcess
from envweave.wire.encoding import Encoding
from envweave.wire.faults import error_of
from envweave.wire.messages import Call, Reply, Stepped
from envweave.wire.protocol import RECONNECT_S, Backoff, BatchFrame, Exchange

_BRIEF_S = 0.5


def dial(
    address: Address, encoding: Encoding, token: str | None, connect_timeout_s: float = CONNECT_S
) -> BlockingSocket:
    """Open a WebSocket that speaks envweave's own dialect.

    Raises:
        ConnectionLostError: No server answers there.
        AccessError: The server refuses this caller.
        ServerError: It does not speak the dialect.
    """
    opened = BlockingSocket(
        address,
        headers={"Authorization": f"Bearer {token}"} if token else None,
        subprotocols=(encoding.subprotocol,),
        connect_timeout_s=connect_timeout_s,
    )
    if opened.subprotocol != encoding.subprotocol:
        opened.close()
        raise not_envweave(address, "It accepts WebSockets, but not the subprotocol.")
    return opened


def dial_managed(route: Route, encoding: Encoding) -> BlockingSocket:
    """Open a WebSocket to a server that was started for this caller, or to its replacement.

    Raises:
        ServerGoneError: It is gone for good; the next attempt starts another one.
        EnvWeaveError: As `dial`.
    """
    return route.dial(lambda address: dial(address, encoding, route.server.token))


def send_encoded(
    socket: BlockingSocket, encoding: Encoding, data: bytes, timeout_s: float | None = None
) -> None:
    """Send an encoded message, as text or binary according to its encoding."""
    if encoding.is_text:
        socket.send_text(data, timeout_s)
    else:
        socket.send(data, timeout_s)


@final
class SharedCallback:
    """A callback of several connections; it is called when the last of them ends."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._users = 1
        self._lock = threading.Lock()  # over the count: each connection may have its own thread

    def share(self) -> SharedCallback:
        """Count one more connection."""
        with self._lock:
            self._users += 1
        return self

    def __call__(self) -> None:
        """Count one connection less."""
        with self._lock:
            self._users -= 1
            is_last = not self._users
        if is_last:
            self._callback()


@final
class BlockingConnection:
    """Carries the calls of one blocking caller, on one session or many.

    Args:
        address: Where the server is.
        encoding: The encoding of messages.
        token: The access token for the server.
        reconnect_s: How long to try to reconnect.
        managed: The server, if it was started for this caller.
        on_end: Called after the connection has ended; stops a server that was started for it.

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
        managed: ManagedServer | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self.address = address
        self.exchange = Exchange(encoding)
        self._token = token
        self._route = None if managed is None else Route(managed)
        self._reconnect_s = reconnect_s
        self._backoff = Backoff(reconnect_s)
        self._socket: BlockingSocket | None = None
        self._since_s = 0.0
        self._inbox: deque[Reply] = deque()
        self._on_end = None if on_end is None else SharedCallback(on_end)
        self._owner = OwnerProcess()

    def another(self) -> BlockingConnection:
        """Return another connection to the same server; its first call connects.

        `on_end` is called after the last of them has ended.
        """
        other = BlockingConnection(
            self.address,
            self.exchange.encoding,
            token=self._token,
            reconnect_s=self._reconnect_s,
            managed=None if self._route is None else self._route.server,
        )
        other._on_end = None if self._on_end is None else self._on_end.share()
        return other

    def connect(self) -> None:
        """Connect, if there is no connection. One attempt.

        Raises:
            ConnectionLostError: No server answers there.
            AccessError: The server refuses this caller.
            ServerError: It does not speak the dialect.
            CallOrderError: A forked copy of the process called.
        """
        if not self._owner.is_current:
            raise self._foreign_process()
        if self._socket is not None:
            return
        encoding = self.exchange.encoding
        if self._route is None:
            socket = dial(self.address, encoding, self._token)
        else:
            socket = self._dial_managed(self._route)
        try:
            for data in self.exchange.frames_to_resend():
                send_encoded(socket, encoding, data)
        except BaseException:
            socket.drop()
            raise
        self._socket, self._since_s = socket, time.monotonic()

    def _foreign_process(self) -> CallOrderError:
        return CallOrderError(
            f"The connection to {self.address.url} was made before this process was forked, "
            "and belongs to its parent. Make the environment in this process."
        )

    def _dial_managed(self, route: Route) -> BlockingSocket:
        try:
            return dial_managed(route, self.exchange.encoding)
        except NoReplacementError:
            raise  # the sessions of the lost server are marked already
        except ServerGoneError as loss:
            self.exchange.mark_server_lost(loss)
            raise

    def call_server(
        self, method: str, params: dict[str, Any] | None = None, timeout_s: float = ANSWER_S
    ) -> Any:
        """Make a call without a session, and return its value.

        Raises:
            DeadlineError: The server did not reply in time.
            EnvWeaveError: The call was refused, or the server cannot be reached.
        """
        try:
            try:
                reply = self.call(self.exchange.server_call(method, params), timeout_s)
            except NoReplacementError:
                raise
            except ServerGoneError:  # any server can answer it
                reply = self.call(self.exchange.server_call(method, params), timeout_s)
        except DeadlineError:
            raise silent(self.address, method, timeout_s) from None
        if reply.fault is not None:
            raise error_of(reply.fault)
        return reply.result

    def call(self, call: Call, timeout_s: float | None = None) -> Reply:
        """Make a call and wait for its reply, without limit or for `timeout_s`.

        Raises:
            DeadlineError: No reply came in time. It may still come; `abandon` the session.
            ConnectionLostError: The server could not be reached again.
            WireError: A message could not be read, by us or by the server.
        """
        if self.exchange.has_lost_sessions:
            for reply in self.exchange.replies_for_lost((call,)):
                return reply
        ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._post((call,), together=True, timeout_s=timeout_s)
        while True:
            left_s = None if ends_s is None else max(0.0, ends_s - time.monotonic())
            for reply in self._receive(left_s):
                if reply.id == call.id and reply.session == call.session:
                    return reply
                self._inbox.append(reply)

    def post(
        self, calls: Sequence[Call], *, together: bool = True, timeout_s: float | None = None
    ) -> None:
        """Send calls without waiting for their replies. `collect` reports a lost connection.

        Raises:
            DeadlineError: The server did not read them within `timeout_s`.
            AccessError: The server refuses this caller now.
            ServerGoneError: The server was started for this caller, and is gone for good.
            CallOrderError: A forked copy of the process called.
        """
        replies = self.exchange.replies_for_lost(calls)
        if replies:
            self._inbox.extend(replies)
            lost = {reply.session for reply in replies}
            calls = [call for call in calls if call.session not in lost]
            if not calls:
                return
        self._post(calls, together=together, timeout_s=timeout_s)

    def _post(self, calls: Sequence[Call], *, together: bool, timeout_s: float | None) -> None:
        """Send calls on sessions of which none was lost with its server."""
        if not self._owner.is_current:
            raise self._foreign_process()
        data = self.exchange.frame(calls, together=together)
        try:
            if self._socket is None:
                self.connect()
            else:
                send_encoded(self._socket, self.exchange.encoding, data, timeout_s)
        except ServerGoneError:
            raise
        except ConnectionLostError:
            self._drop()
        except BaseException:
            self._drop()  # part of a message may have been sent
            raise

    def step_batch(self, batch: BatchFrame) -> Stepped | None:
        """Step many sessions in one frame, and wait for the answer.

        If the answer does not cover all of them, or the connection is lost, `None` is returned
        and `collect` returns the replies one by one.

        Raises:
            AccessError: The server refuses this caller now.
            WireError: A message could not be read, by us or by the server.
            CallOrderError: A forked copy of the process called.
        """
        exchange = self.exchange
        if exchange.has_lost_sessions:
            self.post([batch.steps.call(i) for i in range(len(batch.steps.sessions))])
            return None
        exchange.begin_batch(batch)
        try:
            if self._socket is None:
                self.connect()  # sends the batch
            else:
                send_encoded(self._socket, exchange.encoding, batch.data)
            assert self._socket is not None
            answer = exchange.read_batch(self._socket.receive())
            self._send_closes()
        except ServerGoneError:
            raise
        except ConnectionLostError:
            self._drop()
            return None
        except BaseException:
            self._drop()  # part of a message may have been sent, or read
            raise
        if isinstance(answer, Stepped):
            if self._socket is not None:
                self._socket.may_spin = answer.alone
            self._backoff.reset()
            return answer
        self._inbox.extend(answer)
        return None

    def collect(self, timeout_s: float | None = None) -> list[Reply]:
        """Wait for replies to posted calls; return those that arrive with the first.

        Raises:
            DeadlineError: None came in time.
            ConnectionLostError: The server could not be reached again.
            WireError: A message could not be read, by us or by the server.
        """
        if self._inbox:
            replies = list(self._inbox)
            self._inbox.clear()
            return replies
        return self._receive(timeout_s)

    def _receive(self, timeout_s: float | None) -> list[Reply]:
        ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = None if ends_s is None else max(0.0, ends_s - time.monotonic())
            try:
                if self._socket is None:
                    self.connect()
                socket = self._socket
                assert socket is not None
                replies = self.exchange.read(socket.receive(left_s))
                if self.exchange.has_closes:
                    self._send_closes()
            except ConnectionLostError as loss:
                self._back_off(loss)
                continue
            except DeadlineError:
                raise
            except BaseException:
                self._drop()  # part of a message may have been read
                raise
            if replies:
                socket.may_spin = replies[-1].alone
                self._backoff.reset()
                return replies

    def _send_closes(self) -> None:
        """Close abandoned sessions. A loss here must not lose the replies that were just read."""
        socket = self._socket
        if socket is None:
            return
        try:
            for data in self.exchange.pop_closes():
                send_encoded(socket, self.exchange.encoding, data)
        except ConnectionLostError:
            self._drop()  # the server closes idle sessions by itself

    def _back_off(self, loss: ConnectionLostError) -> None:
        """Wait before the next attempt.

        Raises:
            ConnectionLostError: The time for reconnecting is up.
        """
        now_s = time.monotonic()
        if isinstance(loss, ServerGoneError):
            self._backoff.reset()
            raise loss
        if self._socket is not None and now_s - self._since_s > self._reconnect_s:
            self._backoff.reset()  # it lasted long enough that this is a new break
        self._drop()
        pause_s = self._backoff.pause_s(now_s)
        if pause_s is None:
            self._backoff.reset()
            raise loss
        time.sleep(pause_s)

    def _drop(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.drop()

    def call_briefly(self, call: Call, timeout_s: float) -> Reply:
        """Make a last call, with little time for reconnecting.

        Raises:
            EnvWeaveError: As `call`.
        """
        self._backoff = Backoff(_BRIEF_S)
        self._reconnect_s = _BRIEF_S
        return self.call(call, timeout_s)

    def fileno(self) -> int:
        """Return the file descriptor to poll for replies; -1 without a connection."""
        return -1 if self._socket is None else self._socket.fileno()

    def abandon(self, session: str) -> None:
        """Close a session that is no longer used, with the next message to the server."""
        self.exchange.abandon(session)

    def end(self, calls: Sequence[Call] = ()) -> None:
        """Send some last calls, if there is a connection, and disconnect. May be called twice.

        A forked copy of the process only closes its file descriptor.
        """
        socket, self._socket = self._socket, None
        on_end, self._on_end = self._on_end, None
        if not self._owner.is_current:
            if socket is not None:
                socket.drop()
            return
        try:
            if socket is not None:
                self._send_last(socket, calls)
        finally:
            if on_end is not None:
                on_end()

    def _send_last(self, socket: BlockingSocket, calls: Sequence[Call]) -> None:
        encoding = self.exchange.encoding
        try:
            for data in self.exchange.pop_closes():
                send_encoded(socket, encoding, data)
            for call in calls:
                send_encoded(socket, encoding, encoding.encode(call))
        except ConnectionLostError:
            pass  # the server notices by itself
        finally:
            socket.close()
