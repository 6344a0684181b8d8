"""The sessions of a vector: opened, called, lost and followed by others."""

from __future__ import annotations

import atexit
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

from envweave.client import sitting
from envweave.client.served import Served
from envweave.client.sitting import given, is_gone, spoken
from envweave.client.vector_calls import Calls
from envweave.client.vector_seats import Seat
from envweave.codec import Mismatch
from envweave.errors import (
    ActionError,
    ClosedError,
    ConnectionLostError,
    EnvironmentFailure,
    EnvWeaveError,
    ServerError,
    StateFailedError,
    ToolCallOpenError,
)
from envweave.session.plan import Position
from envweave.types import State, StepResult, ToolCallRequest, ToolResult
from envweave.vector.choices import Wanted
from envweave.wire.exchange import Caller, Key, Volley
from envweave.wire.faults import error_of
from envweave.wire.messages import Call, Reply, Stepped, Steps
from envweave.wire.results import read_wired, result_of

CLOSE_S = 1.0
"""How long `close` waits for steps that are under way."""

LOSSES = (*sitting.LOSSES, EnvironmentFailure, ClosedError)
"""What ends a session when a call is answered by it. Everything else refuses that call alone."""


@final
class Sessions:
    """What a vector has at a server, by row.

    Args:
        calls: Makes the calls.
        served: What is there.
        num_envs: How many there are.
        wishes: What each session is opened with.

    Raises:
        EnvWeaveError: One could not be opened; it is named.
    """

    def __init__(
        self,
        calls: Calls,
        served: Served,
        num_envs: int,
        wishes: Mapping[str, Any],
    ) -> None:
        self.calls = calls
        self._served = served
        self._wishes = wishes
        self._seats = [Seat(served.interface) for _ in range(num_envs)]
        spec = served.interface.action_spec
        several = served.interface.possible_agents is not None
        # Where any object is an action, an answer that nobody waits for is still none.
        self._read_all = None if several or spec.contains(ToolResult("")) else spec.read_all
        self._tool_rows: set[int] = set()  # rows that wait for the answer to a tool call
        self._ending = _Ending(calls, self._seats)
        try:
            failed = self.open(range(num_envs))
            if failed:
                row, error = next(iter(failed.items()))
                raise type(error)(f"Environment {row} of {num_envs}: {error}") from error
        except BaseException:
            self._ending.end()
            raise
        self._unclosed = weakref.finalize(self, _dropped, self._ending, num_envs)
        self._unclosed.atexit = False
        atexit.register(self._ending.end)

    @property
    def are_plain(self) -> bool:
        """Whether no row waits for the answer to a tool call."""
        return not self._tool_rows

    def lost(self, rows: Iterable[int]) -> list[int]:
        """Return which of these rows have no session."""
        return [row for row in rows if self._seats[row].loss is not None]

    def open(self, rows: Sequence[int]) -> dict[int, EnvWeaveError]:
        """Open sessions for these rows; return why some could not be opened."""
        if not rows:
            return {}
        callers = [Caller() for _ in rows]
        wishes = [{**self._wishes, "position": self._seats[row].position} for row in rows]
        try:
            replies = self.calls.ask(
                caller.call("open", given(one)) for caller, one in zip(callers, wishes, strict=True)
            )
        except BaseException:
            for caller in callers:
                self.calls.give_up(caller.session)
            raise
        failed: dict[int, EnvWeaveError] = {}
        for row, caller, reply in zip(rows, callers, replies, strict=True):
            if reply.fault is None:
                self._seats[row].caller, self._seats[row].loss = caller, None
            else:
                failed[row] = error_of(reply.fault)
                self.calls.forget(caller.session)
        return failed

    def lose(self, row: int, error: Exception) -> None:
        """Take note that a row's session cannot go on."""
        seat = self._seats[row]
        if seat.loss is not None:
            return
        seat.loss = str(error)
        if isinstance(error, EnvWeaveError) and (
            is_gone(error) or isinstance(error, ConnectionLostError)
        ):
            self.calls.forget(seat.caller.session)
        else:
            self.calls.give_up(seat.caller.session)

    def ask(self, rows: Sequence[int], method: str, wanted: Wanted) -> list[Reply]:
        """Make a call on each of these, and return what came of it."""
        self.calls.settle({self._seats[row].caller.session for row in rows})
        nothing: Mapping[str, Any] = {}
        return self.calls.ask(
            self._seats[row].caller.call(method, given(wanted.get(row, nothing))) for row in rows
        )

    def read(self, row: int, reply: Reply) -> StepResult[Any]:
        """Return the result in a reply, and take note of it.

        Raises:
            EnvWeaveError: The fault that is there instead, or it cannot be read.
        """
        if reply.fault is not None:
            raise error_of(reply.fault)
        sent = read_wired(reply.result)
        result = result_of(sent, self._served.rebuild)
        seat = self._seats[row]
        seat.follow(result, sent.agents)
        (self._tool_rows.add if seat.has_tool_calls else self._tool_rows.discard)(row)
        if sent.position is not None:
            seat.position = sent.position
        return result

    def tool_calls(self, row: int) -> tuple[ToolCallRequest, ...]:
        """Return the tool calls of a row that wait for an answer."""
        return self._seats[row].tool_calls

    def position(self, row: int) -> Position | None:
        """Return where a row's stream of episodes stands."""
        return self._seats[row].position

    def go_back(self, row: int, position: Position | None) -> None:
        """Let a row's next session go on from where its stream stood before."""
        self._seats[row].position = position

    def check_reset(self, wanted: Wanted) -> None:
        """Refuse what a reset would refuse, naming the environment; nothing changes."""
        rows = [row for row, wishes in wanted.items() if given(wishes)]
        self.open(self.lost(rows))
        rows = [row for row in rows if self._seats[row].loss is None]
        replies = self.ask(rows, "check_reset", wanted) if rows else []
        for row, reply in zip(rows, replies, strict=True):
            error = None if reply.fault is None else error_of(reply.fault)
            if isinstance(error, LOSSES):
                self.lose(row, error)  # the reset itself opens another
            elif error is not None:
                raise type(error)(f"Environment {row}: {error}") from None

    def admit(self, ids: Sequence[int], actions: Sequence[Any]) -> list[Any]:
        """Return the actions as they travel, or refuse, as the sessions would; nothing changes."""
        if self._read_all is not None and not self._tool_rows:
            try:
                return self._read_all(actions)
            except Mismatch:
                pass  # row by row it shows whose it is
        admitted: list[Any] = []
        for row, action in zip(ids, actions, strict=True):
            try:
                admitted.append(self._seats[row].admit(action))
            except ActionError as error:
                words = str(error).removeprefix("action")
                raise ActionError(f"actions[{len(admitted)}]{words}") from None
            except ToolCallOpenError as error:
                raise ToolCallOpenError(f"actions[{len(admitted)}]: {error}") from None
        return admitted

    def send(self, ids: Sequence[int], actions: Sequence[Any], *, together: bool) -> list[Key]:
        """Let these take a step each, with actions that were admitted; return the calls."""
        seats, calls = self._seats, self.calls
        calls.refuse_large(actions)
        try:
            made = [
                seats[row].caller.call("step", spoken(action))
                for row, action in zip(ids, actions, strict=True)
            ]
            keys = calls.enter(made)
            calls.steps.update(zip(keys, ids, strict=True))
        except BaseException:
            for row in ids:  # some have a number, and will never be made
                self.lose(row, ServerError("the last call was interrupted"))
            raise
        calls.post(made, together=together)
        return keys

    def volley(self, actions: Sequence[Any]) -> Volley | None:
        """Return a step of all rows in one frame, numbered; `None` if it takes more than that."""
        if self._tool_rows or not self.calls.are_settled:
            return None
        callers = [seat.caller for seat in self._seats]
        sessions = [caller.session for caller in callers]
        numbers = [caller.last + 1 for caller in callers]
        return self.calls.write(Steps(sessions=sessions, numbers=numbers, actions=list(actions)))

    def fire(self, volley: Volley) -> Stepped | None:
        """Let all rows take a step; return what came of it if that came in one piece."""
        try:
            self._number(volley)
            return self.calls.fire(volley)
        except BaseException:  # how far it came nobody knows, so that it is made once more
            self._number(volley)
            self.calls.scatter(volley)
            self.calls.steps.update(zip(volley.keys, range(len(self._seats)), strict=True))
            raise

    def _number(self, volley: Volley) -> None:
        for seat, number in zip(self._seats, volley.steps.numbers, strict=True):
            seat.caller.last = number

    def state(self) -> list[State]:
        """Return the state of each environment.

        Raises:
            StateFailedError: One of them has none: its code failed, or it is lost.
        """
        name, everyone = self._served.interface.name, range(len(self._seats))
        for row in self.lost(everyone):
            raise StateFailedError(f"{name}.state failed: {self._seats[row].loss}")
        states = []
        for row, reply in zip(everyone, self.ask(everyone, "state", {}), strict=True):
            if reply.fault is None:
                states.append(self._served.rebuild_state(reply.result))
                continue
            error = error_of(reply.fault)
            if not isinstance(error, ServerError):
                raise error
            self.lose(row, error)
            raise StateFailedError(f"{name}.state failed: {error}")
        return states

    def close(self) -> None:
        """Close every session and hang up, once. What is lost closes itself."""
        if self._unclosed.detach() is None:
            return
        atexit.unregister(self._ending.end)
        calls = self.calls
        try:
            if calls.steps:  # a session can be closed when its last call is over
                calls.wait(calls.steps, len(calls.steps), CLOSE_S)
        finally:
            self._ending.end()


@final
class _Ending:
    """How the sessions of a vector end, also of one that nobody closed."""

    def __init__(self, calls: Calls, seats: Sequence[Seat]) -> None:
        self._connection = calls.connection
        self._seats = seats

    def end(self) -> None:
        closing: list[Call] = []
        for seat in self._seats:
            if seat.loss is None:
                seat.loss = "it was closed"
                closing.append(seat.caller.call("close", {}))
        self._connection.end(closing)


def _dropped(ending: _Ending, num_envs: int) -> None:
    atexit.unregister(ending.end)
    ending.end()
    warnings.warn(
        f"A vector of {num_envs} environments at a server was dropped without close(). Use it in a "
        "`with` block, or close it.",
        ResourceWarning,
        stacklevel=1,
    )
