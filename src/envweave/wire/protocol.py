"""What every client does with calls and replies, whichever way its bytes travel. No I/O.

A call that was sent and not answered is sent again, with its number, on the next connection;
the server answers it once. So a caller never has to know that a connection broke.
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
    bundled,
    has_stepped,
    read_replies,
    read_stepped,
    unbundled,
)
from envweave.wire.websocket import Message

PATIENCE_S = 10.0
"""How long a client tries to reach a server again that it had reached before."""

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0

Key = tuple[str, int]
"""A session and the number of a call on it."""


class EncodeError(WireError):
    """The server could not take what was sent. Nothing was run, and its number is free again."""


@final
class Caller:
    """Names one session, and numbers the calls on it.

    Attributes:
        session: Its id, which nobody can guess.
        last: The number of the last call.
    """

    def __init__(self) -> None:
        self.session = secrets.token_urlsafe(16)
        self.last = 0

    def call(self, method: str, params: dict[str, Any]) -> Call:
        """Return the next call. It is made once, however often it is sent."""
        self.last += 1
        return Call(id=self.last, method=method, session=self.session, params=params)

    def take_back(self) -> None:
        """Forget the last call, which the server could not read: its number is free again."""
        self.last -= 1


@final
class BatchFrame:
    """A step of many sessions in one frame, which is booked as a whole if it is so answered.

    Attributes:
        steps: What was asked.
        data: The same as it is sent.
        is_answered: Whether the answer to all of it has come.
    """

    def __init__(self, steps: Steps, data: bytes) -> None:
        self.steps = steps
        self.data = data
        self.is_answered = False

    @property
    def keys(self) -> list[Key]:
        """The calls that it stands for."""
        return list(zip(self.steps.sessions, self.steps.numbers, strict=True))

    def take(self, sent: Stepped) -> bool:
        """Take an answer, if it is one to each of the calls; return whether it is."""
        steps = self.steps
        if not sent.rest:
            self.is_answered = sent.sessions == steps.sessions and sent.numbers == steps.numbers
            return self.is_answered
        came = [
            *zip(sent.sessions, sent.numbers, strict=True),
            *((reply.session, reply.id) for reply in sent.rest),
        ]
        keys = self.keys
        self.is_answered = len(came) == len(keys) and set(came) == set(keys)
        return self.is_answered


@final
class Exchange:
    """The calls that are under way between one client and one server.

    Attributes:
        encoding: How messages are written.
        limit_bytes: How large a message the server takes; 0 if that is not known.
    """

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.limit_bytes = 0
        self._waiting: dict[Key, bytes] = {}  # each with the frame that it was sent in
        self._sessions: dict[str, int] = {}  # each with the number of its last call
        self._volley: BatchFrame | None = None  # the last one, whose calls are in neither
        self._closing: list[Call] = []
        self._buried: dict[str, WireFault] = {}  # sessions whose server is gone for good, and why
        self._serial = 0

    @property
    def is_waiting(self) -> bool:
        """Whether any reply is still to come that somebody waits for."""
        self._disband()
        return bool(self._waiting)

    @property
    def has_sessions(self) -> bool:
        """Whether any session is open."""
        return bool(self._sessions)

    @property
    def has_buried(self) -> bool:
        """Whether there are sessions whose server is gone for good."""
        return bool(self._buried)

    def question(self, method: str, params: dict[str, Any] | None = None) -> Call:
        """Return a call without a session."""
        self._serial += 1
        return Call(id=self._serial, method=method, params=params or {})

    def frame(self, calls: Sequence[Call], *, together: bool = True) -> bytes:
        """Return the message with these calls, which wait for their replies from now on.

        Raises:
            UnsaidError: It cannot be written, or is larger than the server takes.
        """
        message = bundled(calls, together=together)
        try:
            data = self.encoding.encode(message)
        except WireError as error:
            raise EncodeError(str(error)) from error
        if 0 < self.limit_bytes < len(data):
            raise EncodeError(
                f"the message has {len(data)} bytes, and the server takes {self.limit_bytes} at "
                "most. Send less, or start the server with a larger max_message_bytes"
            )
        self._disband()
        for call in calls:
            self._waiting[call.session, call.id] = data
            if call.session:
                self._sessions[call.session] = call.id
        return data

    def again(self) -> list[bytes]:
        """Return what to send first on a new connection.

        That is every call that waits, and for each session without one its last call, whose
        reply is known: so the server learns that its caller is back.
        """
        self._disband()
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
        """Return the replies in a message that somebody waits for.

        Raises:
            WireError: It cannot be read, or the server could not read what was sent.
        """
        self._disband()
        return self._wanted(read_replies(self.encoding.decode(data)))

    def _wanted(self, replies: Sequence[Reply]) -> list[Reply]:
        wanted: list[Reply] = []
        for reply in replies:
            key = reply.session, reply.id
            if reply.id == 0 and reply.fault is not None:
                raise WireError(f"the server could not read a message: {reply.fault.message}")
            if self._waiting.pop(key, None) is not None:
                wanted.append(reply)  # else it came before, or nobody wants it any more
        return wanted

    def fire(self, volley: BatchFrame) -> None:
        """Take a volley, whose calls wait for their replies from now on."""
        last = self._volley
        if last is not None and not (
            last.is_answered and last.steps.sessions == volley.steps.sessions
        ):
            self._disband()
        self._volley = volley

    def answer(self, data: Message) -> Stepped | list[Reply]:
        """Return what came of the volley, if a message is the answer to all of it; else replies.

        Raises:
            WireError: It cannot be read, or the server could not read what was sent.
        """
        plain, volley = self.encoding.decode(data), self._volley
        if volley is not None and not volley.is_answered and has_stepped(plain):
            sent = read_stepped(plain)
            if volley.take(sent):
                return sent
            replies = unbundled(sent)
        else:
            replies = read_replies(plain)
        self._disband()
        return self._wanted(replies)

    def _disband(self) -> None:
        """Book the calls of the last volley one by one."""
        volley, self._volley = self._volley, None
        if volley is None:
            return
        for key in volley.keys:
            self._sessions[key[0]] = key[1]
            if not volley.is_answered:
                self._waiting[key] = volley.data

    def closings(self) -> list[bytes]:
        """Return what to send for sessions that were abandoned, and can be closed now. Once."""
        calls, self._closing = self._closing, []
        return [self.encoding.encode(call) for call in calls]

    def abandon(self, session: str) -> None:
        """Have a session closed that nobody wants any more, if need be after its last call."""
        self._disband()
        self._buried.pop(session, None)
        number = self._sessions.pop(session, None)
        if number is not None:
            self._waiting.pop((session, number), None)
            self._closing.append(Call(id=number + 1, method="close", session=session))

    def abandon_all(self) -> None:
        """Have every session closed that can be now."""
        self._disband()
        for session in list(self._sessions):
            self.abandon(session)

    def bury(self, loss: EnvWeaveError) -> None:
        """Take note that the server is gone for good, and every session with it."""
        self._disband()
        self._buried.update(dict.fromkeys(self._sessions, fault_of(loss)))
        self._sessions.clear()
        self._waiting.clear()
        self._closing.clear()

    def epitaphs(self, calls: Sequence[Call]) -> list[Reply]:
        """Return the replies to those of some calls whose sessions went with their server."""
        if not self._buried:
            return []
        return [
            Reply(id=call.id, session=call.session, fault=self._buried[call.session])
            for call in calls
            if call.session in self._buried
        ]

    def is_buried(self, session: str) -> bool:
        """Whether a session went with its server, which is gone for good."""
        return session in self._buried

    def drop(self, session: str) -> None:
        """Forget a session that is closed, or gone."""
        self._disband()
        self._buried.pop(session, None)
        number = self._sessions.pop(session, None)
        if number is not None:
            self._waiting.pop((session, number), None)


@final
class Backoff:
    """How long to go on trying to reach a server, with ever longer pauses."""

    def __init__(self, limit_s: float = PATIENCE_S) -> None:
        self._limit_s = limit_s
        self._began_s: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    def pause_s(self, now_s: float) -> float | None:
        """Return how long to wait before the next try; `None` if it has been long enough."""
        if self._began_s is None:
            self._began_s = now_s
            return 0.0  # most connections that break can be made again at once
        left_s = self._began_s + self._limit_s - now_s
        if left_s <= 0:
            return None
        pause_s = min(self._pause_s * random.uniform(0.5, 1.0), left_s)  # noqa: S311 - no secret
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return pause_s

    def renew(self) -> None:
        """Take note that the server answered."""
        self._began_s = None
        self._pause_s = _FIRST_PAUSE_S
