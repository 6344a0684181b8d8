"""The sessions of a vector: opening, calling, losing and replacing them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, final

from envweave.client import session as single_session
from envweave.client.connection import BlockingConnection
from envweave.client.multi_server import MultiServerConnection
from envweave.client.server_info import ServerInfo
from envweave.client.session import drop_none, is_gone, read_snapshot, snapshot_params, step_params
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
    ForkError,
    ServerError,
    StateFailedError,
    ToolCallOpenError,
    WireError,
)
from envweave.lifetime import CloseGuard
from envweave.session.agents import AgentStates
from envweave.session.episodes import Position
from envweave.session.events import EventQueue
from envweave.session.kept_snapshots import DroppedSnapshots, KeptSnapshot
from envweave.types import AgentEnd, ResetResult, State, StepResult, ToolCallRequest, ToolResult
from envweave.vector.arguments import ResetKwargs
from envweave.wire.columns import ActionBatch
from envweave.wire.faults import error_of, fault_of
from envweave.wire.messages import MAX_CALLS, Call, Reply, Stepped, Steps, split_replies
from envweave.wire.protocol import BatchFrame, Caller, Key
from envweave.wire.results import decode_result, result_of
from envweave.workers.channel import uninterrupted


@final
class RemoteRow:
    """One environment of a vector.

    Attributes:
        caller: Names its session and numbers the calls.
        loss: Why it has no session; `None` while it has one.
        position: The position in its stream of episodes.
    """

    def __init__(self, interface: Interface) -> None:
        self.caller = Caller()
        self.loss: str | None = "it was never opened"
        self.position: Position | None = None
        self._name = interface.name
        self._read = interface.action_spec.read
        self._events = EventQueue()
        agents = interface.possible_agents
        self._agents = None if agents is None else AgentStates(agents, interface.action_spec)
        self._gone: set[str] = set()

    @property
    def has_tool_calls(self) -> bool:
        """Whether a tool call is unanswered."""
        return bool(self._events.open_calls)

    @property
    def tool_calls(self) -> tuple[ToolCallRequest, ...]:
        """The unanswered tool calls."""
        return tuple(self._events.open_calls.values())

    def admit(self, action: Any) -> Any:
        """Return the action to send, or refuse it, as the session itself would.

        Raises:
            ActionError, ToolCallOpenError: The action is refused.
        """
        if self._events.open_calls:
            return self._events.admit(action, self._name)
        if type(action) is ToolResult:
            raise ActionError(f"action: no tool call {action.call_id!r} waits for an answer")
        if self._agents is not None:
            return self._agents.read_actions(action)
        try:
            return self._read(action)
        except Mismatch as mismatch:
            raise ActionError(mismatch.describe("action")) from None

    def follow(self, result: StepResult[Any], agents: list[str] | None) -> None:
        """Record a result and the agents that take part after it."""
        self._events.clear()
        if not result.done or result.ready is not None:
            self._events.open_calls.update({call.call_id: call for call in result.tool_calls})
        if self._agents is None:
            return
        if result.ready is not None or isinstance(result, ResetResult):
            self._gone.clear()
        else:
            self._gone.update(e.agent_id for e in result.events if isinstance(e, AgentEnd))
        needed = [need.agent_id for need in result.needs]
        self._agents.restore(agents or (), self._gone, needed)


FRAME_BYTES = 4 * 2**20
"""The size that a frame of several calls, or of their replies, should not exceed."""

_AROUND_BYTES = 1024  # of a message, besides its action

_SMALL = (BoolSpec, IntSpec, FloatSpec, EnumSpec)


@final
class PendingCalls:
    """Makes many calls over one connection, and waits for some of them.

    Every call gets a reply: if the server cannot be reached any more, one with a fault.

    Attributes:
        steps: The row of each step that was not received yet, by its call.
        replies: The replies that were not received yet, oldest first.
    """

    def __init__(self, connection: BlockingConnection | MultiServerConnection, spec: Spec) -> None:
        self.connection = connection
        self.steps: dict[Key, int] = {}
        self.replies: dict[Key, Reply] = {}
        self._calls_a_frame = MAX_CALLS
        self._has_small_actions = _is_small(spec)
        self._pending: dict[Key, Call] = {}
        self._interrupted: set[Key] = set()  # pending calls whose caller was interrupted
        # After an interrupt calls may not have been sent, or replies may be lost. A call that is
        # repeated runs once, and is answered again.
        self._must_resend = False

    def expect(self, size: int) -> None:
        """Limit the calls per frame by the size of a reply in bytes."""
        self._calls_a_frame = min(max(FRAME_BYTES // max(size, 1), 1), MAX_CALLS)

    def refuse_large(self, actions: Sequence[Any]) -> None:
        """Refuse actions that are too large for the server, before anything is sent.

        Raises:
            ActionError: One is too large; the message begins with its index.
        """
        exchange = self.connection.exchange
        if self._has_small_actions or not exchange.limit_bytes:
            return
        for i, action in enumerate(actions):
            size = len(exchange.encoding.encode(action))
            if size > exchange.limit_bytes - _AROUND_BYTES:
                raise ActionError(
                    f"actions[{i}]: it has {size} bytes, and the server accepts messages of "
                    f"at most {exchange.limit_bytes}. Send less, or start the server with a larger "
                    "max_message_bytes."
                )

    def enter(self, calls: Sequence[Call]) -> list[Key]:
        """Register calls, to be sent by `post`, or by the next wait after an interrupt."""
        keys = [(call.session, call.id) for call in calls]
        self._pending.update(zip(keys, calls, strict=True))
        self._must_resend = True
        return keys

    def post(self, calls: Sequence[Call], *, together: bool) -> None:
        """Send registered calls. They are answered together, or each as soon as it is done."""
        try:
            for some in self._frames(calls):
                self.connection.post(some, together=together)
        except EnvWeaveError as error:
            self._lose(error)
        self._must_resend = False

    @property
    def is_idle(self) -> bool:
        """Whether no call is in flight, and every reply was received."""
        return not (self._pending or self.replies or self._must_resend)

    def write(self, steps: Steps) -> BatchFrame | None:
        """Return steps as one frame; `None` if it would be too large."""
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
        """Step many sessions in one frame; return the answer if it covers all of them.

        If it does not, the calls are pending like others. After an interrupt the caller must
        call `split_batch`.
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
        self._must_resend = False
        return sent

    def split_batch(self, batch: BatchFrame) -> None:
        """Register the calls of a batch one by one."""
        self.enter([batch.steps.call(i) for i in range(len(batch.steps.sessions))])

    def add_replies(self, batch: BatchFrame, sent: Stepped) -> None:
        """Store the answer to a batch as replies, in the order of its calls."""
        replies = {(reply.session, reply.id): reply for reply in split_replies(sent)}
        self.replies.update((key, replies[key]) for key in batch.keys)

    def _frames(self, calls: Sequence[Call]) -> Iterator[Sequence[Call]]:
        """Distribute calls over frames of at most the allowed and the preferred size."""
        size = self._calls_a_frame
        if self._has_small_actions:
            yield from (calls[i : i + size] for i in range(0, len(calls), size))
            return
        encode = self.connection.exchange.encoding.encode
        some: list[Call] = []
        size_bytes = 0
        for call in calls:
            more = len(encode(call))
            if some and (len(some) == size or size_bytes + more > FRAME_BYTES):
                yield some
                some, size_bytes = [], 0
            some.append(call)
            size_bytes += more
        if some:
            yield some

    def call(self, calls: Iterable[Call]) -> list[Reply]:
        """Make calls, wait for all of them, and return the replies."""
        keys: list[Key] = []
        try:
            with uninterrupted():
                made = list(calls)  # a call that has a number must be made
                keys = self.enter(made)
            self.post(made, together=True)
            self.wait(keys, len(keys), None)
            return [self.replies.pop(key) for key in keys]
        except BaseException:
            self._interrupted.update(key for key in keys if key in self._pending)
            for key in keys:
                self.replies.pop(key, None)
            raise

    def wait_for_interrupted(self, sessions: Collection[str]) -> None:
        """Wait for calls on these sessions whose callers were interrupted."""
        while any(session in sessions for session, _ in self._interrupted):
            self._collect(None)

    def wait(self, keys: Collection[Key], count: int, timeout_s: float | None) -> list[Key]:
        """Wait until `count` of these calls have replies; return those that have, oldest first."""
        ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        awaited = keys if isinstance(keys, dict) else dict.fromkeys(keys)
        while len(ready := [key for key in self.replies if key in awaited]) < count:
            left_s = None if ends_s is None else ends_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return ready
            self._collect(left_s)
        if timeout_s is not None or count < len(awaited):
            with contextlib.suppress(DeadlineError):
                while len(ready) < len(awaited):  # include what has arrived meanwhile
                    self._receive(0.0)
                    ready = [key for key in self.replies if key in awaited]
        return ready

    def _collect(self, timeout_s: float | None) -> None:
        with contextlib.suppress(DeadlineError):
            self._receive(timeout_s)

    def _receive(self, timeout_s: float | None) -> None:
        if self._must_resend:
            self.post(list(self._pending.values()), together=False)
        try:
            replies = self.connection.collect(timeout_s)
        except DeadlineError:
            raise
        except (ConnectionLostError, WireError) as error:
            self._lose(error)
            return
        except BaseException:
            self._must_resend = True
            raise
        for reply in replies:
            self._note((reply.session, reply.id), reply)

    def _note(self, key: Key, reply: Reply) -> None:
        if self._pending.pop(key, None) is None:
            return
        if key in self._interrupted:
            self._interrupted.discard(key)
        else:
            self.replies[key] = reply

    def _lose(self, error: EnvWeaveError) -> None:
        """Answer all pending calls with a fault."""
        fault = fault_of(ConnectionLostError(str(error)))
        for session, number in list(self._pending):
            if not self.connection.exchange.is_lost(session):
                self.connection.abandon(session)
            self._note((session, number), Reply(id=number, session=session, fault=fault))

    def give_up(self, session: str) -> None:
        """Close a session that is no longer used."""
        self._remove(session)
        self.connection.abandon(session)

    def forget(self, session: str) -> None:
        """Forget a session that the server does not have."""
        self._remove(session)
        self.connection.exchange.drop(session)

    def _remove(self, session: str) -> None:
        for key in [key for key in self._pending if key[0] == session]:
            del self._pending[key]
            self._interrupted.discard(key)
            self.steps.pop(key, None)


