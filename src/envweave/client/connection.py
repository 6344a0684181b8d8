"""A connection for a blocking caller: no thread, no event loop.

One that breaks is made again, and what was not answered is sent again; the server answers each
call once. Only when that has failed for a while does a caller hear of it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, final

from envweave.client.address import Address
from envweave.client.errors import foreign, silent
from envweave.client.managed_server import ManagedServer, NoReplacementError, Route, ServerGoneError
from envweave.client.socket import ANSWER_S, CONNECT_S, BlockingSocket
from envweave.errors import CallOrderError, ConnectionLostError, DeadlineError
from envweave.lifetime import OwnerProcess
from envweave.wire.encoding import Encoding
from envweave.wire.faults import error_of
from envweave.wire.messages import Call, Reply, Stepped
from envweave.wire.protocol import PATIENCE_S, Backoff, BatchFrame, Exchange

_BRIEF_S = 0.5


def dial(
    address: Address, encoding: Encoding, token: str | None, connect_timeout_s: float = CONNECT_S
) -> BlockingSocket:
    """Open a WebSocket in envweave's own dialect.

    Raises:
        ConnectionLostError: Nobody answers there.
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
        raise foreign(address, "It agreed to a WebSocket, but not to the dialect.")
    return opened


def dial_place(route: Route, encoding: Encoding) -> BlockingSocket:
    """Open a WebSocket to a server that was started for this caller, or to another in its place.

    Raises:
        PlaceGoneError: It is gone for good; whoever tries next has another one started.
        EnvWeaveError: As `dial`.
    """
    return route.dial(lambda address: dial(address, encoding, route.place.token))


def put(
    line: BlockingSocket, encoding: Encoding, data: bytes, timeout_s: float | None = None
) -> None:
    """Send an encoded message as its encoding travels."""
    if encoding.is_text:
        line.send_text(data, timeout_s)
    else:
        line.send(data, timeout_s)


