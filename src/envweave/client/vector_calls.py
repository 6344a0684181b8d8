"""The calls of a vector that are under way, and the replies that nobody has taken yet."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, final

from envweave.client.blocking import BlockingConnection
from envweave.client.many import ManyConnections
from envweave.codec import AgentsSpec, Spec
from envweave.codec.branches import Model, Record
from envweave.codec.leaves import Boolean, Choice, Integer, Real
from envweave.errors import (
    ActionError,
    ConnectionLostError,
    DeadlineError,
    EnvWeaveError,
    WireError,
)
from envweave.transports.process.uninterrupted import uninterrupted
from envweave.wire.exchange import Key, Volley
from envweave.wire.faults import fault_of
from envweave.wire.messages import MAX_CALLS, Call, Reply, Stepped, Steps, unbundled

FRAME_BYTES = 4 * 2**20
"""How much a frame of several calls, or of their replies, should hold at most."""

_AROUND_BYTES = 1024  # what a message holds besides its action

_SMALL = (Boolean, Integer, Real, Choice)


@final
class Calls:
    """Makes many calls over one connection, and waits for some of them.

    Every call comes to a reply: where the server cannot be reached any more, to one with a fault.

    Attributes:
        steps: The environment of each step that nobody has taken yet, by its call.
        replies: What has come, the oldest first.
    """

    def __init__(self, connection: BlockingConnection | ManyConnections, spec: Spec) -> None:
        self.connection = connection
        self.steps: dict[Key, int] = {}
        self.replies: dict[Key, Reply] = {}
        self._calls_a_frame = MAX_CALLS
        self._are_small = _is_small(spec)
        self._pending: dict[Key, Call] = {}
        self._unwanted: set[Key] = set()  # of the pending: whose caller was interrupted
        # Whether calls may not have been sent, or replies be lost that had come: somebody was
        # interrupted. A call that is repeated is made once, and answered again.
        self._is_torn = False

    def expect(self, size: int) -> None:
        """Take note of how many bytes a reply holds, so that frames stay of a handy size."""
        self._calls_a_frame = min(max(FRAME_BYTES // max(size, 1), 1), MAX_CALLS)

    def refuse_large(self, actions: Sequence[Any]) -> None:
        """Refuse actions that the server would not take; nothing has happened then.

        Raises:
            ActionError: One is too large; the message begins with its place.
        """
        exchange = self.connection.exchange
        if self._are_small or not exchange.limit_bytes:
            return
        for i, action in enumerate(actions):
            size = len(exchange.encoding.encode(action))
            if size > exchange.limit_bytes - _AROUND_BYTES:
                raise ActionError(
                    f"actions[{i}]: it has {size} bytes, and the server takes messages of "
                    f"{exchange.limit_bytes} at most. Send less, or start the server with a larger "
                    "max_message_bytes."
                )

    def enter(self, calls: Sequence[Call]) -> list[Key]:
        """Take calls, which will be made whatever happens; `post` makes them."""
        keys = [(call.session, call.id) for call in calls]
        self._pending.update(zip(keys, calls, strict=True))
        self._is_torn = True
        return keys

    def post(self, calls: Sequence[Call], *, together: bool) -> None:
        """Make calls that were taken. Each is answered with the others, or as soon as it can be."""
        try:
            for some in self._frames(calls):
                self.connection.post(some, together=together)
        except EnvWeaveError as error:
            self._lose(error)
        self._is_torn = False

    @property
    def are_settled(self) -> bool:
        """Whether no call is under way, and every reply was taken."""
        return not (self._pending or self.replies or self._is_torn)

    def write(self, steps: Steps) -> Volley | None:
        """Return steps as one frame; `None` if that holds more than it may, or should."""
        exchange = self.connection.exchange
        if len(steps.sessions) > self._calls_a_frame:
            return None
        try:
            data = exchange.encoding.encode(steps)
        except WireError:
            return None
        limit = min(FRAME_BYTES, exchange.limit_bytes or FRAME_BYTES)
        return Volley(steps, data) if len(data) <= limit else None

    def fire(self, volley: Volley) -> Stepped | None:
        """Make a step of many sessions, and return what came of it if that came in one piece.

        If not, its calls are like others from then on. Who is interrupted must `scatter` it.
        """
        try:
            sent = self.connection.volley(volley)
        except EnvWeaveError as error:
            self.scatter(volley)
            self._lose(error)
            sent = None
        else:
            if sent is None:
                self.scatter(volley)
        self._is_torn = False
        return sent

    def scatter(self, volley: Volley) -> None:
        """Take the calls of a volley one by one, which will be made whatever happens."""
        self.enter([volley.steps.call(i) for i in range(len(volley.steps.sessions))])

    def take_in(self, volley: Volley, sent: Stepped) -> None:
        """Take the answer to a volley as if its replies had come one by one."""
        came = {(reply.session, reply.id): reply for reply in unbundled(sent)}
        self.replies.update((key, came[key]) for key in volley.keys)

    def _frames(self, calls: Sequence[Call]) -> Iterator[Sequence[Call]]:
        """Share calls out to frames that hold as much as they may, and as they should."""
        size = self._calls_a_frame
        if self._are_small:
            yield from (calls[i : i + size] for i in range(0, len(calls), size))
            return
        encode = self.connection.exchange.encoding.encode
        some: list[Call] = []
        held = 0
        for call in calls:
            more = len(encode(call))
            if some and (len(some) == size or held + more > FRAME_BYTES):
                yield some
                some, held = [], 0
            some.append(call)
            held += more
        if some:
            yield some

    def ask(self, calls: Iterable[Call]) -> list[Reply]:
        """Make calls, wait for all of them, and return what came of each."""
        keys: list[Key] = []
        try:
            with uninterrupted():
                made = list(calls)  # who numbers a call must make it
                keys = self.enter(made)
            self.post(made, together=True)
            self.wait(keys, len(keys), None)
            return [self.replies.pop(key) for key in keys]
        except BaseException:
            self._unwanted.update(key for key in keys if key in self._pending)
            for key in keys:
                self.replies.pop(key, None)
            raise

    def settle(self, sessions: Collection[str]) -> None:
        """Wait for calls on these sessions whose callers were interrupted."""
        while any(session in sessions for session, _ in self._unwanted):
            self._collect(None)

    def wait(self, keys: Collection[Key], count: int, timeout_s: float | None) -> list[Key]:
        """Wait until `count` of these calls have replies; return those that have, oldest first."""
        ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        wanted = keys if isinstance(keys, dict) else dict.fromkeys(keys)
        while len(ready := [key for key in self.replies if key in wanted]) < count:
            left_s = None if ends_s is None else ends_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return ready
            self._collect(left_s)
        if timeout_s is not None or count < len(wanted):
            with contextlib.suppress(DeadlineError):
                while len(ready) < len(wanted):  # what has come meanwhile comes along
                    self._receive(0.0)
                    ready = [key for key in self.replies if key in wanted]
        return ready

    def _collect(self, timeout_s: float | None) -> None:
        with contextlib.suppress(DeadlineError):
            self._receive(timeout_s)

    def _receive(self, timeout_s: float | None) -> None:
        if self._is_torn:
            self.post(list(self._pending.values()), together=False)
        try:
            replies = self.connection.collect(timeout_s)
        except DeadlineError:
            raise
        except (ConnectionLostError, WireError) as error:
            self._lose(error)
            return
        except BaseException:
            self._is_torn = True
            raise
        for reply in replies:
            self._note((reply.session, reply.id), reply)

    def _note(self, key: Key, reply: Reply) -> None:
        if self._pending.pop(key, None) is None:
            return
        if key in self._unwanted:
            self._unwanted.discard(key)
        else:
            self.replies[key] = reply

    def _lose(self, error: EnvWeaveError) -> None:
        """Answer what is under way with the reason why nobody else will."""
        fault = fault_of(ConnectionLostError(str(error)))
        for session, number in list(self._pending):
            if not self.connection.exchange.is_buried(session):
                self.connection.abandon(session)
            self._note((session, number), Reply(id=number, session=session, fault=fault))

    def give_up(self, session: str) -> None:
        """Have a session closed that nobody will call any more."""
        self._strike(session)
        self.connection.abandon(session)

    def forget(self, session: str) -> None:
        """Forget a session that the server does not have."""
        self._strike(session)
        self.connection.exchange.drop(session)

    def _strike(self, session: str) -> None:
        for key in [key for key in self._pending if key[0] == session]:
            del self._pending[key]
            self._unwanted.discard(key)
            self.steps.pop(key, None)


def _is_small(spec: Spec) -> bool:
    """Whether an action is a few numbers, so that no frame of them is too large."""
    if isinstance(spec, Record | Model):
        return all(_is_small(one) for name, one in spec.fields.items() if name != "metadata")
    if isinstance(spec, AgentsSpec):
        return all(map(_is_small, spec.agents.values()))
    return isinstance(spec, _SMALL)
