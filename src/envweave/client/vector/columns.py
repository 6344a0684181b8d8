"""Makes the columns of a batch from decoded results.

An ordinary step (a number as reward, no end, nothing emitted) never becomes a `StepResult`, nor
its observation the author's class, unless its row is accessed: its fields go straight into the
columns.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from envweave.codec import AnySpec, Spec
from envweave.codec.containers import DataclassSpec, DictSpec, PydanticSpec
from envweave.codec.scalars import StrSpec
from envweave.types import Observation
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
from envweave.wire.messages import Reply, Stepped

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