@final
class BlockingConnection:
    """Carries the calls of one blocking caller, on one session or many.

    Args:
        address: Where the server is.
        encoding: How messages are written.
        token: What to show the server.
        patience_s: How long to go on trying to reach it again.
        place: Where the server runs, if it was started for this caller.
        on_end: Called when the connection has ended: it stops a server that was started for it.

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
        place: ManagedServer | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self.address = address
        self.exchange = Exchange(encoding)
        self._token = token
        self._route = None if place is None else Route(place)
        self._patience_s = patience_s
        self._patience = Backoff(patience_s)
        self._line: BlockingSocket | None = None
        self._since_s = 0.0
        self._inbox: deque[Reply] = deque()
        self._on_end = on_end
        self._owner = OwnerProcess()

    def reach(self) -> None:
        """Connect, if there is no connection; who has never been reached is tried once.

        Raises:
            ConnectionLostError: Nobody answers there.
            AccessError: The server refuses this caller.
            ServerError: It does not speak the dialect.
            CallOrderError: A forked copy of the process called.
        """
        if not self._owner.is_current:
            raise CallOrderError(
                f"The connection to {self.address.url} was made before this process was forked, "
                "and belongs to its parent. Make the environment in this process."
            )
        if self._line is not None:
            return
        encoding = self.exchange.encoding
        if self._route is None:
            line = dial(self.address, encoding, self._token)
        else:
            line = self._dial_place(self._route)
        try:
            for data in self.exchange.again():
                put(line, encoding, data)
        except BaseException:
            line.drop()
            raise
        self._line, self._since_s = line, time.monotonic()

    def _dial_place(self, route: Route) -> BlockingSocket:
        try:
            return dial_place(route, self.exchange.encoding)
        except NoReplacementError:
            raise  # what ran at the lost server is buried
        except ServerGoneError as loss:
            self.exchange.bury(loss)
            raise

    def ask(
        self, method: str, params: dict[str, Any] | None = None, timeout_s: float = ANSWER_S
    ) -> Any:
        """Return what the server says to a call without a session.

        Raises:
            DeadlineError: It says nothing.
            EnvWeaveError: What it was refused with, or why it cannot be asked.
        """
        try:
            try:
                reply = self.call(self.exchange.question(method, params), timeout_s)
            except NoReplacementError:
                raise
            except ServerGoneError:  # any server can answer it
                reply = self.call(self.exchange.question(method, params), timeout_s)
        except DeadlineError:
            raise silent(self.address, method, timeout_s) from None
        if reply.fault is not None:
            raise error_of(reply.fault)
        return reply.result

    def call(self, call: Call, timeout_s: float | None = None) -> Reply:
        """Make a call and wait for its reply, as long as it takes or for so long.

        Raises:
            DeadlineError: No reply came in time. It may yet come; `forget` it, or `abandon`
                its session.
            ConnectionLostError: The server could not be reached again.
            WireError: A message could not be read, by us or by the server.
        """
        for reply in self.exchange.epitaphs((call,)):
            return reply
        ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        self.post((call,), timeout_s=timeout_s)
        while True:
            left_s = None if ends_s is None else max(0.0, ends_s - time.monotonic())
            for reply in self._receive(left_s):
                if reply.id == call.id and reply.session == call.session:
                    return reply
                self._inbox.append(reply)

    def post(
        self, calls: Sequence[Call], *, together: bool = True, timeout_s: float | None = None
    ) -> None:
        """Send calls, and don't wait for their replies. A lost connection is told by `collect`.

        Raises:
            DeadlineError: The server did not read them within `timeout_s`.
            AccessError: The server refuses this caller now.
            PlaceGoneError: The server was started for this caller, and is gone for good.
            CallOrderError: A forked copy of the process called.
        """
        lost = self.exchange.epitaphs(calls)
        if lost:
            self._inbox.extend(lost)
            told = {reply.session for reply in lost}
            calls = [call for call in calls if call.session not in told]
            if not calls:
                return
        data = self.exchange.frame(calls, together=together)
        try:
            if self._line is None:
                self.reach()
            else:
                put(self._line, self.exchange.encoding, data, timeout_s)
        except ServerGoneError:
            raise
        except ConnectionLostError:
            self._drop()
        except BaseException:
            self._drop()  # nobody knows how much was sent
            raise

    def volley(self, volley: BatchFrame) -> Stepped | None:
        """Make a step of many sessions, and wait for it; return what came of it.

        Where that did not come in one piece, or a connection was lost over it, nothing is
        returned, and `collect` brings the replies one by one.

        Raises:
            AccessError: The server refuses this caller now.
            WireError: A message could not be read, by us or by the server.
            CallOrderError: A forked copy of the process called.
        """
        exchange = self.exchange
        if exchange.has_buried:
            self.post([volley.steps.call(i) for i in range(len(volley.steps.sessions))])
            return None
        exchange.fire(volley)
        try:
            if self._line is None:
                self.reach()  # which sends it
            else:
                put(self._line, exchange.encoding, volley.data)
            assert self._line is not None
            answer = exchange.answer(self._line.receive())
            self._send_closings()
        except ServerGoneError:
            raise
        except ConnectionLostError:
            self._drop()
            return None
        except BaseException:
            self._drop()  # nobody knows how much was sent, or read
            raise
        if isinstance(answer, Stepped):
            self._patience.renew()
            return answer
        self._inbox.extend(answer)
        return None

    def collect(self, timeout_s: float | None = None) -> list[Reply]:
        """Wait for replies to what was posted; return those that came with the first.

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
                self.reach()
                assert self._line is not None
                replies = self.exchange.read(self._line.receive(left_s))
                self._send_closings()
            except ConnectionLostError as loss:
                self._rest(loss)
                continue
            except DeadlineError:
                raise
            except BaseException:
                self._drop()  # what comes next could not be told apart
                raise
            if replies:
                self._patience.renew()
                return replies

    def _send_closings(self) -> None:
        """Send what closes sessions; what was just read stands, even if the connection does not."""
        line = self._line
        if line is None:
            return
        try:
            for data in self.exchange.closings():
                put(line, self.exchange.encoding, data)
        except ConnectionLostError:
            self._drop()  # the server closes them by itself, after a while

    def _rest(self, loss: ConnectionLostError) -> None:
        """Wait before the next try.

        Raises:
            ConnectionLostError: There have been enough.
        """
        now_s = time.monotonic()
        if isinstance(loss, ServerGoneError):
            self._patience.renew()
            raise loss
        if self._line is not None and now_s - self._since_s > self._patience_s:
            self._patience.renew()  # it held for long; this is a new break, not the same
        self._drop()
        pause_s = self._patience.pause_s(now_s)
        if pause_s is None:
            self._patience.renew()
            raise loss
        time.sleep(pause_s)

    def _drop(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.drop()

    def call_briefly(self, call: Call, timeout_s: float) -> Reply:
        """Make a last call; a connection that is broken is tried again for a moment only.

        Raises:
            EnvWeaveError: As `call`.
        """
        self._patience = Backoff(_BRIEF_S)
        self._patience_s = _BRIEF_S
        return self.call(call, timeout_s)

    def fileno(self) -> int:
        """Return what to wait on until something comes; -1 without a connection."""
        return -1 if self._line is None else self._line.fileno()

    def abandon(self, session: str) -> None:
        """Have a session closed that nobody wants any more, when the server can be told."""
        self.exchange.abandon(session)

    def end(self, calls: Sequence[Call] = ()) -> None:
        """Send some last calls, if there is a connection, and hang up. May be called twice.

        A forked copy of the process hangs up in silence.
        """
        line, self._line = self._line, None
        on_end, self._on_end = self._on_end, None
        if not self._owner.is_current:
            if line is not None:
                line.drop()
            return
        try:
            if line is not None:
                self._say_last(line, calls)
        finally:
            if on_end is not None:
                on_end()

    def _say_last(self, line: BlockingSocket, calls: Sequence[Call]) -> None:
        encoding = self.exchange.encoding
        try:
            for data in self.exchange.closings():
                put(line, encoding, data)
            for call in calls:
                put(line, encoding, encoding.encode(call))
        except ConnectionLostError:
            pass  # the server finds out by itself
        finally:
            line.close()
