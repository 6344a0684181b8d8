"""A vector on a server: many sessions over one connection, and a frame for all their steps.

An ordinary step (a number as reward, no end, nothing emitted) never becomes a `StepResult`, nor
its observation the author's class, unless its row is accessed: its fields go straight into the
columns of the batch.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, final

import msgspec
import numpy as np
from numpy.typing import NDArray

from envweave.client.connection import BlockingConnection
from envweave.client.multi_server import MultiServerConnection
from envweave.client.server_info import ServerInfo
from envweave.client.session import SessionKeywords
from envweave.client.vector.sessions import LOSSES, PendingCalls, RemoteSessions
from envweave.codec import AnySpec, Spec
from envweave.codec.containers import DataclassSpec, DictSpec, PydanticSpec
from envweave.codec.scalars import StrSpec
from envweave.errors import (
    ActionError,
    BadReturnError,
    EnvironmentFailure,
    EnvironmentLostError,
    EnvWeaveError,
    ForkError,
    ResetFailedError,
    format_error,
)
from envweave.session.episodes import EpisodeTracker, with_autoreset
from envweave.session.kept_snapshots import KeptSnapshot
from envweave.session.loss_log import LOSSES_LOGGED
from envweave.session.results import refused_row
from envweave.session.session import check_snapshot_kind
from envweave.types import (
    EpisodeEnd,
    LogEvent,
    NeedAction,
    Observation,
    ResetResult,
    State,
    StepResult,
)
from envweave.vector.arguments import ResetKwargs
from envweave.vector.batch import RowStatus, StepBatch
from envweave.vector.columns import (
    Arrays,
    Columns,
    Fields,
    Layout,
    LayoutMismatchError,
    Listed,
    Numbers,
)
from envweave.vector.process.lazy_rows import is_rebuildable
from envweave.vector.process.row_state import RowState
from envweave.wire.messages import Reply, Stepped
from envweave.wire.protocol import BatchFrame, Key

_ORDINARY = frozenset({"observation", "reward", "info", "episode_id", "step_index", "task_id"})
_NUMBERS = (float, int)
_NOTHING: Mapping[str, Any] = {}


def is_ordinary(result: Any) -> bool:
    """Whether a decoded result is of an ordinary step."""
    if type(result) is not dict or not result.keys() <= _ORDINARY:
        return False
    reward = result.get("reward")
    return type(reward) in _NUMBERS and reward == reward and "observation" in result


class RemoteStepColumns(NamedTuple):
    """The ordinary part of a step.

    Attributes:
        columns: The observations.
        rewards: The rewards.
        infos: The infos that are not empty, by index.
    """

    columns: Columns
    rewards: list[float]
    infos: dict[int, dict[str, Any]]


@final
class ColumnGatherer:
    """Makes columns of plain observations, if the columns hold everything in them."""

    def __init__(self, layout: Layout, spec: Spec) -> None:
        self._part = _part(layout, spec) if is_rebuildable(layout) else None
        self._is_observation = isinstance(layout, Fields) and issubclass(layout.kind, Observation)

    def columns(
        self, sent: Stepped, places: list[int] | None, others: Mapping[int, Reply]
    ) -> RemoteStepColumns | None:
        """Return the columns of an answer to a whole batch; `None` as `gather` does.

        Args:
            sent: The answer.
            places: The row of each of its ordinary steps; `None` if they are all rows, in order.
            others: The replies of the other rows. Only their observations are used.
        """
        rewards, infos = sent.rewards, dict(sent.infos)
        if self._part is None or set(map(type, rewards)) - {float} or math.isnan(sum(rewards)):
            return None
        if self._is_observation and not sent.is_implied:
            return None  # its fields may say more than its step does
        try:
            shown = {row: reply.result["observation"] for row, reply in others.items()}
            columns = self._part.join(sent.observations, places, shown)
        except (LayoutMismatchError, KeyError, TypeError):
            return None  # read row by row, to find the one that does not fit
        if places is not None:
            rewards = _spread(rewards, places, dict.fromkeys(others, math.nan))
            infos = {places[i]: info for i, info in infos.items()}
        return RemoteStepColumns(columns, rewards, infos)

    def gather(
        self, results: Sequence[Mapping[str, Any]], others: Collection[int] = ()
    ) -> RemoteStepColumns | None:
        """Return the columns of results; `None` if they must be read row by row.

        Args:
            results: The decoded results.
            others: The indices of those that are not ordinary. They are read separately; only
                their observations are used here.
        """
        if self._part is None:
            return None
        plains = [result["observation"] for result in results]
        rewards = [
            math.nan if i in others else float(result["reward"]) for i, result in enumerate(results)
        ]
        infos = {
            i: result["info"]
            for i, result in enumerate(results)
            if "info" in result and i not in others
        }
        try:
            if self._is_observation and not all(
                i in others or _is_held(plain, reward, infos.get(i, _NOTHING))
                for i, (plain, reward) in enumerate(zip(plains, rewards, strict=True))
            ):
                return None
            return RemoteStepColumns(self._part.gather(plains), rewards, infos)
        except (LayoutMismatchError, KeyError, TypeError):
            return None  # read row by row, to find the one that does not fit


def _is_held(plain: Mapping[str, Any], reward: float, info: Mapping[str, Any]) -> bool:
    """Whether columns, reward and info hold everything in an author's `Observation`."""
    return bool(
        plain["reward"] == reward
        and plain["done"] is False
        and plain["truncated"] is False
        and plain["metadata"] == info
    )


