"""The worker's side of a process vector: some of its rows, stepped in this process."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from envweave.errors import (
    DefinitionError,
    EnvWeaveError,
    ForkError,
    StateFailedError,
    format_error,
)
from envweave.registry import EnvSpec, MakeOptions
from envweave.registry.plugins import load_path
from envweave.session import Session
from envweave.session.episodes import with_autoreset
from envweave.session.session import SessionSnapshot
from envweave.types import ResetResult, State, StepResult
from envweave.vector import BatchTransport, StepBatch
from envweave.vector.arguments import ResetKwargs
from envweave.vector.batch import tick_of
from envweave.vector.columns import Arrays, Layout
from envweave.vector.process.action_columns import ColumnKind, action_columns
from envweave.vector.process.lazy_rows import is_rebuildable, is_rebuilt
from envweave.vector.process.shared_columns import SharedColumns
from envweave.vector.process.turns import TurnChannels, serve_turns
from envweave.workers.channel import Channel, PeerGoneError
from envweave.workers.deadlines import ClockedEnvironment, CodeClock
from envweave.workers.main import WorkerInfo, make_host
from envweave.workers.pickling import (
    bind_main_classes,
    fail_start,
    fail_step,
    load_definition,
    pack,
    pickle_error,
)
from envweave.workers.shared_memory import SharedMemory

MAKE = "envweave.backends.inproc:connect_vector"
"""What makes the environments here; it is in a layer above, so it is named, not imported."""


class ResetOutcomes(NamedTuple):
    """The outcomes of a reset, by row of the vector.

    Attributes:
        outcomes: A result, or what was raised instead.
        positions: The position of each row's stream of episodes.
    """

    outcomes: dict[int, ResetResult[Any] | Exception]
    positions: dict[int, Any]


@final
@dataclass(frozen=True, slots=True)
class PackedSnapshot:
    """A point of a row's episode as it travels between a vector's workers.

    Attributes:
        packed: Its pickle, with the private part of the task: no one but workers reads it.
        episode_id: The episode.
        step_index: How many steps it had taken.
    """

    packed: bytes = field(repr=False)
    episode_id: str | None
    step_index: int

    @classmethod
    def of(cls, point: SessionSnapshot, name: str) -> PackedSnapshot:
        """Pickle a point.

        Raises:
            ForkError: It holds something that cannot be pickled.
        """
        try:
            packed = pack(point)
        except Exception as error:
            cause = str(error) if isinstance(error, ForkError) else format_error(error)
            raise ForkError(
                f"A snapshot of {name} cannot be sent to another worker process: "
                f"{cause.removesuffix('.')}."
            ) from error
        return cls(packed, point.episode_id, point.step_index)

    def read(self) -> Any:
        """Return the point.

        Raises:
            ForkError: It holds something that cannot be read in this process.
        """
        try:
            return pickle.loads(self.packed)  # noqa: S301 - from our own worker
        except Exception as error:
            raise ForkError(
                f"The snapshot cannot be read in another process: {format_error(error)}."
            ) from error


def restore_packed(
    transport: BatchTransport, points: Mapping[int, Any]
) -> dict[int, ResetResult[Any] | Exception]:
    """Continue from a point in each of these rows; a failure takes the place of its result."""
    read: dict[int, Any] = {}
    outcomes: dict[int, ResetResult[Any] | Exception] = {}
    for row, point in points.items():
        try:
            read[row] = point.read() if isinstance(point, PackedSnapshot) else point
        except ForkError as error:
            outcomes[row] = error
    return outcomes | transport.restore(read)


class StepExtras(NamedTuple):
    """What columns cannot hold of a step, by row of the vector.

    Attributes:
        special: The result of each row whose step was not an ordinary one.
        infos: The info of each ordinary row that has one.
        lists: The columns that are lists, one item per row.
        whole: Observations that the columns hold only in part.
        positions: The position of the stream of episodes in each row that began one.
    """

    special: dict[int, StepResult[Any]]
    infos: dict[int, dict[str, Any]]
    lists: list[list[Any]]
    whole: dict[int, Any]
    positions: dict[int, Any]


def run(channel: Channel, definition: bytearray, *turn_args: Any) -> None:
    """Step some rows of a vector until the caller sends `close`, or is gone."""
    turns = TurnChannels.inherited(*turn_args)
    clock = turns.table.clock(turns.slot)
    worker = make_host(channel, lambda: VectorWorker(clock, *load_definition(definition)))
    if worker is None:
        return
    try:
        serve_turns(worker, channel, turns)
    except PeerGoneError:
        worker.close()


@final
class VectorWorker:
    """Runs some rows of a vector; a row is named by its index in the whole vector.

    Attributes:
        rows: Which rows.
        shared: The columns of the whole vector; `None` until they are fixed.
    """

    def __init__(
        self,
        clock: CodeClock,
        spec: EnvSpec,
        kwargs: Mapping[str, Any],
        options: MakeOptions,
        rows: range,
        num_envs: int,
    ) -> None:
        self.rows = rows
        wrap = None
        if options.timeout_s is not None:
            wrap = lambda i, env: ClockedEnvironment(env, clock, rows[i])  # noqa: E731
        self._transport: BatchTransport = load_path(MAKE)(
            spec, kwargs, options, len(rows), wrap=wrap, share=(rows.start, num_envs)
        )
        self._sessions: Sequence[Session] = self._transport.sessions
        self.shared: SharedColumns | None = None
        self._sends_rows = False  # whether observations are sent besides their columns
        self._batch: StepBatch | None = None  # the last one
        bind_main_classes(self._transport.interface)

    @property
    def info(self) -> WorkerInfo:
        """What the caller needs to know first."""
        return WorkerInfo(self._transport.interface, self._transport.tasks)

    def call(self, name: str, args: tuple[Any, ...], channel: Channel) -> Any:
        """Answer a message."""
        if name == "share":
            return self.share(SharedMemory(channel.receive_fd()), *args)
        if name == "step":
            return self.step(*args)
        return getattr(self, f"_{name}")(*args)

    def _check(self, resets: ResetKwargs) -> dict[int, EnvWeaveError]:
        refusals: dict[int, EnvWeaveError] = {}
        for row, keywords in resets.items():
            try:
                self._session(row).check_reset(**keywords)
            except EnvWeaveError as error:
                refusals[row] = error
        return refusals

    def _resume_from(self, positions: Mapping[int, Any]) -> None:
        for row, position in positions.items():
            self._session(row).resume_from(position)

    def _reset(self, resets: ResetKwargs, positions: Mapping[int, Any]) -> ResetOutcomes:
        self._resume_from(positions)
        first = self.rows.start
        results = self._transport.reset({row - first: one for row, one in resets.items()})
        outcomes = {i + first: result for i, result in results.items()}
        return ResetOutcomes(outcomes, {row: self._session(row).position for row in outcomes})

    def _snapshot(self, row: int) -> PackedSnapshot:
        point = self._transport.snapshot(row - self.rows.start)
        return PackedSnapshot.of(point, self._transport.interface.name)

    def _restore(self, points: Mapping[int, Any], positions: Mapping[int, Any]) -> ResetOutcomes:
        self._resume_from(positions)
        first = self.rows.start
        results = restore_packed(
            self._transport, {row - first: point for row, point in points.items()}
        )
        outcomes = {i + first: result for i, result in results.items()}
        return ResetOutcomes(outcomes, {row: self._session(row).position for row in outcomes})

    def share(
        self,
        memory: SharedMemory,
        layout: Layout,
        action_kinds: Sequence[ColumnKind],
        num_envs: int,
        fill: Mapping[int, Any],
    ) -> None:
        """Fix the columns, in this memory.

        `fill` has the last observations of rows without a running episode.
        """
        shown = [
            fill.get(row, session.last)
            for row, session in zip(self.rows, self._sessions, strict=True)
        ]
        self._transport.fix(layout, shown)
        # From the spec here: an author's class may be another object in the caller's process.
        acts = action_columns(self._transport.interface.action_spec)
        if list(acts.kinds) != list(action_kinds):
            raise DefinitionError(
                f"{self._transport.interface.name} takes other actions in a worker process than "
                "in the caller's. Let its factory make environments of one kind."
            )
        self.shared = SharedColumns(memory, layout, acts, num_envs)
        self._sends_rows = not is_rebuildable(layout)

    def _admit(self, actions: Mapping[int, Any]) -> dict[int, Exception]:
        """Return which of these actions are refused."""
        refusals: dict[int, Exception] = {}
        for row, action in actions.items():
            try:
                self._session(row).admit(action)
            except EnvWeaveError as error:
                refusals[row] = error
        return refusals

    def step_all(self) -> StepExtras | None:
        """Step every row, with the actions in their shared columns."""
        assert self.shared is not None
        return self.step(self.shared.read_actions(slice(self.rows.start, self.rows.stop)))

    def step(self, actions: Sequence[Any]) -> StepExtras | None:
        """Step every row, with one action each; return what the shared columns cannot hold."""
        rows = slice(self.rows.start, self.rows.stop)
        return self._publish(self._transport.step(actions), rows)

    def _step_some(self, actions: Mapping[int, Any]) -> StepExtras | None:
        first = self.rows.start
        self._transport.send([row - first for row in actions], list(actions.values()))
        batch = self._transport.recv(len(actions), None)
        return self._publish(batch, [i + first for i in batch.ids.tolist()])

    def _publish(self, batch: StepBatch, rows: slice | list[int]) -> StepExtras | None:
        """Write a batch to the shared columns; return what they cannot hold."""
        self._batch = batch
        assert self.shared is not None
        tick = tick_of(batch)
        first, ids = self.rows.start, tick.ids
        lists: list[list[Any]] = []
        if len(tick.special) < len(ids):  # else the results hold everything
            self.shared.rewards[rows] = tick.rewards
            lists = self.shared.put(rows, tick.successor)
        whole: dict[int, Any] = {}
        layout = tick.layout
        if tick.shown is not None and not isinstance(layout, Arrays):
            whole = {
                ids[k] + first: one
                for k, one in enumerate(tick.shown)
                if k not in tick.special
                and (
                    self._sends_rows
                    or not is_rebuilt(layout, one, tick.rewards[k], tick.infos.get(k, {}))
                )
            }
        if not (tick.special or tick.infos or lists or whole):
            return None
        special = {ids[k] + first: result for k, result in tick.special.items()}
        infos = {ids[k] + first: info for k, info in tick.infos.items()}
        began = [row for row, result in special.items() if result.ready is not None]
        positions = {row: self._session(row).position for row in began}
        return StepExtras(special, infos, lists, whole, positions)

    def _state(self) -> list[State]:
        return self._transport.state()

    def sendable(self, reply: Any) -> Any:
        """Return a reply that could not be pickled, with failures for what could not be."""
        if isinstance(reply, ResetOutcomes):
            outcomes = {
                row: fail_start(self._session(row), one) for row, one in reply.outcomes.items()
            }
            return reply._replace(outcomes=outcomes)
        if isinstance(reply, StepExtras) and self._batch is not None:
            return self._sendable(reply, self._batch)
        raise StateFailedError(
            f"The state cannot be sent to another process: {pickle_error(reply)}"
        )

    def _sendable(self, extras: StepExtras, batch: StepBatch) -> StepExtras:
        special, positions = dict(extras.special), dict(extras.positions)
        for i, result in zip(batch.ids.tolist(), batch, strict=True):
            session, row = self._sessions[i], i + self.rows.start
            failed = fail_step(session, result)
            if failed is result:
                continue
            if failed.ready is None and session.autoreset:
                failed = with_autoreset(failed, self._reset({row: {}}, {}).outcomes[row])
            special[row], positions[row] = failed, session.position
        infos = {row: info for row, info in extras.infos.items() if row not in special}
        whole = {row: one for row, one in extras.whole.items() if row not in special}
        return extras._replace(special=special, infos=infos, whole=whole, positions=positions)

    def close(self) -> None:
        """Close every environment; the first failure is raised when all are closed."""
        self._transport.close()

    def _session(self, row: int) -> Session:
        return self._sessions[row - self.rows.start]
