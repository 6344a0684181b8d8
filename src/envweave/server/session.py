"""One session of a server: its calls in order, each exactly once."""

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
    """The state of one session at the server, besides its environment.

    Calls are numbered from 1, `open` being the first, and made one after the other. A call with a
    repeated number gets the reply to the first one, also while that is still in progress. A client
    that makes the next call has read the last reply, so only clients without a connection, of
    which there may be several per session, need more than one stored reply.

    Attributes:
        id: Its id, chosen by the client.
        runner: Runs its environment; `None` until it is open.
        timeout_s: Time limit of one call of the environment.
        connection: The connection of its last call; `None` without one, or if it is lost.
        idle_since_s: When it was last called, or lost its connection.
        is_disconnected: Whether it lost its connection and waits for its client.
        close_requested: Whether it is to be closed after the call in progress.
        last_number: The number of the last call that was begun.
    """

    def __init__(self, session_id: str, replies_kept: int, now_s: float) -> None:
        self.id = session_id
        self.runner: SessionRuntime | None = None
        self.timeout_s: float | None = None
        self.connection: object | None = None
        self.idle_since_s = now_s
        self.is_disconnected = False
        self.close_requested = False
        self._replies_kept = replies_kept
        self._replies: dict[int, Reply | StepResult[Any]] = {}
        self.last_number = 0
        self._is_running = False
        self._running: asyncio.Future[Reply] | None = None  # if a retry waits for it

    @property
    def is_busy(self) -> bool:
        """Whether a call is in progress."""
        return self._is_running

    def begin_step(self, number: int, connection: object) -> bool:
        """Begin a step if it is the next call and has no deadline; return whether it was begun."""
        if number != self.last_number + 1 or self._is_running or self.timeout_s is not None:
            return False
        self.last_number = number
        self._is_running = True
        if self.connection is not None:
            self._replies.clear()
        self.connection, self.is_disconnected = connection, False
        return True

    def begin(self, call: Call) -> Reply | asyncio.Future[Reply] | None:
        """Begin a call; return the reply to a repeated one, and `None` for a new one.

        A new call is in progress until `end`.

        Raises:
            SessionGoneError: It was answered before, and the reply is no longer stored.
            BusyError: Another call is in progress.
            CallOrderError: A call before it is missing.
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
            return self.as_reply(call.id, self._replies[call.id])
        if call.id <= self.last_number:
            raise SessionGoneError(
                f"Call {call.id} of this session was answered before, and its reply is no longer "
                "stored. The session cannot continue with this client."
            )
        if self._is_running:
            raise BusyError(
                f"Call {self.last_number} of this session is still in progress. Wait for its reply."
            )
        raise CallOrderError(
            f"Call {call.id} of this session came after call {self.last_number}. Number calls "
            "consecutively."
        )

    def as_reply(self, number: int, reply: Reply | StepResult[Any]) -> Reply:
        """Return the reply to a call, of which only an ordinary result may be stored."""
        if isinstance(reply, Reply):
            return reply
        return Reply(id=number, session=self.id, result=encode_result(reply, None, None))

    def end(self, reply: Reply | StepResult[Any], now_s: float) -> None:
        """Store the reply to the call in progress, for its client and for retries.

        The result of an ordinary step is stored as it is, since retries are rare.
        """
        self._is_running = False
        self.idle_since_s = now_s
        if self._replies_kept:
            replies = self._replies
            replies[self.last_number] = reply
            while len(replies) > self._replies_kept:
                del replies[next(iter(replies))]
        if self._running is not None:
            running, self._running = self._running, None
            if not running.done():
                running.set_result(self.as_reply(self.last_number, reply))

    @property
    def next_number(self) -> int:
        """The number of the next call, for a client that does not count calls."""
        return self.last_number + 1


def parse_options(params: dict[str, Any], limit_s: float | None) -> SessionOptions:
    """Return the options of an `open` call.

    Raises:
        OptionError: An option is unknown or invalid.
    """
    unknown = params.keys() - {"autoreset", "timeout_s", "position", "wait_s"}
    if unknown:
        raise OptionError(f"open() takes no {sorted(map(str, unknown))[0]!r}.")
    autoreset = params.get("autoreset", False)
    if not isinstance(autoreset, bool):
        raise OptionError(f"autoreset must be true or false, got {short_repr(autoreset)}.")
    timeout_s = read_seconds(params.get("timeout_s"))
    if limit_s is not None:
        timeout_s = limit_s if timeout_s is None else min(timeout_s, limit_s)
    return SessionOptions(autoreset, timeout_s, _read_position(params.get("position")))


def read_seconds(value: Any) -> float | None:
    """Return a client's `timeout_s`.

    Raises:
        OptionError: It is not a valid number of seconds.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_S:
        raise OptionError(f"timeout_s must be a number of seconds > 0, got {short_repr(value)}.")
    return float(value)


CANNOT_WAIT: Mapping[str, Any] = {"wait_s": None}
"""Parameters of `open` for clients that cannot ask for `wait_s`: errors do not suggest it."""


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
        raise OptionError("Invalid position: not one that reset() returned.")
    if not all(check(one) for check, one in zip(checks, value, strict=True)):
        raise OptionError("Invalid position: not one that reset() returned.")
    return Position(*value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -1 <= value < 2**64
