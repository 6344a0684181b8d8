"""Connections to several servers that a vector calls as if they were one."""

from __future__ import annotations

import contextlib
import select
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import final

from envweave.client.connection import BlockingConnection
from envweave.errors import ConnectionLostError, DeadlineError, EnvWeaveError
from envweave.wire.encoding import Encoding
from envweave.wire.faults import fault_of
from envweave.wire.messages import Call, Reply
from envweave.wire.protocol import BatchFrame, Key

_GLANCE_S = 0.05
"""How long to wait for the rest of a message that has begun to arrive."""


@final
class MultiServerConnection:
    """Carries the calls of one blocking caller to sessions at several servers.

    A new session is opened at the server with the fewest. The loss of one server affects its own
    sessions alone.

    Args:
        connections: One to each server, all with the same encoding; `end` ends them.

    Attributes:
        exchange: The exchanges of the connections, as one.
    """

    def __init__(self, connections: Sequence[BlockingConnection]) -> None:
        self._connections = list(connections)
        self._homes: dict[str, BlockingConnection] = {}  # the connection of each session
        self._waiting: dict[Key, BlockingConnection] = {}
        self._inbox: list[Reply] = []
        self.exchange = _Exchanges(self)

    def post(
        self, calls: Sequence[Call], *, together: bool = True, timeout_s: float | None = None
    ) -> None:
        """Send calls, each to the server of its session, without waiting for their replies."""
        for connection, some in self._by_server(calls):
            self._waiting.update(((call.session, call.id), connection) for call in some)
            try:
                connection.post(some, together=together, timeout_s=timeout_s)
            except EnvWeaveError as error:
                self._lose(connection, error)

    def _by_server(self, calls: Iterable[Call]) -> list[tuple[BlockingConnection, list[Call]]]:
        shares: dict[int, list[Call]] = {}
        for call in calls:
            home = self._homes.get(call.session)
            if home is None:
                home = self._homes[call.session] = self._least_loaded()
            shares.setdefault(self._connections.index(home), []).append(call)
        return [(self._connections[i], share) for i, share in shares.items()]

    def _least_loaded(self) -> BlockingConnection:
        sessions = Counter(map(id, self._homes.values()))
        return min(self._connections, key=lambda connection: sessions[id(connection)])

    def step_batch(self, batch: BatchFrame) -> None:
        """Step many sessions; `collect` returns the replies one by one."""
        self.post([batch.steps.call(i) for i in range(len(batch.steps.sessions))])

    def collect(self, timeout_s: float | None = None) -> list[Reply]:
        """Wait for replies to posted calls; return those that arrive with the first.

        Raises:
            DeadlineError: None came in time.
        """
        ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            for connection in set(self._waiting.values()):
                self._gather(connection, 0.0)  # what is buffered already
            if self._inbox:
                replies, self._inbox = self._inbox, []
                return replies
            left_s = None if ends_s is None else ends_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise DeadlineError("No server answered in time.")
            self._watch(left_s)

    def _watch(self, timeout_s: float | None) -> None:
        """Wait until a server with unanswered calls sends something, and read it."""
        by_file = {one.fileno(): one for one in set(self._waiting.values())}
        broken = by_file.pop(-1, None)
        if broken is not None:
            self._gather(broken, _GLANCE_S)  # reconnects
            return
        poll = select.poll()
        for file in by_file:
            poll.register(file, select.POLLIN)
        for file, _ in poll.poll(None if timeout_s is None else timeout_s * 1000):
            self._gather(by_file[file], _GLANCE_S)

    def _gather(self, connection: BlockingConnection, timeout_s: float) -> None:
        try:
            replies = connection.collect(timeout_s)
        except DeadlineError:
            return
        except EnvWeaveError as error:
            self._lose(connection, error)
            return
        for reply in replies:
            if self._waiting.pop((reply.session, reply.id), None) is not None:
                self._inbox.append(reply)

    def _lose(self, connection: BlockingConnection, error: EnvWeaveError) -> None:
        """Answer the unanswered calls to one server with a fault."""
        fault = fault_of(ConnectionLostError(str(error)))
        for key in [key for key, owner in self._waiting.items() if owner is connection]:
            del self._waiting[key]
            session, number = key
            if not connection.exchange.is_lost(session):
                connection.abandon(session)
            self._inbox.append(Reply(id=number, session=session, fault=fault))

    def abandon(self, session: str) -> None:
        """Close a session that is no longer used, with the next message to its server."""
        home = self._forget(session)
        if home is not None:
            home.abandon(session)

    def drop(self, session: str) -> None:
        """Forget a session that is closed, or gone."""
        home = self._forget(session)
        if home is not None:
            home.exchange.drop(session)

    def is_lost(self, session: str) -> bool:
        """Whether a session was lost with its server, which is gone for good."""
        home = self._homes.get(session)
        return home is not None and home.exchange.is_lost(session)

    def _forget(self, session: str) -> BlockingConnection | None:
        for key in [key for key in self._waiting if key[0] == session]:
            del self._waiting[key]
        return self._homes.pop(session, None)

    def limit(self, limit_bytes: int) -> None:
        """Set the largest message that the servers accept."""
        for connection in self._connections:
            connection.exchange.limit_bytes = limit_bytes

    @property
    def encoding(self) -> Encoding:
        """The encoding of messages."""
        return self._connections[0].exchange.encoding

    def end(self, calls: Sequence[Call] = ()) -> None:
        """Send some last calls, and disconnect from every server. May be called twice."""
        shares = {id(connection): some for connection, some in self._by_server(calls)}
        with contextlib.ExitStack() as stack:
            for connection in self._connections:
                stack.callback(connection.end, shares.get(id(connection), ()))


@final
class _Exchanges:
    """The exchanges with several servers, with the interface of one that a vector uses.

    Attributes:
        encoding: The encoding of messages.
        limit_bytes: The largest message that the servers accept; 0 if unknown.
    """

    def __init__(self, connections: MultiServerConnection) -> None:
        self.encoding = connections.encoding
        self._connections = connections
        self._limit_bytes = 0

    @property
    def limit_bytes(self) -> int:
        return self._limit_bytes

    @limit_bytes.setter
    def limit_bytes(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._connections.limit(limit_bytes)

    def drop(self, session: str) -> None:
        self._connections.drop(session)

    def is_lost(self, session: str) -> bool:
        return self._connections.is_lost(session)
