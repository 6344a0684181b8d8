"""The sessions of a vector: opened, called, lost and followed by others."""

from __future__ import annotations

import atexit
import contextlib
import time
import warnings
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

from envweave.client import session as single_session
from envweave.client.connection import BlockingConnection
from envweave.client.multi_server import MultiServerConnection
from envweave.client.server_info import ServerInfo
from envweave.client.session import drop_none, is_gone, step_params
from envweave.codec import AgentsSpec, Mismatch, Spec
from envweave.codec.containers import DataclassSpec, PydanticSpec
from envweave.codec.scalars import BoolSpec, EnumSpec, FloatSpec, IntSpec
from envweave.environment import Interface
from envweave.errors import (
    ActionError,
    ClosedError,
    ConnectionLostError,
    DeadlineError,
    EnvironmentFailure,
    EnvWeaveError,
    ServerError,
    StateFailedError,
    ToolCallOpenError,
    WireError,
)
from envweave.session.agents import AgentStates
from envweave.session.episodes import Position
from envweave.session.events import EventQueue
from envweave.types import AgentEnd, ResetResult, State, StepResult, ToolCallRequest, ToolResult
from envweave.vector.arguments import Wanted
from envweave.wire.faults import error_of, fault_of
from envweave.wire.messages import MAX_CALLS, Call, Reply, Stepped, Steps, unbundled
from envweave.wire.protocol import BatchFrame, Caller, Key
from envweave.wire.results import decode_result, result_of
from envweave.workers.channel import uninterrupted


@final
class RemoteRow:
    """One environment of a vector.

    Attributes:
        caller: Names its session, and numbers the calls.
        loss: Why it has no session; `None` while it has one.
        position: Where its stream of episodes stands.
    """

    def __init__(self, interface: Interface) -> None:
        self.caller = Caller()
        self.loss: str | None = "it was never opened"
        self.position: Position | None = None
        self._name = interface.name
        self._read = interface.action_spec.read
        self._outbox = EventQueue()
        agents = interface.possible_agents
        self._ledger = None if agents is None else AgentStates(agents, interface.action_spec)
        self._gone: set[str] = set()

    @property
    def has_tool_calls(self) -> bool:
        """Whether a tool call waits for its answer."""
        return bool(self._outbox.open_calls)

    @property
    def tool_calls(self) -> tuple[ToolCallRequest, ...]:
        """The tool calls that wait for an answer."""
        return tuple(self._outbox.open_calls.values())

    def admit(self, action: Any) -> Any:
        """Return the action as it travels, or refuse, as the session itself would.

        Raises:
            ActionError, ToolCallOpenError: It is refused.
        """
        if self._outbox.open_calls:
            return self._outbox.admit(action, self._name)
        if type(action) is ToolResult:
            raise ActionError(f"action: no tool call {action.call_id!r} waits for an answer")
        if self._ledger is not None:
            return self._ledger.read_actions(action)
        try:
            return self._read(action)
        except Mismatch as mismatch:
            raise ActionError(mismatch.describe("action")) from None

    def follow(self, result: StepResult[Any], agents: list[str] | None) -> None:
        """Take note of a result, and who takes part after it."""
        self._outbox.clear()
        if not result.done or result.ready is not None:
            self._outbox.open_calls.update({call.call_id: call for call in result.tool_calls})
        if self._ledger is None:
            return
        if result.ready is not None or isinstance(result, ResetResult):
            self._gone.clear()
        else:
            self._gone.update(e.agent_id for e in result.events if isinstance(e, AgentEnd))
        asked = [need.agent_id for need in result.needs]
        self._ledger.stand(agents or (), self._gone, asked)


FRAME_BYTES = 4 * 2**20
"""How much a frame of several calls, or of their replies, should hold at most."""

_AROUND_BYTES = 1024  # what a message holds besides its action

_SMALL = (BoolSpec, IntSpec, FloatSpec, EnumSpec)


@final
class PendingCalls:
    """Makes many calls over one connection, and waits for some of them.

    Every call comes to a reply: where the server cannot be reached any more, to one with a fault.

    Attributes:
        steps: The environment of each step that nobody has taken yet, by its call.
        replies: What has come, the oldest first.
    """

    def __init__(self, connection: BlockingConnection | MultiServerConnection, spec: Spec) -> None:
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

    def write(self, steps: Steps) -> BatchFrame | None:
        """Return steps as one frame; `None` if that holds more than it may, or should."""
        exchange = self.connection.exchange
        if len(steps.sessions) > self._calls_a_frame:
            return None
        try:
            data = exchange.encoding.encode(steps)
        except WireError:
            return None
        limit = min(FRAME_BYTES, exchange.limit_bytes or FRAME_BYTES)
        return BatchFrame(steps, data) if len(data) <= limit else None

    def step_batch(self, batch: BatchFrame) -> Stepped | None:
        """Make a step of many sessions, and return what came of it if that came in one piece.

        If not, its calls are like others from then on. Who is interrupted must `split_batch` it.
        """
        try:
            sent = self.connection.step_batch(batch)
        except EnvWeaveError as error:
            self.split_batch(batch)
            self._lose(error)
            sent = None
        else:
            if sent is None:
                self.split_batch(batch)
        self._is_torn = False
        return sent

    def split_batch(self, batch: BatchFrame) -> None:
        """Take the calls of a batch one by one, which will be made whatever happens."""
        self.enter([batch.steps.call(i) for i in range(len(batch.steps.sessions))])

    def add_replies(self, batch: BatchFrame, sent: Stepped) -> None:
        """Take the answer to a batch as if its replies had come one by one."""
        came = {(reply.session, reply.id): reply for reply in unbundled(sent)}
        self.replies.update((key, came[key]) for key in batch.keys)

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
            if not self.connection.exchange.is_lost(session):
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
    if isinstance(spec, DataclassSpec | PydanticSpec):
        return all(_is_small(one) for name, one in spec.fields.items() if name != "metadata")
    if isinstance(spec, AgentsSpec):
        return all(map(_is_small, spec.agents.values()))
    return isinstance(spec, _SMALL)