@final
class _Part:
    """Makes one column, or one per field, of plain data.

    Both methods raise `LayoutMismatchError`, `KeyError` or `TypeError` if a row does not fit.
    """

    def __init__(
        self, layout: Numbers | Arrays | Listed | Fields, fields: dict[str, _Part]
    ) -> None:
        self._layout = layout
        self._fields = fields
        is_dict = isinstance(layout, Fields) and layout.kind is dict
        self._count = len(fields) if is_dict else None

    def gather(self, rows: Sequence[Any]) -> Columns:
        """Return the columns of rows."""
        if not isinstance(self._layout, Fields):
            return self._layout.gather(rows)
        if set(map(type, rows)) != {dict}:
            raise LayoutMismatchError
        if self._count is not None and list(map(len, rows)).count(self._count) != len(rows):
            raise LayoutMismatchError
        return {name: one.gather([row[name] for row in rows]) for name, one in self._fields.items()}

    def join(self, shown: Any, places: list[int] | None, others: Mapping[int, Any]) -> Columns:
        """Return the columns of data that may already be columns; the other rows are plain data."""
        layout = self._layout
        if isinstance(shown, dict):
            if shown.keys() != self._fields.keys():
                raise LayoutMismatchError
            return {
                name: part.join(shown[name], places, {i: row[name] for i, row in others.items()})
                for name, part in self._fields.items()
            }
        if isinstance(shown, np.ndarray):
            if isinstance(layout, Arrays) and not others and _is_of(layout, shown):
                shown.flags.writeable = False
                return shown
            shown = list(shown)
        return self.gather(_spread(shown, places, others))


def _is_of(layout: Arrays, rows: NDArray[Any]) -> bool:
    return rows.dtype == layout.dtype and rows.shape[1:] == layout.shape


def _spread(column: Sequence[Any], places: list[int] | None, others: Mapping[int, Any]) -> Any:
    """Return a column over all rows: `column` at `places`, and the others."""
    if places is None:
        return column
    full: list[Any] = [None] * (len(places) + len(others))
    for place, value in (*zip(places, column, strict=True), *others.items()):
        full[place] = value
    return full


def _part(layout: Layout, spec: Spec) -> _Part | None:
    """Return what makes columns of plain data; `None` if only the author's class can be read."""
    if isinstance(layout, Numbers | Arrays) or (
        isinstance(layout, Listed) and isinstance(spec, StrSpec)
    ):
        return _Part(layout, {})
    if not isinstance(layout, Fields):
        return None
    parts = {name: _part(column, _field(spec, name)) for name, column in layout.columns.items()}
    fields = {name: part for name, part in parts.items() if part is not None}
    return _Part(layout, fields) if len(fields) == len(parts) else None


def _field(spec: Spec, name: str) -> Spec:
    if isinstance(spec, DataclassSpec | PydanticSpec):
        return spec.fields[name]
    if isinstance(spec, DictSpec) and spec.fields is not None:
        return spec.fields[name]
    return AnySpec()


def bytes_of(layout: Layout) -> int:
    """Return the size of one observation's arrays."""
    if isinstance(layout, Fields):
        return sum(map(bytes_of, layout.columns.values()))
    if isinstance(layout, Arrays):
        return math.prod(layout.shape) * layout.dtype.itemsize
    return 8


logger = logging.getLogger("envweave.session")


