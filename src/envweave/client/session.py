"""The caller's side of one session at a server: every decision, and no I/O.

`RemoteSession` writes each operation (`reset`, `step`, `restore`, ...) as a generator: it yields
the calls to make, each with its time limit, and is sent the replies, or has the error thrown in
that a call ended with. A driver runs the generator over its connection: `env.py` for blocking
callers, `async_env.py` for async ones.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from typing import Any, Protocol, TypedDict, TypeVar, final

from envweave.client.server_info import ServerInfo
from envweave.errors import (
    ActionError,
    CapacityError,
    ClosedError,
    ConnectionLostError,
    DeadlineError,
    EnvironmentLostError,
    EnvWeaveError,
    ForkError,
    ServerError,
    SessionGoneError,
    StateFailedError,
    WireError,
)
from envweave.session.episodes import EpisodeTracker, Position, with_autoreset
from envweave.session.kept_snapshots import DroppedSnapshots, KeptSnapshot
from envweave.session.loss_log import LOSSES_LOGGED
from envweave.session.session import Phase, check_snapshot_kind, refusal
from envweave.types import AGENT, EpisodeEnd, ResetResult, State, StepResult, ToolResult
from envweave.wire.faults import error_of
from envweave.wire.messages import Call, Reply, read_as
from envweave.wire.protocol import Caller, EncodeError, Exchange
from envweave.wire.results import decode_result, read_ordinary, result_of

logger = logging.getLogger("envweave.session")

T = TypeVar("T")
CallSequence = Generator[tuple[Call, float | None], Reply, T]
"""Yields calls with their time limits in seconds, receives the replies, returns the outcome."""

CLOSE_S = 10.0
"""How long `close` waits for the server."""

OPEN_S = 600.0
"""How long opening a session may take: an environment may have a model to load."""

INTERRUPTED = "the last call was interrupted"

LOSSES = (ServerError, DeadlineError, WireError)
"""Errors after which a session cannot continue, unless they refuse what was sent."""

_MARGIN_S = 30.0


class SessionKeywords(TypedDict):
    """The options that sessions at one server share."""

    autoreset: bool
    timeout_s: float | None
    wait_s: float | None


class SessionConnection(Protocol):
    """The part of a connection that a session needs."""

    exchange: Exchange

    def abandon(self, session: str) -> None:
        """Close a session that is no longer used."""


@final
class RemoteSession:
    """One session after another at a server: a lost one is replaced at the next reset.

    Args:
        connection: Carries the calls.
        served: What the server serves.
        autoreset: Whether the next episode begins when one ends.
        timeout_s: Time limit for each of the environment's own calls.
        wait_s: How long to wait for a free session if the server is full.

    Attributes:
        name: The environment's name, for messages.
        agents: The agents that take part now.
        is_closed: Whether `close` was called.
    """

    def __init__(
        self,
        connection: SessionConnection,
        served: ServerInfo,
        *,
        autoreset: bool,
        timeout_s: float | None,
        wait_s: float | None,
    ) -> None:
        several = served.interface.possible_agents is not None
        self.name = served.interface.name
        self.agents: list[str] = [] if several else [AGENT]
        self.is_closed = False
        self._connection = connection
        connection.exchange.limit_bytes = served.max_message_bytes
        self._served = served
        self._several_agents = several
        self._autoreset = autoreset
        self._timeout_s = timeout_s
        self._wait_s = wait_s
        # The server enforces `timeout_s` itself; a step may include a reset, and that a new
        # environment.
        self._limit_s = None if timeout_s is None else 3 * timeout_s + _MARGIN_S
        self._open_limit_s = OPEN_S + (wait_s or 0.0)
        self._tracker = EpisodeTracker(several_agents=several)
        self._dropped = DroppedSnapshots()
        self._position: Position | None = None
        self._caller: Caller | None = None
        self._has_opened = False
        self._loss = "there is no session"

    @property
    def is_open(self) -> bool:
        """Whether there is a session."""
        return self._caller is not None

    @property
    def options(self) -> SessionKeywords:
        """What another session like this is made with."""
        return {
            "autoreset": self._autoreset,
            "timeout_s": self._timeout_s,
            "wait_s": self._wait_s,
        }

    def open(self, token: str | None = None) -> CallSequence[None]:
        """Open a session, which continues the seeds and episode ids of the previous one.

        With the token of a snapshot it begins where that is kept.
        """
        self._caller = Caller()
        options = {
            "autoreset": self._autoreset or None,
            "timeout_s": self._timeout_s,
            "position": self._position,
            "wait_s": self._wait_s,
            "snapshot": token,
        }
        try:
            reply = yield self._caller.call("open", drop_none(options)), self._open_limit_s
            _value(reply)
        except EnvWeaveError as error:
            if not self._has_lost_server():  # else `reset` tries again
                self._lose_to(error)
            raise
        self._has_opened = True

    def reset(self, params: Mapping[str, Any]) -> CallSequence[ResetResult[Any]]:
        """Begin an episode; a session that was lost with its server is replaced once.

        Raises:
            EnvironmentLostError: The session is lost.
            EnvWeaveError: No session could be opened, or the environment refused.
        """
        try:
            try:
                return (yield from self._begin(params))
            except LOSSES as loss:
                if not self._has_lost_server():
                    raise
                logger.warning("an environment %s was lost and is replaced: %s", self.name, loss)
                self._lose_to(loss)
            return (yield from self._begin(params))
        except EncodeError:
            self._roll_back()
            raise
        except LOSSES as loss:
            self._lose_to(loss)
            if not self._has_opened:
                raise
            self._tracker.is_live = False
            raise EnvironmentLostError(f"{self.name}.reset() failed: {loss}") from None

    def _begin(self, params: Mapping[str, Any]) -> CallSequence[ResetResult[Any]]:
        if self._caller is None:
            yield from self.open()
        reply = yield self.call("reset", drop_none(params)), self._limit_s
        result: ResetResult[Any] = self._result(reply)
        return result

    def step(self, action: Any) -> CallSequence[StepResult[Any]]:
        """Take a step. If the session is lost, so is the episode, and the result says so.

        Raises:
            ActionError: The action cannot be sent; nothing has happened.
            ResetNeededError: There is no episode.
            EnvWeaveError: The first session could not be opened, or the environment refused.
        """
        try:
            if not self._has_opened:
                yield from self.open()
            reply = yield self.call("step", step_params(action)), self._limit_s
            result: StepResult[Any] = self._result(reply)
        except EncodeError as error:
            self._roll_back()
            raise ActionError(f"action: {error}") from None
        except LOSSES as loss:
            self._lose_to(loss)
            if not self._has_opened:
                raise
            return (yield from self._lost_step(loss))
        return result

    def _lost_step(self, loss: Exception) -> CallSequence[StepResult[Any]]:
        if not self._tracker.is_live:
            raise refusal(Phase.ENDED, self.name, str(loss).rstrip("."), autoreset=False) from None
        LOSSES_LOGGED.warn(logger, self.name, loss)
        result = self._tracker.lost(EpisodeEnd("lost", "infrastructure", str(loss)))
        if not self._autoreset:
            return result
        try:
            return with_autoreset(result, (yield from self.reset({})))
        except EnvWeaveError as error:
            return with_autoreset(result, error)

    def state(self) -> CallSequence[State]:
        """Return the environment's state.

        Raises:
            StateFailedError: The session is lost, or could not be opened.
        """
        try:
            if not self._has_opened:
                yield from self.open()
            reply = yield self.call("state", {}), self._limit_s
            state: State = self._served.rebuild_state(_value(reply))
        except LOSSES as loss:
            self._lose_to(loss)
            raise StateFailedError(f"{self.name}.state failed: {loss}") from None
        return state

    def snapshot(self) -> CallSequence[KeptSnapshot]:
        """Have the server keep a snapshot; return its token.

        Raises:
            ForkError: The state cannot be copied, or the session is lost.
            EnvWeaveError: There is no episode, or no session could be opened.
        """
        try:
            if not self._has_opened:
                yield from self.open()
            params = snapshot_params(self._dropped)
            reply = yield self.call("snapshot", params), self._limit_s
            point = self._dropped.watch(read_snapshot(_value(reply)))
        except LOSSES as loss:
            self._lose_to(loss)
            if not self._has_opened:
                raise
            raise ForkError(f"snapshot() of {self.name} failed: {loss}") from None
        return point

    def restore(self, point: Any) -> CallSequence[ResetResult[Any]]:
        """Continue from a snapshot that the server keeps.

        Raises:
            ForkError: The server does not keep it, or the session is lost.
            EnvWeaveError: No session could be opened.
        """
        check_snapshot_kind(point, KeptSnapshot, self.name)
        try:
            if self._caller is None:
                yield from self.open(point.token)
            reply = yield self.call("restore", {"token": point.token}), self._limit_s
            result: ResetResult[Any] = self._result(reply)
        except LOSSES as loss:
            self._lose_to(loss)
            if not self._has_opened:
                raise
            self._tracker.is_live = False
            raise ForkError(f"restore() of {self.name} failed: {loss}") from None
        return result

    def call(self, method: str, params: dict[str, Any]) -> Call:
        """Return the next call on the session.

        Raises:
            ConnectionLostError: There is no session.
        """
        if self._caller is None:
            raise ConnectionLostError(self._loss)
        return self._caller.call(method, params)

    def _roll_back(self) -> None:
        """Free the number of the last call, which could not be sent."""
        if self._caller is not None:
            self._caller.roll_back()

    def _result(self, reply: Reply) -> Any:
        """Return the result in a reply, and record it.

        Raises:
            EnvWeaveError: The reply is a fault, or cannot be read.
        """
        if reply.fault is not None:
            raise error_of(reply.fault)
        plain = reply.result
        ordinary = None if self._several_agents else read_ordinary(plain, self._served.rebuild)
        if ordinary is not None:
            self._tracker.follow(ordinary)
            return ordinary
        sent = decode_result(plain)
        result = result_of(sent, self._served.rebuild)
        if sent.position is not None:
            self._position = sent.position
        if self._several_agents:
            self.agents = sent.agents or []
        self._tracker.follow(result)
        return result

    def _has_lost_server(self) -> bool:
        """Whether the session was lost with its server; the replacement can open another."""
        return self._caller is not None and self._connection.exchange.is_lost(self._caller.session)

    def _lose_to(self, loss: EnvWeaveError) -> None:
        """Record that the session is gone, or close it at the server if it may still be there."""
        if not is_gone(loss):
            self.abandon(str(loss))
        elif (session := self.lose(str(loss))) is not None:
            self._connection.exchange.drop(session)

    def lose(self, why: str) -> str | None:
        """Record that there is no session any more; return its id, if there was one."""
        caller, self._caller, self._loss = self._caller, None, why
        return None if caller is None else caller.session

    def abandon(self, why: str) -> None:
        """Give up the session, if there is one, and close it at the server."""
        if (session := self.lose(why) if self.is_open else None) is not None:
            self._connection.abandon(session)

    def interrupt(self) -> None:
        """Give up the session: an operation was interrupted, so its state is unknown."""
        self._tracker.is_live = False
        self.abandon(INTERRUPTED)

    def refuse_closed(self, method: str) -> None:
        """Refuse an operation on a closed environment.

        Raises:
            ClosedError: It is closed.
        """
        if self.is_closed:
            if method == "step":
                raise refusal(Phase.CLOSED, self.name, None, autoreset=self._autoreset)
            raise ClosedError(
                f"{method}() on {self.name}, which is closed. Make a new environment."
            )


def _value(reply: Reply) -> Any:
    """Return the value in a reply.

    Raises:
        EnvWeaveError: The reply is a fault.
    """
    if reply.fault is not None:
        raise error_of(reply.fault)
    return reply.result


def snapshot_params(dropped: DroppedSnapshots) -> dict[str, Any]:
    """Return the parameters of a `snapshot` call."""
    tokens = dropped.take()
    return {"dropped": tokens} if tokens else {}


def read_snapshot(plain: Any) -> KeptSnapshot:
    """Return the snapshot in a reply.

    Raises:
        WireError: There is none.
    """
    return read_as(plain, KeptSnapshot, "The reply has no snapshot")


def step_params(action: Any) -> dict[str, Any]:
    """Return the parameters of a step: an action, or the answer to a tool call."""
    return {"answer" if type(action) is ToolResult else "action": action}


def is_gone(error: EnvWeaveError) -> bool:
    """Whether the server has no such session any more that could be closed."""
    return isinstance(error, SessionGoneError | CapacityError)


def drop_none(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that are not `None`."""
    return {name: value for name, value in params.items() if value is not None}
