"""Conversion between the batches of a Gymnasium vector and our columns, rows, infos and actions.

Imports Gymnasium.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final, overload

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from envweave.codec import Mismatch
from envweave.codec.gymnasium_spaces import from_space
from envweave.codec.scalars import ArraySpec, IntSpec
from envweave.errors import ActionError, BadReturnError
from envweave.session.snapshot import snapshot
from envweave.vector.columns import Arrays, Columns, Fields, Layout, Listed, Numbers


def rows_of(space: Any, batch: Any) -> list[Any]:
    """Return a batch of a batched space row by row, copied.

    Raises:
        BadReturnError: It is not such a batch.
    """
    try:
        return [snapshot(row) for row in iterate(space, batch)]
    except BadReturnError:
        raise
    except Exception as error:
        raise BadReturnError(
            f"The observations, a {type(batch).__name__}, are not a batch of {space}: {error}"
        ) from error


def columns_of(layout: Layout, space: Any, batch: Any, count: int) -> Columns:
    """Return a batch of `count` rows as columns: read-only copies.

    Raises:
        BadReturnError: It is not such a batch.
    """
    if isinstance(layout, Fields):
        if not isinstance(batch, Mapping):
            raise BadReturnError(f"The observations are a {type(batch).__name__}, not a dict.")
        missing = [name for name in layout.columns if name not in batch]
        if missing:
            raise BadReturnError(f"The observations have no {missing[0]!r}.")
        return {
            name: columns_of(column, space.spaces[name], batch[name], count)
            for name, column in layout.columns.items()
        }
    if isinstance(layout, Listed):
        rows = rows_of(space, batch)
        if len(rows) != count:
            raise BadReturnError(f"The observations have {len(rows)} rows, not {count}.")
        return rows
    assert isinstance(layout, Arrays | Numbers)
    array = np.array(batch)
    shape = (count, *(layout.shape if isinstance(layout, Arrays) else ()))
    if array.dtype != layout.dtype or array.shape != shape:
        raise BadReturnError(
            f"The observations are {array.dtype}{array.shape}, but the columns were fixed as "
            f"{layout.dtype}{shape} at the first reset."
        )
    array.flags.writeable = False
    return array


def row_of(columns: Columns, i: int, layout: Layout) -> Any:
    """Return one row of columns, copied."""
    if isinstance(layout, Fields):
        return {name: row_of(columns[name], i, one) for name, one in layout.columns.items()}
    if isinstance(layout, Listed):
        return snapshot(columns[i])
    return columns[i, ...].copy() if isinstance(layout, Arrays) else columns[i]


def fitted(layout: Layout, value: Any) -> Any:
    """Return one environment's observation in the form of a row of the batch.

    Raises:
        BadReturnError: It does not fit.
    """
    if isinstance(layout, Fields):
        if not isinstance(value, Mapping) or value.keys() != layout.columns.keys():
            raise BadReturnError(f"A final observation is {value!r}, not a dict of all fields.")
        return {name: fitted(column, value[name]) for name, column in layout.columns.items()}
    if isinstance(layout, Listed):
        return snapshot(value)
    assert isinstance(layout, Arrays | Numbers)
    shape = layout.shape if isinstance(layout, Arrays) else ()
    array = np.asarray(value)
    if array.shape != shape or not np.can_cast(array.dtype, layout.dtype, "same_kind"):
        raise BadReturnError(
            f"A final observation is {array.dtype}{array.shape}, not {layout.dtype}{shape}."
        )
    row = array.astype(layout.dtype)
    return row[()] if isinstance(layout, Numbers) else row


def final_row(finals: Any, i: int, space: Any) -> Any:
    """Return one environment's last observation, from an array of objects or from a batch."""
    if isinstance(space, spaces.Dict) and isinstance(finals, Mapping):
        return {name: final_row(finals[name], i, one) for name, one in space.spaces.items()}
    if isinstance(space, spaces.Tuple) and isinstance(finals, tuple):
        return tuple(final_row(finals[k], i, one) for k, one in enumerate(space.spaces))
    return finals[i]