CLOSE_S = 1.0
"""How long `close` waits for steps that are under way."""

LOSSES = (*single_session.LOSSES, EnvironmentFailure, ClosedError)
"""What ends a session when a call is answered by it. Everything else refuses that call alone."""


@final
class RemoteSessions:
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
        calls: PendingCalls,
        served: ServerInfo,
        num_envs: int,
        wishes: Mapping[str, Any],
    ) -> None:
        self.calls = calls
        self._served = served
        self._wishes = wishes
        self._seats = [RemoteRow(served.interface) for _ in range(num_envs)]
        spec = served.interface.action_spec
        several = served.interface.possible_agents is not None
        # Where any object is an action, an answer that nobody waits for is still none.
        self._read_all = None if several or spec.contains(ToolResult("")) else spec.read_all
        self._tool_rows: set[int] = set()  # rows that wait for the answer to a tool call
        self._ending = _RowEnd(calls, self._seats)
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

    def at_lost_servers(self, rows: Iterable[int]) -> list[int]:
        """Return which of these rows have a session that went with its server."""
        is_lost = self.calls.connection.exchange.is_lost
        return [row for row in rows if is_lost(self._seats[row].caller.session)]

    def open(self, rows: Sequence[int]) -> dict[int, EnvWeaveError]:
        """Open sessions for these rows; return why some could not be opened."""
        failed, again = self._open(rows)
        if again:  # another server takes the place of the lost one
            failed = {row: error for row, error in failed.items() if row not in again}
            failed.update(self._open(again)[0])
        return failed

    def _open(self, rows: Sequence[int]) -> tuple[dict[int, EnvWeaveError], list[int]]:
        """Open sessions; return why some could not be, and which of them by a lost server."""
        if not rows:
            return {}, []
        callers = [Caller() for _ in rows]
        wishes = [{**self._wishes, "position": self._seats[row].position} for row in rows]
        try:
            replies = self.calls.ask(
                caller.call("open", drop_none(one))
                for caller, one in zip(callers, wishes, strict=True)
            )
        except BaseException:
            for caller in callers:
                self.calls.give_up(caller.session)
            raise
        failed: dict[int, EnvWeaveError] = {}
        again: list[int] = []
        is_lost = self.calls.connection.exchange.is_lost
        for row, caller, reply in zip(rows, callers, replies, strict=True):
            if reply.fault is None:
                self._seats[row].caller, self._seats[row].loss = caller, None
                continue
            failed[row] = error_of(reply.fault)
            if is_lost(caller.session):
                again.append(row)
            self.calls.forget(caller.session)
        return failed, again

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
            self._seats[row].caller.call(method, drop_none(wanted.get(row, nothing)))
            for row in rows
        )

    def read(self, row: int, reply: Reply) -> StepResult[Any]:
        """Return the result in a reply, and take note of it.

        Raises:
            EnvWeaveError: The fault that is there instead, or it cannot be read.
        """
        if reply.fault is not None:
            raise error_of(reply.fault)
        sent = decode_result(reply.result)
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
        rows = [row for row, wishes in wanted.items() if drop_none(wishes)]
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
                seats[row].caller.call("step", step_params(action))
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

    def encode_batch(self, actions: Sequence[Any]) -> BatchFrame | None:
        """Return a step of all rows in one frame, numbered; `None` if it takes more than that."""
        if self._tool_rows or not self.calls.are_settled:
            return None
        callers = [seat.caller for seat in self._seats]
        sessions = [caller.session for caller in callers]
        numbers = [caller.last + 1 for caller in callers]
        return self.calls.write(Steps(sessions=sessions, numbers=numbers, actions=list(actions)))

    def step_batch(self, batch: BatchFrame) -> Stepped | None:
        """Let all rows take a step; return what came of it if that came in one piece."""
        try:
            self._number(batch)
            return self.calls.step_batch(batch)
        except BaseException:  # how far it came nobody knows, so that it is made once more
            self._number(batch)
            self.calls.split_batch(batch)
            self.calls.steps.update(zip(batch.keys, range(len(self._seats)), strict=True))
            raise

    def _number(self, batch: BatchFrame) -> None:
        for seat, number in zip(self._seats, batch.steps.numbers, strict=True):
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
class _RowEnd:
    """How the sessions of a vector end, also of one that nobody closed."""

    def __init__(self, calls: PendingCalls, seats: Sequence[RemoteRow]) -> None:
        self._connection = calls.connection
        self._seats = seats

    def end(self) -> None:
        closing: list[Call] = []
        for seat in self._seats:
            if seat.loss is None:
                seat.loss = "it was closed"
                closing.append(seat.caller.call("close", {}))
        self._connection.end(closing)


def _dropped(ending: _RowEnd, num_envs: int) -> None:
    atexit.unregister(ending.end)
    ending.end()
    warnings.warn(
        f"A vector of {num_envs} environments at a server was dropped without close(). Use it in a "
        "`with` block, or close it.",
        ResourceWarning,
        stacklevel=1,
    )
