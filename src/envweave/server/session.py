"""One session of a server: its calls in order, each of them exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, final

from envweave.codec.spec import short_repr
from envweave.errors import BusyError, CallOrderError, OptionError, SessionGoneError
from envweave.registry.spec import MAX_S
from envweave.server.runtime.base import SessionOptions, SessionRuntime
from envweave.session import Position
from envweave.types import StepResult
from envweave.wire.messages import Call, Reply
from envweave.wire.results import encode_result


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
        self.runner: SessionRuntime | None = None
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
        return Reply(id=number, session=self.id, result=encode_result(reply, None, None))

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


def read_wishes(params: dict[str, Any], limit_s: float | None) -> SessionOptions:
    """Return what the caller of `open` wants.

    Raises:
        OptionError: It is something that cannot be had.
    """
    unknown = params.keys() - {"autoreset", "timeout_s", "position", "wait_s"}
    if unknown:
        raise OptionError(f"open() takes no {sorted(map(str, unknown))[0]!r}.")
    autoreset = params.get("autoreset", False)
    if not isinstance(autoreset, bool):
        raise OptionError(f"autoreset={short_repr(autoreset)} is neither true nor false.")
    timeout_s = read_seconds(params.get("timeout_s"))
    if limit_s is not None:
        timeout_s = limit_s if timeout_s is None else min(timeout_s, limit_s)
    return SessionOptions(autoreset, timeout_s, _read_position(params.get("position")))


def read_seconds(value: Any) -> float | None:
    """Return how long a caller grants.

    Raises:
        OptionError: It is no number of seconds.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_S:
        raise OptionError(f"timeout_s={short_repr(value)} is no number of seconds above 0.")
    return float(value)


CANNOT_WAIT: Mapping[str, Any] = {"wait_s": None}
"""What opens a session for a caller that has no way to ask for `wait_s`, nor is advised to."""


def _read_position(value: Any) -> Position | None:
    if value is None:
        return None
    checks: tuple[Callable[[Any], bool], ...] = (
        lambda base: base is None or (_is_whole(base) and base >= 0),
        _is_whole,
        _is_whole,
        lambda prefix: isinstance(prefix, str) and len(prefix) <= 200,
    )
    if not isinstance(value, list) or len(value) != len(checks):
        raise OptionError("position is none that a reset has told.")
    if not all(check(one) for check, one in zip(checks, value, strict=True)):
        raise OptionError("position is none that a reset has told.")
    return Position(*value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -1 <= value < 2**64
