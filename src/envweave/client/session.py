"""What a caller knows of its session at a server, whichever way the calls travel. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol, final

from envweave.client.server_info import ServerInfo
from envweave.errors import (
    CapacityError,
    ClosedError,
    ConnectionLostError,
    DeadlineError,
    EnvironmentLostError,
    EnvWeaveError,
    ServerError,
    SessionGoneError,
    WireError,
)
from envweave.session.episode_tracker import EpisodeTracker
from envweave.session.episodes import Position
from envweave.session.session import Phase, refusal
from envweave.types import AGENT, EpisodeEnd, StepResult, ToolResult
from envweave.wire.faults import error_of
from envweave.wire.messages import Call, Reply
from envweave.wire.protocol import Caller, Exchange
from envweave.wire.results import decode_result, read_ordinary, result_of

logger = logging.getLogger("envweave.session")

CLOSE_S = 10.0
"""How long `close` waits for the server."""

OPEN_S = 600.0
"""How long it may take until a session is open: an environment with a model to load takes its
time."""

INTERRUPTED = "the last call was interrupted"

LOSSES = (ServerError, DeadlineError, WireError)
"""What ends a session, where it is no refusal of what was sent."""

_MARGIN_S = 30.0


class Connection(Protocol):
    """What carries the calls, as far as a session's end is concerned."""

    exchange: Exchange

    def abandon(self, session: str) -> None:
        """Have a session closed that nobody wants any more."""


@final
class RemoteSession:
    """The caller's side of one session after the other: a lost one is followed by another.

    Attributes:
        name: What to call the environment in messages.
        agents: Who takes part now.
        is_closed: Whether `close` was called.
        is_open: Whether there is a session.
        trail: What has been seen of the episode.
        limit_s: How long to wait for a reply; the server's own limit has long passed then.
        open_limit_s: How long to wait until a session is open.
    """

    def __init__(
        self, served: ServerInfo, *, autoreset: bool, timeout_s: float | None, wait_s: float | None
    ) -> None:
        several = served.interface.possible_agents is not None
        self.name = served.interface.name
        self.agents: list[str] = [] if several else [AGENT]
        self.is_closed = False
        self.trail = EpisodeTracker(several_agents=several)
        # A step may take a reset along, and a new environment before that.
        self.limit_s = None if timeout_s is None else 3 * timeout_s + _MARGIN_S
        self.open_limit_s = OPEN_S + (wait_s or 0.0)
        self._several = several
        self._served = served
        self._autoreset = autoreset
        self._timeout_s = timeout_s
        self._wait_s = wait_s
        self._position: Position | None = None
        self._caller: Caller | None = None
        self._loss = "there is no session"

    @property
    def is_open(self) -> bool:
        """Whether there is a session."""
        return self._caller is not None

    def opening(self) -> Call:
        """Return the call that opens a session, which goes on where the last one stood."""
        self._caller = Caller()
        wishes = {
            "autoreset": self._autoreset or None,
            "timeout_s": self._timeout_s,
            "position": self._position,
            "wait_s": self._wait_s,
        }
        return self._caller.call("open", given(wishes))

    def call(self, method: str, params: Mapping[str, Any]) -> Call:
        """Return the next call on the session.

        Raises:
            ConnectionLostError: There is none.
        """
        if self._caller is None:
            raise ConnectionLostError(self._loss)
        return self._caller.call(method, dict(params) if method == "step" else given(params))

    def take_back(self) -> None:
        """Forget the last call, which was never sent: its number is free again."""
        if self._caller is not None:
            self._caller.take_back()

    def value(self, reply: Reply) -> Any:
        """Return what came of a call.

        Raises:
            EnvWeaveError: What it was refused with, or failed with.
        """
        if reply.fault is not None:
            raise error_of(reply.fault)
        return reply.result

    def result(self, plain: Any) -> Any:
        """Return the result in a reply, and take note of it.

        Raises:
            WireError: There is none.
        """
        ordinary = None if self._several else read_ordinary(plain, self._served.rebuild)
        if ordinary is not None:
            self.trail.follow(ordinary)
            return ordinary
        sent = decode_result(plain)
        result = result_of(sent, self._served.rebuild)
        if sent.position is not None:
            self._position = sent.position
        if self._several:
            self.agents = sent.agents or []
        self.trail.follow(result)
        return result

    def has_lost_server(self, line: Connection) -> bool:
        """Whether the session went with its server. The next is opened at its replacement."""
        return self._caller is not None and line.exchange.is_buried(self._caller.session)

    def replace(self, loss: EnvWeaveError, line: Connection) -> None:
        """Give up a session that went with its server, so that another one is opened."""
        logger.warning("an environment %s was lost and is replaced: %s", self.name, loss)
        self.lose_to(loss, line)

    def lose(self, why: str) -> str | None:
        """Take note that the session cannot go on; return its id, if there was one."""
        caller, self._caller, self._loss = self._caller, None, why
        return None if caller is None else caller.session

    def lose_to(self, loss: EnvWeaveError, line: Connection) -> None:
        """Take note that the session is gone, or can be no further use and is closed there."""
        if not is_gone(loss):
            self.abandon(str(loss), line)
        elif (session := self.lose(str(loss))) is not None:
            line.exchange.drop(session)

    def abandon(self, why: str, line: Connection) -> None:
        """Give up the session, if there is one, and have it closed at the server."""
        if self.is_open and (session := self.lose(why)) is not None:
            line.abandon(session)

    def interrupt(self, line: Connection) -> None:
        """Give up the session after a call of which nobody knows how far it came."""
        self.trail.is_live = False
        self.abandon(INTERRUPTED, line)

    def lost_reset(self, loss: Exception) -> EnvironmentLostError:
        """Return the error for a reset whose session is lost."""
        self.trail.is_live = False
        return EnvironmentLostError(f"{self.name}.reset() failed: {loss}")

    def lost_step(self, loss: Exception) -> StepResult[Any]:
        """Return the last result of an episode that is lost.

        Raises:
            ResetNeededError: There was none.
        """
        if not self.trail.is_live:
            raise refusal(Phase.ENDED, self.name, str(loss).rstrip("."), autoreset=False) from None
        logger.warning("an episode of %s ended: %s", self.name, loss)
        return self.trail.lost(EpisodeEnd("lost", "infrastructure", str(loss)))

    def refuse_closed(self, method: str) -> None:
        """Refuse a call on a closed environment.

        Raises:
            ClosedError: It is one.
        """
        if self.is_closed:
            if method == "step":
                raise refusal(Phase.CLOSED, self.name, None, autoreset=self._autoreset)
            raise ClosedError(
                f"{method}() on {self.name}, which is closed. Make a new environment."
            )


def spoken(action: Any) -> dict[str, Any]:
    """Return what a step is given: an action, or the answer to a tool call."""
    return {"answer" if type(action) is ToolResult else "action": action}


def is_gone(error: EnvWeaveError) -> bool:
    """Whether the server has no such session any more that could be closed."""
    return isinstance(error, SessionGoneError | CapacityError)


def given(wishes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the wishes that are any."""
    return {name: value for name, value in wishes.items() if value is not None}


def as_it_is(value: Any) -> Any:
    """Return what a call led to as it came."""
    return value