class _Step(NamedTuple):
    """One step of some rows, as `RowState.batch` takes it."""

    successor: Columns
    rewards: list[float]
    special: dict[int, StepResult[Any]]
    infos: dict[int, dict[str, Any]]
    whole: dict[int, Any]


@final
class RemoteTransport:
    """Steps many sessions of one server.

    A session that is gone ends its episode; another one is opened for the next.

    Args:
        connection: To the server; `close` ends it.
        served: What the server serves.
        num_envs: The number of environments.
        autoreset: Whether the next episode begins when one ends.
        timeout_s: Time limit for each of an environment's own calls.
        wait_s: How long to wait for free sessions if the server is full.

    Raises:
        EnvWeaveError: A session could not be opened; the message names its row.
    """

    def __init__(
        self,
        connection: BlockingConnection | MultiServerConnection,
        served: ServerInfo,
        num_envs: int,
        *,
        autoreset: bool,
        timeout_s: float | None,
        wait_s: float | None = None,
    ) -> None:
        self.interface = served.interface
        self.tasks = served.tasks
        self._autoreset = autoreset
        several = served.interface.possible_agents is not None
        self._everyone = range(num_envs)
        self._row_state = RowState(num_envs, several_agents=several)
        self._trackers = (
            [EpisodeTracker(several_agents=True) for _ in range(num_envs)] if several else None
        )
        self._needs: dict[int, list[NeedAction[Any]]] = {}  # with several agents, by row
        self._gatherer: ColumnGatherer | None = None
        connection.exchange.limit_bytes = served.max_message_bytes
        self._calls = PendingCalls(connection, served.interface.action_spec)
        self._served = served
        self._options: SessionKeywords = {
            "autoreset": autoreset,
            "timeout_s": timeout_s,
            "wait_s": wait_s,
        }
        options = {**self._options, "autoreset": autoreset or None}
        self._sessions = RemoteSessions(self._calls, served, num_envs, options)

    @property
    def columns(self) -> Columns:
        """The observations to act on next. Read-only."""
        return self._row_state.columns

    @property
    def receivable(self) -> set[int]:
        """The environments whose step was not received yet."""
        return set(self._calls.steps.values())

    def fix(self, layout: Layout, observations: Sequence[Any]) -> None:
        """Fix the layout of the columns, at the first reset."""
        self._row_state.fix(layout, observations)
        if self._trackers is None:
            self._gatherer = ColumnGatherer(layout, self.interface.observation_spec)
        self._calls.expect(bytes_of(layout))

    # Resets

    def check_reset(self, resets: ResetKwargs) -> None:
        """Refuse what `reset` would refuse, naming the environment; nothing changes."""
        self._sessions.check_reset(resets)

    def reset(self, resets: ResetKwargs) -> dict[int, ResetResult[Any] | Exception]:
        """Begin an episode in each of these; return the result or the error of each."""
        outcomes = self._begin(resets)
        self._row_state.start({i: r for i, r in outcomes.items() if isinstance(r, ResetResult)})
        return outcomes

    def _begin(
        self, resets: ResetKwargs, method: str = "reset"
    ) -> dict[int, ResetResult[Any] | Exception]:
        fresh = self._sessions.lost(resets)
        failed = self._sessions.open(fresh)
        outcomes: dict[int, ResetResult[Any] | Exception] = {
            row: self._lost_start(method, error) for row, error in failed.items()
        }
        rows = [row for row in resets if row not in failed]
        replies = self._sessions.call(rows, method, resets)
        # Sessions that were open before and were lost with their server begin at its replacement.
        again = [row for row in self._sessions.at_lost_servers(rows) if row not in fresh]
        for row, reply in zip(rows, replies, strict=True):
            outcomes[row] = self._began(row, reply, method)
        if again:
            logger.warning(
                "%d environments %s were lost and are replaced: %s",
                *(len(again), self.interface.name, outcomes[again[0]]),
            )
            outcomes.update(self._begin({row: resets[row] for row in again}, method))
        return {row: outcomes[row] for row in resets}

    def _began(self, row: int, reply: Reply, method: str) -> ResetResult[Any] | Exception:
        try:
            result = self._read(row, reply)
            assert isinstance(result, ResetResult)
            if self._row_state.columns is not None:
                self._row_state.layout.check(result.observation)
        except BadReturnError as error:
            self._sessions.lose(row, error)
            return ResetFailedError(f"{self.interface.name}.reset() failed: {format_error(error)}")
        except EnvironmentFailure as error:
            return error  # the server replaces the environment itself
        except LOSSES as error:
            self._sessions.lose(row, error)
            return self._lost_start(method, error)
        except EnvWeaveError as error:
            return error
        return result

    def _lost_start(self, method: str, error: Exception) -> EnvWeaveError:
        kind = ForkError if method == "restore" else EnvironmentLostError
        return kind(f"{self.interface.name}.{method}() failed: {error}")

    def _read(self, row: int, reply: Reply) -> StepResult[Any]:
        result = self._sessions.read(row, reply)
        if self._trackers is not None:
            self._trackers[row].follow(result)
            self._needs[row] = result.needs
        return result

    def _refused(self, row: int, error: ActionError) -> StepResult[Any]:
        """Return the row of a batch whose action the environment refused."""
        waiting = self._sessions.tool_calls(row)
        if self._trackers is None:
            return self._row_state.refused(row, error, waiting)
        tracker = self._trackers[row]
        needs = tuple(msgspec.structs.replace(need, reward=None) for need in self._needs[row])
        return refused_row(error, tracker.last, needs, waiting, tracker, several_agents=True)

    def row_status(self, ids: Sequence[int]) -> list[RowStatus]:
        """Return the status of these environments."""
        return [self._row_state.row_status(row) for row in ids]

    # Steps

    def admit(self, ids: Sequence[int], actions: Sequence[Any]) -> Sequence[Any]:
        """Return the actions to send, or refuse; nothing changes."""
        return self._sessions.admit(ids, actions)

    def step(self, actions: Sequence[Any]) -> StepBatch:
        """Step each environment once."""
        batch = self._sessions.encode_batch(actions) if self._gatherer is not None else None
        if batch is None:
            keys = self._sessions.send(self._everyone, actions, together=True)
        else:
            sent = self._sessions.step_batch(batch)
            if sent is not None:
                step = self._columns(batch, sent)
                if step is not None:
                    return self._row_state.batch(self._everyone, *step)
                self._calls.add_replies(batch, sent)
            keys = batch.keys
            self._calls.steps.update(zip(keys, self._everyone, strict=True))
        self._calls.wait(keys, len(keys), None)
        return self._take(keys)

    def _columns(self, batch: BatchFrame, sent: Stepped) -> _Step | None:
        """Return the step in an answer to a whole batch; `None` if rows must be read one by one."""
        assert self._gatherer is not None
        others: dict[int, Reply] = {}
        row_of: list[int] | None = None
        if sent.rest:
            rows = {session: row for row, session in enumerate(batch.steps.sessions)}
            others = {rows[reply.session]: reply for reply in sent.rest}
            row_of = [rows[session] for session in sent.sessions]
        gathered = self._gatherer.columns(sent, row_of, others)
        if gathered is None:
            return None
        special = {row: self._checked(row, self._read(row, reply)) for row, reply in others.items()}
        return _Step(gathered.columns, gathered.rewards, special, gathered.infos, {})

    def send(self, ids: Sequence[int], actions: Sequence[Any]) -> None:
        """Step these environments."""
        self._sessions.send(ids, actions, together=False)

    def recv(self, min_ready: int, timeout_s: float | None) -> StepBatch:
        """Wait for `min_ready` steps; return all that are done, oldest first."""
        return self._take(self._calls.wait(self._calls.steps, min_ready, timeout_s))

    def _take(self, keys: Sequence[Key]) -> StepBatch:
        """Return the batch of steps that are done, and remove them from the pending calls."""
        calls = self._calls
        rows = [calls.steps[key] for key in keys]
        step = self._plain(rows, [calls.replies[key] for key in keys])
        step = step or self._each(keys, rows)
        try:
            return self._row_state.batch(rows, *step)
        finally:  # an interrupt in here loses these steps: the caller must reset
            for key in keys:
                calls.steps.pop(key, None)
                calls.replies.pop(key, None)

    def _plain(self, rows: Sequence[int], replies: Sequence[Reply]) -> _Step | None:
        """Return a step whose plain observations go straight into columns; `None` if some can't."""
        if self._gatherer is None or not self._sessions.are_plain:
            return None
        results = [reply.result for reply in replies if reply.fault is None]
        if len(results) < len(replies):
            return None
        others = [i for i, result in enumerate(results) if not is_ordinary(result)]
        gathered = self._gatherer.gather(results, frozenset(others))
        if gathered is None:
            return None
        special = {rows[i]: self._checked(rows[i], self._read(rows[i], replies[i])) for i in others}
        infos = {rows[i]: info for i, info in gathered.infos.items()}
        return _Step(gathered.columns, gathered.rewards, special, infos, {})

    def _each(self, keys: Sequence[Key], rows: Sequence[int]) -> _Step:
        """Return a step whose rows are read one by one; with autoreset lost rows begin again.

        Raises:
            EnvWeaveError: A step could not be taken; the others can still be received.
        """
        results: dict[int, StepResult[Any]] = {}
        ended: list[int] = []
        for key, row in zip(keys, rows, strict=True):
            logs: tuple[LogEvent, ...] = ()
            position = self._sessions.position(row)
            try:
                result = self._read(row, self._calls.replies[key])
                logs = tuple(event for event in result.events if isinstance(event, LogEvent))
                results[row] = self._checked(row, result)
            except BadReturnError as error:
                end = EpisodeEnd("error", "environment", format_error(error))
                results[row] = self._ended(row, end, error)
                results[row]._events = logs  # noqa: SLF001 - its logs are still worth knowing
                # The session may have begun another episode, which is never shown.
                self._sessions.rewind(row, position)
                ended.append(row)
            except LOSSES as error:
                end = EpisodeEnd("lost", "infrastructure", str(error))
                results[row] = self._ended(row, end, error)
                ended.append(row)
            except ActionError as error:
                results[row] = self._refused(row, error)
            except EnvWeaveError as error:
                self._calls.steps.pop(key)
                self._calls.replies.pop(key)
                error.add_note(f"Raised in environment {row} of the vector.")
                raise
        if ended and self._autoreset:
            prefix = f"{self.interface.name}.reset() failed: "
            for row, fresh in self._begin({row: {} for row in ended}).items():
                if isinstance(fresh, Exception):
                    fresh = ResetFailedError(str(fresh).removeprefix(prefix))
                results[row] = with_autoreset(results[row], fresh)
        columns = self._row_state.layout.gather([result.observation for result in results.values()])
        return _Step(columns, [math.nan] * len(rows), results, {}, {})

    def _ended(self, row: int, end: EpisodeEnd, error: Exception) -> StepResult[Any]:
        """Return the last result of an episode that its session did not end itself."""
        LOSSES_LOGGED.warn(logger, self.interface.name, end.cause)
        self._sessions.lose(row, error)
        if self._trackers is not None:
            return self._trackers[row].lost(end)
        return self._row_state.lost(row, end)

    def _checked(self, row: int, result: StepResult[Any]) -> StepResult[Any]:
        """Return a result that fits the columns; without the next episode, if that does not fit.

        Raises:
            BadReturnError: The observation does not fit.
        """
        layout = self._row_state.layout
        layout.check(result.observation)
        if result.ready is not None:
            try:
                layout.check(result.ready.initial_obs)
            except BadReturnError as error:
                self._sessions.lose(row, error)
                result.ready, result._needs, result._ready_events = None, None, ()  # noqa: SLF001
                return with_autoreset(result, BadReturnError(format_error(error)))
        return result

    # The rest

    def state(self) -> list[State]:
        """Return the state of each environment.

        Raises:
            StateFailedError: One of them has none: its code failed, or it is lost.
        """
        return self._sessions.state()

    # Forks

    def snapshot(self, row: int) -> KeptSnapshot:
        """Have the server keep a point of the episode running in a row; return its token."""
        return self._sessions.snapshot(row)

    def restore(self, points: Mapping[int, Any]) -> dict[int, ResetResult[Any] | Exception]:
        """Continue from a point in each of these rows; a failure takes the place of its result."""
        tokens: dict[int, dict[str, Any]] = {}
        outcomes: dict[int, ResetResult[Any] | Exception] = {}
        for row, point in points.items():
            try:
                check_snapshot_kind(point, KeptSnapshot, self.interface.name)
                tokens[row] = {"token": point.token}
            except ForkError as error:
                outcomes[row] = error
        outcomes |= self._begin(tokens, "restore")
        self._row_state.start({i: r for i, r in outcomes.items() if isinstance(r, ResetResult)})
        return outcomes

    def sibling_vector(self, num_envs: int) -> RemoteTransport | None:
        """Return a transport to `num_envs` sessions at the same server.

        `None` where each session has a server of its own.
        """
        connection = self._calls.connection
        if isinstance(connection, MultiServerConnection):
            return None
        other = connection.another()
        try:
            return RemoteTransport(other, self._served, num_envs, **self._options)
        except BaseException:
            other.end()
            raise

    def close(self) -> None:
        """Close every session and disconnect. May be called twice."""
        self._sessions.close()
