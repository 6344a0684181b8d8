"""Columns: the observations of many environments, field by field."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from envweave.codec import AnySpec, Spec
from envweave.codec.branches import Dictionary, Record
from envweave.codec.leaves import Array, Boolean, Choice, Integer, Real
from envweave.codec.spaces import NOT_SHOWN
from envweave.errors import BadReturnError

Columns: TypeAlias = Any
"""An array, a list, or a dict of such by field."""


@dataclasses.dataclass(frozen=True, slots=True)
class Numeric:
    """One array with a row an environment."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def check(self, value: Any) -> None:
        """Refuse a row that the array cannot hold as it is."""
        if type(value) is np.ndarray or isinstance(value, np.generic):
            same = value.dtype == self.dtype and value.shape == self.shape
        else:
            kinds = {"i": int, "u": int, "f": float | int, "b": bool}
            kind = kinds.get(self.dtype.kind, object)
            same = self.shape == () and isinstance(value, kind)
            same = same and (self.dtype.kind == "b" or not isinstance(value, bool))
        if not same:
            got = f"{getattr(value, 'dtype', type(value).__name__)}{getattr(value, 'shape', ())}"
            raise BadReturnError(
                f"An observation is {got}, but the columns were fixed as "
                f"{self.dtype}{self.shape} at the first reset."
            )

    def gather(self, rows: Sequence[Any]) -> np.ndarray[Any, Any]:
        """Return a fresh array of the rows."""
        return np.array(rows, self.dtype).reshape((len(rows), *self.shape))


@dataclasses.dataclass(frozen=True, slots=True)
class Listed:
    """A list with an item an environment: text, and whatever has no fixed shape."""

    def check(self, value: Any) -> None:
        """Take anything."""

    def gather(self, rows: Sequence[Any]) -> list[Any]:
        """Return a list of the rows."""
        return list(rows)


@dataclasses.dataclass(frozen=True, slots=True)
class Fields:
    """A dict with a column a field, from dataclasses or dicts."""

    columns: Mapping[str, Layout]
    get: Callable[[Any, str], Any]
    kind: type

    def check(self, value: Any) -> None:
        """Refuse a row of another kind, or with a field that does not fit."""
        if not isinstance(value, self.kind):
            raise BadReturnError(
                f"An observation is {type(value).__name__}, but the columns were fixed for "
                f"{self.kind.__name__} at the first reset."
            )
        for name, column in self.columns.items():
            try:
                column.check(self.get(value, name))
            except KeyError:
                raise BadReturnError(f"An observation has no {name!r}.") from None
            except BadReturnError as error:
                raise BadReturnError(f"{name}: {error}") from None

    def gather(self, rows: Sequence[Any]) -> dict[str, Any]:
        """Return the columns by field."""
        return {
            name: column.gather([self.get(row, name) for row in rows])
            for name, column in self.columns.items()
        }


Layout: TypeAlias = Numeric | Listed | Fields


def layout_of(spec: Spec, first: Any) -> Layout:
    """Decide the columns, from the spec, and where it says nothing from a first value."""
    if isinstance(spec, Record):
        shown = {n: s for n, s in spec.fields.items() if n not in NOT_SHOWN}
        return Fields(
            {n: layout_of(s, getattr(first, n)) for n, s in shown.items()}, getattr, spec.cls
        )
    if isinstance(spec, Dictionary) and spec.fields is not None:
        columns = {n: layout_of(s, first[n]) for n, s in spec.fields.items()}
        return Fields(columns, dict.__getitem__, dict)
    if isinstance(spec, Integer):
        return _scalar(first, np.int64)
    if isinstance(spec, Real):
        return _scalar(first, np.float64)
    if isinstance(spec, Boolean):
        return _scalar(first, np.bool_)
    if isinstance(spec, Choice) and all(type(value) is int for value in spec.values):
        return _scalar(first, np.int64)
    if isinstance(spec, Array | AnySpec):
        return _by_value(first)
    return Listed()


def _scalar(first: Any, default: Any) -> Numeric:
    return Numeric(first.dtype if isinstance(first, np.generic) else np.dtype(default), ())


def _by_value(first: Any) -> Layout:
    if isinstance(first, np.ndarray) and first.dtype.kind in "biufc":
        return Numeric(first.dtype, first.shape)
    if isinstance(first, np.generic) and first.dtype.kind in "biufc":
        return Numeric(first.dtype, ())
    if isinstance(first, bool | int | float):
        return Numeric(np.asarray(first).dtype, ())
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        names = [f.name for f in dataclasses.fields(first) if f.name not in NOT_SHOWN]
        columns = {name: _by_value(getattr(first, name)) for name in names}
        return Fields(columns, getattr, type(first))
    if type(first) is dict:
        columns = {name: _by_value(one) for name, one in first.items()}
        return Fields(columns, dict.__getitem__, dict)
    return Listed()
