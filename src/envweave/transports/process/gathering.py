"""Putting the steps of several shares together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from envweave.transports.process.memory import SharedColumns
from envweave.transports.process.vector_host import Rest
from envweave.types import StepResult
from envweave.vector.batch import StepBatch
from envweave.vector.batch import tick_of
from envweave.vector.columns import Arrays, Columns, Fields, Layout, Numbers

_NOTHING = Rest({}, {}, [], {}, {})


class Gathered(NamedTuple):
    """One step of some rows.

    Attributes:
        rows: Which rows, in order.
        columns: What they show; views of shared memory, until they are stepped again.
        rewards: What they earned.
        special: The results of those that were no ordinary step, by row.
        infos: The infos of the others, by row.
        whole: What the columns do not hold all of, by row.
    """

    rows: Sequence[int]
    columns: Columns
    rewards: list[float]
    special: Mapping[int, StepResult[Any]]
    infos: Mapping[int, dict[str, Any]]
    whole: Mapping[int, Any]


def from_worker(rows: Sequence[int], shared: SharedColumns, rest: Rest | None) -> Gathered:
    """Return the step that a worker has written to the shared columns."""
    rest = _NOTHING if rest is None else rest
    chosen: Any = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
    rewards: list[float] = shared.rewards[chosen].tolist()
    if len(rest.special) == len(rows):
        columns = shared.layout.gather([rest.special[row].observation for row in rows])
    else:
        columns = _read(shared.layout, chosen, iter(shared.leaves), iter(rest.lists))
    return Gathered(rows, columns, rewards, rest.special, rest.infos, rest.whole)


def from_caller(batch: StepBatch) -> Gathered:
    """Return the step of the caller's own share."""
    tick = tick_of(batch)
    ids = tick.ids
    whole: dict[int, Any] = {}
    if tick.shown is not None and not isinstance(tick.layout, Arrays):
        whole = dict(zip(ids, tick.shown, strict=True))
    return Gathered(
        ids,
        tick.successor,
        list(tick.rewards),
        {ids[k]: result for k, result in tick.special.items()},
        {ids[k]: info for k, info in tick.infos.items()},
        whole,
    )


def from_results(results: Mapping[int, StepResult[Any]], layout: Layout) -> Gathered:
    """Return a step of rows whose results are there one by one."""
    columns = layout.gather([result.observation for result in results.values()])
    return Gathered(list(results), columns, [0.0] * len(results), results, {}, {})


def gather(layout: Layout, parts: Sequence[Gathered]) -> Gathered:
    """Return one step of all the rows, whose columns nobody else writes to."""
    columns = _joined(layout, [part.columns for part in parts])
    if len(parts) == 1:
        return parts[0]._replace(columns=columns)
    rows: list[int] = []
    rewards: list[float] = []
    special: dict[int, StepResult[Any]] = {}
    infos: dict[int, dict[str, Any]] = {}
    whole: dict[int, Any] = {}
    for part in parts:
        rows += part.rows
        rewards += part.rewards
        special |= part.special
        infos |= part.infos
        whole |= part.whole
    return Gathered(rows, columns, rewards, special, infos, whole)


def sorted_by_row(step: Gathered) -> Gathered:
    """Return the same step with its rows in order."""
    rows = list(step.rows)
    if rows == sorted(rows):
        return step
    order = sorted(range(len(rows)), key=rows.__getitem__)
    return step._replace(
        rows=[rows[k] for k in order],
        columns=chosen_rows(step.columns, order),
        rewards=[step.rewards[k] for k in order],
    )


def chosen_rows(columns: Columns, rows: Any) -> Columns:
    """Return some rows of columns, in this order."""
    if isinstance(columns, dict):
        return {name: chosen_rows(column, rows) for name, column in columns.items()}
    return [columns[row] for row in rows] if isinstance(columns, list) else columns[rows]


def _read(layout: Layout, rows: Any, leaves: Any, lists: Any) -> Columns:
    if isinstance(layout, Fields):
        return {n: _read(one, rows, leaves, lists) for n, one in layout.columns.items()}
    return next(leaves)[rows] if isinstance(layout, Numbers | Arrays) else next(lists)


def _joined(layout: Layout, parts: list[Columns]) -> Columns:
    if isinstance(layout, Fields):
        return {
            name: _joined(column, [part[name] for part in parts])
            for name, column in layout.columns.items()
        }
    if isinstance(layout, Numbers | Arrays):
        joined = np.concatenate(parts)
        joined.flags.writeable = False
        return joined
    return [one for part in parts for one in part]