def _is_small(spec: Spec) -> bool:
    """Whether an action is a few numbers, so that its size need not be checked."""
    if isinstance(spec, DataclassSpec | PydanticSpec):
        return all(_is_small(one) for name, one in spec.fields.items() if name != "metadata")
    if isinstance(spec, AgentsSpec):
        return all(map(_is_small, spec.agents.values()))
    return isinstance(spec, _SMALL)


CLOSE_S = 1.0
"""How long `close` waits for steps in flight."""

LOSSES = (*single_session.LOSSES, EnvironmentFailure, ClosedError)
"""Faults that end a session. Any other fault refuses one call alone."""


@final
class RemoteSessions:
    """The sessions of a vector, by row.

    Args:
        calls: Makes the calls.
        served: What the server serves.
        num_envs: The number of environments.
        options: The options that each session is opened with.

    Raises:
        EnvWeaveError: One could not be opened; the message names its row.
    """

    def __init__(
        self,
        calls: PendingCalls,
        served: ServerInfo,
        num_envs: int,
        options: Mapping[str, Any],
    ) -> None:
        self.calls = calls
        self._served = served
        self._options = options
        self._rows = [RemoteRow(served.interface) for _ in range(num_envs)]
        self._dropped = DroppedSnapshots()
        spec = served.interface.action_spec
        several = served.interface.possible_agents is not None
        # Even if the spec allows any object, a `ToolResult` without a tool call is not an action.
        self._read_all = None if several or spec.contains(ToolResult("")) else spec.read_all
        self._columns_of = spec.columns_of if isinstance(spec, DataclassSpec) else None
        self._tool_rows: set[int] = set()  # rows with an unanswered tool call
        self._end = partial(_end, calls.connection, self._rows)
        try:
            failed = self.open(range(num_envs))
            if failed:
                row, error = next(iter(failed.items()))
                raise type(error)(f"Environment {row} of {num_envs}: {error}") from error
        except BaseException:
            self._end()
            raise
        self._unclosed = CloseGuard(
            self,
            self._end,
            f"A vector of {num_envs} environments at a server was dropped without close(). Use it "
            "in a `with` block, or close it.",
        )

    @property
    def are_plain(self) -> bool:
        """Whether no row has an unanswered tool call."""
        return not self._tool_rows

    def lost(self, rows: Iterable[int]) -> list[int]:
        """Return which of these rows have no session."""
        return [row for row in rows if self._rows[row].loss is not None]

    def at_lost_servers(self, rows: Iterable[int]) -> list[int]:
        """Return which of these rows had a session that was lost with its server."""
        is_lost = self.calls.connection.exchange.is_lost
        return [row for row in rows if is_lost(self._rows[row].caller.session)]

    def open(self, rows: Sequence[int]) -> dict[int, EnvWeaveError]:
        """Open sessions for these rows; return the errors by row."""
        failed, again = self._open(rows)
        if again:  # the lost server is replaced
            failed = {row: error for row, error in failed.items() if row not in again}
            failed.update(self._open(again)[0])
        return failed

    def _open(self, rows: Sequence[int]) -> tuple[dict[int, EnvWeaveError], list[int]]:
        """Open sessions; return the errors by row, and the rows whose server was lost."""
        if not rows:
            return {}, []
        callers = [Caller() for _ in rows]
        options = [{**self._options, "position": self._rows[row].position} for row in rows]
        try:
            replies = self.calls.call(
                caller.call("open", drop_none(one))
                for caller, one in zip(callers, options, strict=True)
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
                self._rows[row].caller, self._rows[row].loss = caller, None
                continue
            failed[row] = error_of(reply.fault)
            if is_lost(caller.session):
                again.append(row)
            self.calls.forget(caller.session)
        return failed, again

    def lose(self, row: int, error: Exception) -> None:
        """Record that a row has lost its session, and close that in case it still exists."""
        remote = self._rows[row]
        if remote.loss is not None:
            return
        remote.loss = str(error)
        if isinstance(error, EnvWeaveError) and (
            is_gone(error) or isinstance(error, ConnectionLostError)
        ):
            self.calls.forget(remote.caller.session)
        else:
            self.calls.give_up(remote.caller.session)

    def call(self, rows: Sequence[int], method: str, resets: ResetKwargs) -> list[Reply]:
        """Make a call on each of these rows, and return the replies."""
        self.calls.wait_for_interrupted({self._rows[row].caller.session for row in rows})
        nothing: Mapping[str, Any] = {}
        return self.calls.call(
            self._rows[row].caller.call(method, drop_none(resets.get(row, nothing))) for row in rows
        )

    def read(self, row: int, reply: Reply) -> StepResult[Any]:
        """Return the result in a reply, and record it.

        Raises:
            EnvWeaveError: The reply is a fault, or cannot be read.
        """
        if reply.fault is not None:
            raise error_of(reply.fault)
        sent = decode_result(reply.result)
        result = result_of(sent, self._served.rebuild)
        remote = self._rows[row]
        remote.follow(result, sent.agents)
        (self._tool_rows.add if remote.has_tool_calls else self._tool_rows.discard)(row)
        if sent.position is not None:
            remote.position = sent.position
        return result

    def tool_calls(self, row: int) -> tuple[ToolCallRequest, ...]:
        """Return the unanswered tool calls of a row."""
        return self._rows[row].tool_calls

    def position(self, row: int) -> Position | None:
        """Return the position of a row in its stream of episodes."""
        return self._rows[row].position

    def rewind(self, row: int, position: Position | None) -> None:
        """Let a row's next session continue from an earlier position in its stream."""
        self._rows[row].position = position

    def check_reset(self, resets: ResetKwargs) -> None:
        """Refuse what a reset would refuse, naming the environment; nothing changes."""
        rows = [row for row, params in resets.items() if drop_none(params)]
        self.open(self.lost(rows))
        rows = [row for row in rows if self._rows[row].loss is None]
        replies = self.call(rows, "check_reset", resets) if rows else []
        for row, reply in zip(rows, replies, strict=True):
            error = None if reply.fault is None else error_of(reply.fault)
            if isinstance(error, LOSSES):
                self.lose(row, error)  # the reset itself opens another
            elif error is not None:
                raise type(error)(f"Environment {row}: {error}") from None

    def admit(self, ids: Sequence[int], actions: Sequence[Any]) -> Sequence[Any]:
        """Return the actions to send, or refuse, as the sessions would; nothing changes."""
        if self._columns_of is not None and not self._tool_rows:
            columns = self._columns_of(actions)
            if columns is not None:
                return ActionBatch(columns)
        if self._read_all is not None and not self._tool_rows:
            try:
                return self._read_all(actions)
            except Mismatch:
                pass  # checked row by row, to name the one that does not fit
        admitted: list[Any] = []
        for row, action in zip(ids, actions, strict=True):
            try:
                admitted.append(self._rows[row].admit(action))
            except ActionError as error:
                message = str(error).removeprefix("action")
                raise ActionError(f"actions[{len(admitted)}]{message}") from None
            except ToolCallOpenError as error:
                raise ToolCallOpenError(f"actions[{len(admitted)}]: {error}") from None
        return admitted

    def send(self, ids: Sequence[int], actions: Sequence[Any], *, together: bool) -> list[Key]:
        """Step these rows with admitted actions; return the keys of the calls."""
        rows, calls = self._rows, self.calls
        calls.refuse_large(actions)
        try:
            made = [
                rows[row].caller.call("step", step_params(action))
                for row, action in zip(ids, actions, strict=True)
            ]
            keys = calls.enter(made)
            calls.steps.update(zip(keys, ids, strict=True))
        except BaseException:
            for row in ids:  # some calls have a number, and will never be made
                self.lose(row, ServerError("the last call was interrupted"))
            raise
        calls.post(made, together=together)
        return keys

    def encode_batch(self, actions: Sequence[Any]) -> BatchFrame | None:
        """Return a step of all rows as one frame; `None` if one frame is not enough."""
        if self._tool_rows or not self.calls.is_idle:
            return None
        callers = [remote.caller for remote in self._rows]
        sessions = [caller.session for caller in callers]
        numbers = [caller.last + 1 for caller in callers]
        given = actions.columns if isinstance(actions, ActionBatch) else list(actions)
        return self.calls.write(Steps(sessions=sessions, numbers=numbers, actions=given))

    def step_batch(self, batch: BatchFrame) -> Stepped | None:
        """Step all rows; return the answer if it covers all of them."""
        try:
            self._number(batch)
            return self.calls.step_batch(batch)
        except BaseException:  # it may or may not have been sent: it is sent again
            self._number(batch)
            self.calls.split_batch(batch)
            self.calls.steps.update(zip(batch.keys, range(len(self._rows)), strict=True))
            raise

    def _number(self, batch: BatchFrame) -> None:
        for remote, number in zip(self._rows, batch.steps.numbers, strict=True):
            remote.caller.last = number

    def state(self) -> list[State]:
        """Return the state of each environment.

        Raises:
            StateFailedError: One of them has none: its code failed, or it is lost.
        """
        name, everyone = self._served.interface.name, range(len(self._rows))
        for row in self.lost(everyone):
            raise StateFailedError(f"{name}.state failed: {self._rows[row].loss}")
        states = []
        for row, reply in zip(everyone, self.call(everyone, "state", {}), strict=True):
            if reply.fault is None:
                states.append(self._served.rebuild_state(reply.result))
                continue
            error = error_of(reply.fault)
            if not isinstance(error, ServerError):
                raise error
            self.lose(row, error)
            raise StateFailedError(f"{name}.state failed: {error}")
        return states

    def snapshot(self, row: int) -> KeptSnapshot:
        """Have the server keep a point of the episode running in a row; return its token.

        Raises:
            ForkError: The state cannot be copied, or the session is lost.
        """
        failed = f"snapshot() of {self._served.interface.name} failed: "
        if self._rows[row].loss is not None:
            raise ForkError(f"{failed}{self._rows[row].loss}")
        (reply,) = self.call([row], "snapshot", {row: snapshot_params(self._dropped)})
        try:
            if reply.fault is not None:
                raise error_of(reply.fault)
            return self._dropped.watch(read_snapshot(reply.result))
        except LOSSES as loss:
            self.lose(row, loss)
            raise ForkError(f"{failed}{loss}") from None

    def close(self) -> None:
        """Close every session and disconnect, once."""
        if not self._unclosed.disarm():
            return
        calls = self.calls
        try:
            if calls.steps:  # a session can be closed when its last call is over
                calls.wait(calls.steps, len(calls.steps), CLOSE_S)
        finally:
            self._end()


def _end(connection: BlockingConnection | MultiServerConnection, rows: Sequence[RemoteRow]) -> None:
    """Close the sessions that are open, and disconnect. May be called twice."""
    closes: list[Call] = []
    for remote in rows:
        if remote.loss is None:
            remote.loss = "it was closed"
            closes.append(remote.caller.call("close", {}))
    connection.end(closes)