def length_of(batch: Any, space: Any) -> int:
    """Return how many rows a batch of this single space has."""
    while isinstance(space, spaces.Dict | spaces.Tuple):
        # Neither is a sequence of rows: they hold one batch per part.
        key: Any = next(iter(space.spaces)) if isinstance(space, spaces.Dict) else 0
        batch, space = batch[key], space[key]
    return len(batch)


@final
class Rows(Sequence[Any]):
    """The rows of columns, made on access."""

    def __init__(self, columns: Columns, layout: Layout, count: int) -> None:
        self._columns, self._layout, self._count = columns, layout, count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Return one row, or those of a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(self._count)[index]]
        return row_of(self._columns, index, self._layout)

    def __len__(self) -> int:
        return self._count


@final
class RowInfos(Mapping[int, dict[str, Any]]):
    """The info of each row, taken out of a vector's info on access."""

    def __init__(self, infos: Mapping[str, Any], count: int) -> None:
        self._infos, self._count = infos, count

    def __getitem__(self, i: int) -> dict[str, Any]:
        return row_info(self._infos, i, self._count)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._count if self._infos else 0))

    def __len__(self) -> int:
        return self._count if self._infos else 0


def row_info(infos: Mapping[str, Any], i: int, count: int) -> dict[str, Any]:
    """Return the info of row i, according to Gymnasium's masks `_key`."""
    info: dict[str, Any] = {}
    for key, value in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        mask = infos.get(f"_{key}")
        if mask is not None and not mask[i]:
            continue
        if isinstance(value, Mapping):
            info[key] = row_info(value, i, count)
        elif _has_rows(value) and len(value) == count:
            one = value[i]
            info[key] = one.item() if isinstance(one, np.generic) else snapshot(one)
        else:
            info[key] = value
    return info


def _has_rows(value: Any) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)


def kept(infos: Any) -> dict[str, Any]:
    """Return a copy of a vector's info, with copied arrays.

    Raises:
        BadReturnError: It is not a dict.
    """
    if not isinstance(infos, dict):
        raise BadReturnError(f"info is a {type(infos).__name__}, not a dict.")
    return {
        key: kept(value)
        if isinstance(value, dict)
        else value.copy()
        if isinstance(value, np.ndarray)
        else value
        for key, value in infos.items()
    }


@final
class BatchActions:
    """Converts the actions of all environments to the form that a vector's `step` takes."""

    def __init__(self, space: Any, count: int) -> None:
        self.spec = from_space(space)
        self._space, self._count = space, count

    def read_array(self, actions: NDArray[Any]) -> Any:
        """Return one array of all actions as `step` takes it; `None` if rows must be checked."""
        spec, count = self.spec, self._count
        if isinstance(spec, IntSpec):
            if actions.shape != (count,) or actions.dtype.kind not in "iu":
                return None
            low, high, clips = spec.low, spec.high, False
        elif isinstance(spec, ArraySpec):
            if actions.dtype != spec.dtype or actions.shape[1:] != spec.shape:
                return None
            low, high, clips = spec.low, spec.high, spec.clips
        else:
            return None
        if len(actions) != count:
            return None
        if not clips and not (
            (low is None or (actions >= low).all()) and (high is None or (actions <= high).all())
        ):
            return None
        return actions.astype(self._space.dtype, copy=False)

    def read(self, actions: Sequence[Any]) -> Any:
        """Return the actions as one batch.

        Raises:
            ActionError: One is refused; the message begins with its index.
        """
        try:
            rows = self.spec.read_all(actions)
        except Mismatch:
            rows = [self._read_one(action, i) for i, action in enumerate(actions)]
        empty: Any = create_empty_array(self._space, self._count)
        return concatenate(self._space, rows, empty)

    def _read_one(self, action: Any, i: int) -> Any:
        try:
            return self.spec.read(action)
        except Mismatch as mismatch:
            raise ActionError(mismatch.describe(f"actions[{i}]")) from None


def batched(space: Any, count: int) -> Any:
    """Return the space of a batch, rebuilt because EnvPool uses that name for a single space."""
    return batch_space(space, count)
