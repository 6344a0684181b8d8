"""The client's side of the protocol, whatever transports the bytes. No I/O.

A call that was sent and not answered is sent again, with the same number, on the next connection;
the server runs it once. So a caller need not know that a connection broke.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from typing import Any, final

from envweave.errors import EnvWeaveError, WireError
from envweave.wire.encoding import Encoding
from envweave.wire.faults import fault_of
from envweave.wire.messages import (
    MAX_CALLS,
    Call,
    Calls,
    Reply,
    Stepped,
    Steps,
    WireFault,
    bundle_calls,
    read_answer_in,
    read_replies_in,
    split_replies,
)
from envweave.wire.websocket import Message

RECONNECT_S = 10.0
"""How long a client tries to reconnect to a server."""

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0

Key = tuple[str, int]
"""A session and the number of a call on it."""


class EncodeError(WireError):
    """A call cannot be encoded, or is too large. It was not sent, and its number is free again."""


@final
class Caller:
    """Names one session and numbers the calls on it.

    Attributes:
        session: Its unguessable id.
        last: The number of the last call.
    """

    def __init__(self) -> None:
        self.session = secrets.token_urlsafe(16)
        self.last = 0

    def call(self, method: str, params: dict[str, Any]) -> Call:
        """Return the next call. The server runs it once, however often it is sent."""
        self.last += 1
        return Call(id=self.last, method=method, session=self.session, params=params)

    def roll_back(self) -> None:
        """Free the number of the last call, which was not sent."""
        self.last -= 1


@final
class BatchFrame:
    """A step of many sessions in one frame, tracked as a whole if it is answered as a whole.

    Attributes:
        steps: The steps.
        data: The encoded frame.
        is_answered: Whether all of it has been answered.
    """

    def __init__(self, steps: Steps, data: bytes) -> None:
        self.steps = steps
        self.data = data
        self.is_answered = False

    @property
    def keys(self) -> list[Key]:
        """The keys of its calls."""
        return list(zip(self.steps.sessions, self.steps.numbers, strict=True))

    def accept(self, sent: Stepped) -> bool:
        """Return whether an answer covers every call; if so, the batch is answered."""
        steps = self.steps
        if not sent.rest:
            self.is_answered = sent.sessions == steps.sessions and sent.numbers == steps.numbers
            return self.is_answered
        answered = [
            *zip(sent.sessions, sent.numbers, strict=True),
            *((reply.session, reply.id) for reply in sent.rest),
        ]
        keys = self.keys
        self.is_answered = len(answered) == len(keys) and set(answered) == set(keys)
        return self.is_answered


@final
class Exchange:
    """The calls in flight between one client and one server.

    Attributes:
        encoding: The encoding of messages.
        limit_bytes: The largest message that the server accepts; 0 if unknown.
    """

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.limit_bytes = 0
        self._waiting: dict[Key, bytes] = {}  # unanswered calls, each with its frame
        self._sessions: dict[str, int] = {}  # open sessions, each with the number of its last call
        self._batch: BatchFrame | None = None  # the last one; its calls are in neither dict
        self._closes: list[Call] = []
        self._lost: dict[str, WireFault] = {}  # sessions whose server is gone for good, and why
        self._serial = 0

    @property
    def is_waiting(self) -> bool:
        """Whether a call is unanswered."""
        self._split_batch()
        return bool(self._waiting)

    @property
    def has_sessions(self) -> bool:
        """Whether any session is open."""
        return bool(self._sessions)

    @property
    def has_lost_sessions(self) -> bool:
        """Whether sessions were lost with their server."""
        return bool(self._lost)

    @property
    def has_closes(self) -> bool:
        """Whether abandoned sessions are to be closed."""
        return bool(self._closes)

    def server_call(self, method: str, params: dict[str, Any] | None = None) -> Call:
        """Return a call without a session."""
        self._serial += 1
        return Call(id=self._serial, method=method, params=params or {})

    def frame(self, calls: Sequence[Call], *, together: bool = True) -> bytes:
        """Return the message with these calls, and track them until they are answered.

        Raises:
            EncodeError: It cannot be encoded, or is larger than the server accepts.
        """
        message = calls[0] if len(calls) == 1 else bundle_calls(calls, together=together)
        try:
            data = self.encoding.encode(message)
        except WireError as error:
            raise EncodeError(str(error)) from error
        if 0 < self.limit_bytes < len(data):
            raise EncodeError(
                f"the message has {len(data)} bytes, and the server accepts at most "
                f"{self.limit_bytes}. Send less, or start the server with a larger "
                "max_message_bytes"
            )
        if self._batch is not None:
            self._split_batch()
        for call in calls:
            self._waiting[call.session, call.id] = data
            if call.session:
                self._sessions[call.session] = call.id
        return data

    def frames_to_resend(self) -> list[bytes]:
        """Return what to send first on a new connection.

        That is every unanswered call, and for each session without one the number of its last
        call, whose reply is known: so the server learns that its caller is back.
        """
        self._split_batch()
        frames = list(dict.fromkeys(self._waiting.values()))
        busy = {session for session, _ in self._waiting}
        idle = [
            Call(id=number, method="state", session=session)
            for session, number in self._sessions.items()
            if session not in busy
        ]
        for start in range(0, len(idle), MAX_CALLS):
            some = Calls(calls=idle[start : start + MAX_CALLS], together=False)
            frames.append(self.encoding.encode(some))
        return frames

    def read(self, data: Message) -> list[Reply]:
        """Return the replies in a message to unanswered calls.

        Raises:
            WireError: It cannot be read, or the server could not read what was sent.
        """
        if self._batch is not None:
            self._split_batch()
        return self._accept(read_replies_in(data, self.encoding))

    def _accept(self, replies: Sequence[Reply]) -> list[Reply]:
        accepted: list[Reply] = []
        for reply in replies:
            key = reply.session, reply.id
            if reply.id == 0 and reply.fault is not None:
                raise WireError(f"the server could not read a message: {reply.fault.message}")
            if self._waiting.pop(key, None) is not None:
                accepted.append(reply)  # else a duplicate, or its session was abandoned
        return accepted

    def begin_batch(self, batch: BatchFrame) -> None:
        """Track a batch until it is answered."""
        last = self._batch
        if last is not None and not (
            last.is_answered and last.steps.sessions == batch.steps.sessions
        ):
            self._split_batch()
        self._batch = batch

    def read_batch(self, data: Message) -> Stepped | list[Reply]:
        """Return the answer to the batch, if a message covers all of it; else replies.

        Raises:
            WireError: It cannot be read, or the server could not read what was sent.
        """
        sent, batch = read_answer_in(data, self.encoding), self._batch
        if batch is None or batch.is_answered:
            pass
        elif isinstance(sent, Stepped) and batch.accept(sent):
            return sent
        self._split_batch()
        return self._accept(split_replies(sent))

    def _split_batch(self) -> None:
        """Track the calls of the last batch one by one."""
        batch, self._batch = self._batch, None
        if batch is None:
            return
        for key in batch.keys:
            self._sessions[key[0]] = key[1]
            if not batch.is_answered:
                self._waiting[key] = batch.data

    def pop_closes(self) -> list[bytes]:
        """Return, once, the messages that close abandoned sessions."""
        calls, self._closes = self._closes, []
        return [self.encoding.encode(call) for call in calls]

    def abandon(self, session: str) -> None:
        """Close a session that is no longer used, after its last call if that is running."""
        self._split_batch()
        self._lost.pop(session, None)
        number = self._sessions.pop(session, None)
        if number is not None:
            self._waiting.pop((session, number), None)
            self._closes.append(Call(id=number + 1, method="close", session=session))

    def abandon_all(self) -> None:
        """Close every session."""
        self._split_batch()
        for session in list(self._sessions):
            self.abandon(session)

    def mark_server_lost(self, loss: EnvWeaveError) -> None:
        """Record that the server is gone for good, and every session with it."""
        self._split_batch()
        self._lost.update(dict.fromkeys(self._sessions, fault_of(loss)))
        self._sessions.clear()
        self._waiting.clear()
        self._closes.clear()

    def replies_for_lost(self, calls: Sequence[Call]) -> list[Reply]:
        """Return fault replies to those calls whose sessions were lost with their server."""
        if not self._lost:
            return []
        return [
            Reply(id=call.id, session=call.session, fault=self._lost[call.session])
            for call in calls
            if call.session in self._lost
        ]

    def is_lost(self, session: str) -> bool:
        """Whether a session was lost with its server, which is gone for good."""
        return session in self._lost

    def drop(self, session: str) -> None:
        """Forget a session that is closed, or gone."""
        self._split_batch()
        self._lost.pop(session, None)
        number = self._sessions.pop(session, None)
        if number is not None:
            self._waiting.pop((session, number), None)


@final
class Backoff:
    """Pauses between attempts to reach a server, up to a total time."""

    def __init__(self, limit_s: float = RECONNECT_S) -> None:
        self._limit_s = limit_s
        self._began_s: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    def pause_s(self, now_s: float) -> float | None:
        """Return how long to wait before the next attempt; `None` if the time is up."""
        if self._began_s is None:
            self._began_s = now_s
            return 0.0  # after most breaks a new connection can be made at once
        left_s = self._began_s + self._limit_s - now_s
        if left_s <= 0:
            return None
        pause_s = min(self._pause_s * random.uniform(0.5, 1.0), left_s)  # noqa: S311 - no secret
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return pause_s

    def reset(self) -> None:
        """Start over: the server answered."""
        self._began_s = None
        self._pause_s = _FIRST_PAUSE_S
