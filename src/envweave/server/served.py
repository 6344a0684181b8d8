"""One session of a server: its calls in order, each of them exactly once."""

from __future__ import annotations

import asyncio
from typing import Any, final

from envweave.errors import BusyError, CallOrderError, SessionGoneError
from envweave.server.place import Runner
from envweave.types import StepResult
from envweave.wire.messages import Call, Reply
from envweave.wire.results import wired


@final
class ServedSession:
    """What a server knows of one session, besides its environment.

    Calls are numbered from 1, `open` being the first, and made one after the other. Who repeats
    a number is given the reply to the first, also while that is still on its way. Who makes the
    next call has read the last reply, so that only callers without a connection of their own,
    of whom there may be several, need more than one kept.

    Attributes:
        id: What its caller calls it.
        runner: Who runs its environment; `None` until it is open.
        timeout_s: How long an environment's own call may take.
        connection: Whose calls it takes; `None` without one, or when that is lost.
        since_s: When it was last called, or lost its connection.
        waits: Whether it lost its connection, and waits for its caller.
        is_unwanted: Whether it is to be closed when the call under way is over.
        last_number: That of the last call that was taken.
    """

    def __init__(self, session_id: str, replies_kept: int, now_s: float) -> None:
        self.id = session_id
        self.runner: Runner | None = None
        self.timeout_s: float | None = None
        self.connection: object | None = None
        self.since_s = now_s
        self.waits = False
        self.is_unwanted = False
        self._replies_kept = replies_kept
        self._replies: dict[int, Reply | StepResult[Any]] = {}
        self.last_number = 0
        self._is_running = False
        self._running: asyncio.Future[Reply] | None = None  # if somebody waits for it

    @property
    def is_busy(self) -> bool:
        """Whether a call is under way."""
        return self._is_running

    def begin_step(self, number: int, connection: object) -> bool:
        """Take a step if it is the next call and has no deadline; return whether it is so."""
        if number != self.last_number + 1 or self._is_running or self.timeout_s is not None:
            return False
        self.last_number = number
        self._is_running = True
        if self.connection is not None:
            self._replies.clear()
        self.connection, self.waits = connection, False
        return True

    def begin(self, call: Call) -> Reply | asyncio.Future[Reply] | None:
        """Take a call; return the reply to one that is repeated, and `None` for a new one.

        A new one is under way until `end`.

        Raises:
            SessionGoneError: Its reply was given, and is kept no more.
            BusyError: Another call is under way.
            CallOrderError: One before it never came.
        """
        if call.id == self.last_number + 1 and not self._is_running:
            self.last_number = call.id
            self._is_running = True
            if self.connection is not None:
                self._replies.clear()
            return None
        if call.id == self.last_number and self._is_running:
            if self._running is None:
                self._running = asyncio.get_running_loop().create_future()
            return self._running
        if call.id in self._replies:
            return self.whole(call.id, self._replies[call.id])
        if call.id <= self.last_number:
            raise SessionGoneError(
                f"Call {call.id} of this session was answered before, and its reply is kept no "
                "more. The session cannot go on with this caller."
            )
        if self._is_running:
            raise BusyError(
                f"Call {self.last_number} of this session is still under way. Wait for its reply."
            )
        raise CallOrderError(
            f"Call {call.id} of this session came after call {self.last_number}. Number the calls "
            "one by one."
        )

    def whole(self, number: int, reply: Reply | StepResult[Any]) -> Reply:
        """Return the reply to a call, of which perhaps only an ordinary result was kept."""
        if isinstance(reply, Reply):
            return reply
        return Reply(id=number, session=self.id, result=wired(reply, None, None))

    def end(self, reply: Reply | StepResult[Any], now_s: float) -> None:
        """Take the reply to the call under way, for its caller and whoever repeated it.

        An ordinary step is taken as it is, since hardly anybody asks for it again.
        """
        self._is_running = False
        self.since_s = now_s
        if self._replies_kept:
            replies = self._replies
            replies[self.last_number] = reply
            while len(replies) > self._replies_kept:
                del replies[next(iter(replies))]
        if self._running is not None:
            running, self._running = self._running, None
            if not running.done():
                running.set_result(self.whole(self.last_number, reply))

    @property
    def next_number(self) -> int:
        """The number of the next call, for a caller that does not count."""
        return self.last_number + 1
