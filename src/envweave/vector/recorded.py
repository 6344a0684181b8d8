"""Records the episodes of a vector: the caller's thread copies columns, the writer's makes rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter, time
from typing import Any, final

import numpy as np

from envweave.codec.containers import NOT_SHOWN
from envweave.environment import Interface
from envweave.recording.events import TakenBatch, pack, pack_result
from envweave.recording.recorder import EpisodeEvents
from envweave.recording.writer import RunWriter
from envweave.types import Observation, ResetResult, State, Tasks, ToolResult
from envweave.vector.arguments import ResetKwargs
from envweave.vector.batch import RowStatus, StepBatch, Tick, tick_of
from envweave.vector.columns import Arrays, Columns, Fields, Layout, Numbers
from envweave.vector.process.lazy_rows import RebuiltRows
from envweave.vector.transport import BatchTransport, TakesArrays
from envweave.wire.encoding import MSGPACK


@final
class RecordedBatchTransport:
    """Carries the calls of a `VectorEnv`, and records them.

    Args:
        transport: Carries them.
        writer: Records them; closed with this.
        num_envs: The number of environments.
    """

    def __init__(self, transport: BatchTransport, writer: RunWriter, num_envs: int) -> None:
        self._transport = transport
        self._writer = writer
        self._events = [EpisodeEvents(writer, row) for row in range(num_envs)]
        self._everyone = list(range(num_envs))
        self._given: tuple[bytes, frozenset[int]] = b"", frozenset()
        self._sent: dict[int, tuple[Any, bool]] = {}  # the actions in flight, by row
        self.interface: Interface = transport.interface
        if isinstance(transport, TakesArrays):
            self._admit_array = transport.admit_array
            self.admit_array = self._take_array

    @property
    def tasks(self) -> Tasks | None:
        """The tasks of its episodes."""
        return self._transport.tasks

    @property
    def columns(self) -> Columns:
        """What to act on next. Must not be written to."""
        return self._transport.columns

    @property
    def receivable(self) -> set[int]:
        """The environments with a step that was sent and can still be received."""
        return self._transport.receivable

    def fix(self, layout: Layout, observations: Sequence[Any]) -> None:
        """Fix the columns, at the first reset of all."""
        self._transport.fix(layout, observations)

    def check_reset(self, resets: ResetKwargs) -> None:
        """Refuse what `reset` would refuse."""
        self._transport.check_reset(resets)

    def reset(self, resets: ResetKwargs) -> dict[int, ResetResult[Any] | Exception]:
        """Begin an episode in each of these."""
        began_s = perf_counter()
        outcomes = self._transport.reset(resets)
        duration_s = perf_counter() - began_s
        for row, outcome in outcomes.items():
            events = self._events[row]
            if isinstance(outcome, Exception):
                events.failed(outcome)
            else:
                asked = {n: resets[row].get(n) for n in ("seed", "task", "options")}
                events.began(outcome, duration_s, **asked)
        return outcomes

    def row_status(self, ids: Sequence[int]) -> list[RowStatus]:
        """Return the status of these environments."""
        return self._transport.row_status(ids)

    def admit(self, ids: Sequence[int], actions: Sequence[Any]) -> Sequence[Any]:
        """Return the actions in the form for the authors' `step`, or refuse."""
        answers: frozenset[int] = frozenset()
        if ToolResult in set(map(type, actions)):
            answers = frozenset(i for i, one in enumerate(actions) if type(one) is ToolResult)
        given = pack(list(actions)), answers
        admitted = self._transport.admit(ids, actions)
        self._given = given
        return admitted

    def _take_array(self, actions: Any) -> list[Any] | None:
        admitted = self._admit_array(actions)
        if admitted is not None:
            self._given = pack(actions), frozenset()
        return admitted

    def step(self, actions: Sequence[Any]) -> StepBatch:
        """Step each environment once."""
        given, answers = self._given
        batch = self._transport.step(actions)
        self._record(batch, given, answers)
        return batch

    def send(self, ids: Sequence[int], actions: Sequence[Any]) -> None:
        """Have these environments take a step each."""
        given, answers = self._given
        unpacked = MSGPACK.decode(given)
        self._transport.send(ids, actions)
        self._sent.update(
            {row: (unpacked[place], place in answers) for place, row in enumerate(ids)}
        )

    def recv(self, min_ready: int, timeout_s: float | None) -> StepBatch:
        """Wait for the first `min_ready` steps; return all that are done, the oldest first."""
        batch = self._transport.recv(min_ready, timeout_s)
        taken = [self._sent.pop(row, (None, False)) for row in batch.ids.tolist()]
        answers = frozenset(place for place, (_, is_answer) in enumerate(taken) if is_answer)
        given = pack([action for action, _ in taken])
        self._record(batch, given, answers)
        return batch

    def _record(self, batch: StepBatch, actions: bytes, answers: frozenset[int]) -> None:
        tick = tick_of(batch)
        observations, rows = _observations(tick)
        special = {place: pack_result(result) for place, result in tick.special.items()}
        columns = pack(
            (
                list(tick.ids),
                tick.rewards if isinstance(tick.rewards, np.ndarray) else list(tick.rewards),
                dict(tick.infos),
                tick.step_index + tick.clock,
                list(tick.episodes),
                special,
            )
        )
        taken = TakenBatch(time(), actions, answers, columns, observations, rows)
        size = len(columns) + len(observations) + len(actions)
        self._writer.put(taken, size, len(tick.ids))
        if special and any(result.end is not None for result in tick.special.values()):
            self._writer.hurry()

    def state(self) -> list[State]:
        """Return the state of each environment."""
        return self._transport.state()

    def close(self) -> None:
        """Release everything, and end the recording. May be called twice."""
        try:
            self._transport.close()
        finally:
            self._writer.close()


def _observations(tick: Tick) -> tuple[bytes, _Rows | None]:
    """Return a packed copy of a tick's observations, and how to take rows out of it."""
    shown = tick.shown
    if isinstance(shown, list | tuple):
        return pack(shown), None
    whole = dict(shown.whole) if isinstance(shown, RebuiltRows) else {}
    return pack((tick.successor, whole)), _Rows(tick.layout)


@final
class _Rows:
    """Takes plain observations out of unpacked columns, on the writer's thread."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def __call__(
        self, packed: Any, rewards: Any, infos: Mapping[int, Any], count: int
    ) -> list[Any]:
        columns, whole = packed
        rows = _rows(self._layout, columns, count)
        layout = self._layout
        if isinstance(layout, Fields) and issubclass(layout.kind, Observation):
            for i, row in enumerate(rows):
                hidden = {
                    "reward": float(rewards[i]),
                    "done": False,
                    "truncated": False,
                    "metadata": infos.get(i, {}),
                }
                row.update({name: hidden[name] for name in NOT_SHOWN if name in hidden})
        for place, one in whole.items():
            rows[place] = one
        return rows


def _rows(layout: Layout, columns: Any, count: int) -> list[Any]:
    if isinstance(layout, Fields):
        parts = {name: _rows(one, columns[name], count) for name, one in layout.columns.items()}
        return [{name: column[i] for name, column in parts.items()} for i in range(count)]
    if isinstance(layout, Numbers):
        return columns.tolist() if isinstance(columns, np.ndarray) else list(columns)
    if isinstance(layout, Arrays):
        return [columns[i, ...] for i in range(count)]
    return list(columns)
