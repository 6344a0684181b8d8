"""A vector on a server: many sessions over one connection, and a frame for all their steps."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import msgspec

from envweave.client.connection import BlockingConnection
from envweave.client.multi_server import MultiServerConnection
from envweave.client.server_info import ServerInfo
from envweave.client.vector.columns import ColumnGatherer, bytes_of, is_ordinary
from envweave.client.vector.sessions import LOSSES, PendingCalls, RemoteSessions
from envweave.errors import (
    ActionError,
    BadReturnError,
    EnvironmentFailure,
    EnvironmentLostError,
    EnvWeaveError,
    ResetFailedError,
    format_error,
)
from envweave.session.episodes import EpisodeTracker, with_autoreset
from envweave.session.results import refused_row
from envweave.types import EpisodeEnd, LogEvent, NeedAction, ResetResult, State, StepResult
from envweave.vector.arguments import ResetKwargs
from envweave.vector.batch import RowStatus, StepBatch
from envweave.vector.columns import Columns, Layout
from envweave.vector.process.row_state import RowState
from envweave.wire.messages import Reply, Stepped
from envweave.wire.protocol import BatchFrame, Key

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
        options = {"autoreset": autoreset or None, "timeout_s": timeout_s, "wait_s": wait_s}
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

    def check_reset(self, wanted: ResetKwargs) -> None:
        """Refuse what `reset` would refuse, naming the environment; nothing changes."""
        self._sessions.check_reset(wanted)

    def reset(self, wanted: ResetKwargs) -> dict[int, ResetResult[Any] | Exception]:
        """Begin an episode in each of these; return the result or the error of each."""
        outcomes = self._begin(wanted)
        self._row_state.start({i: r for i, r in outcomes.items() if isinstance(r, ResetResult)})
        return outcomes

    def _begin(self, wanted: ResetKwargs) -> dict[int, ResetResult[Any] | Exception]:
        fresh = self._sessions.lost(wanted)
        failed = self._sessions.open(fresh)
        outcomes: dict[int, ResetResult[Any] | Exception] = {
            row: self._lost_reset(error) for row, error in failed.items()
        }
        rows = [row for row in wanted if row not in failed]
        replies = self._sessions.call(rows, "reset", wanted)
        # Sessions that were open before and were lost with their server begin at its replacement.
        again = [row for row in self._sessions.at_lost_servers(rows) if row not in fresh]
        for row, reply in zip(rows, replies, strict=True):
            outcomes[row] = self._began(row, reply)
        if again:
            logger.warning(
                "%d environments %s were lost and are replaced: %s",
                *(len(again), self.interface.name, outcomes[again[0]]),
            )
            outcomes.update(self._begin({row: wanted[row] for row in again}))
        return {row: outcomes[row] for row in wanted}

    def _began(self, row: int, reply: Reply) -> ResetResult[Any] | Exception:
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
            return self._lost_reset(error)
        except EnvWeaveError as error:
            return error
        return result

    def _lost_reset(self, error: Exception) -> EnvironmentLostError:
        return EnvironmentLostError(f"{self.interface.name}.reset() failed: {error}")

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
        asked = tuple(msgspec.structs.replace(need, reward=None) for need in self._needs[row])
        return refused_row(error, tracker.last, asked, waiting, tracker, several_agents=True)

    def row_status(self, ids: Sequence[int]) -> list[RowStatus]:
        """Return the status of these environments."""
        return [self._row_state.row_status(row) for row in ids]

    # Steps

    def admit(self, ids: Sequence[int], actions: Sequence[Any]) -> list[Any]:
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
        logger.warning("an episode of %s ended: %s", self.interface.name, end.cause)
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

    def close(self) -> None:
        """Close every session and disconnect. May be called twice."""
        self._sessions.close()
