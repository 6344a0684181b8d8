"""Columns: the observations of many environments, field by field."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from envweave.codec import AnySpec, Spec
from envweave.codec.containers import NOT_SHOWN, DataclassSpec, DictSpec, PydanticSpec, shown_fields
from envweave.codec.hints import Declared
from envweave.codec.scalars import ArraySpec, BoolSpec, EnumSpec, FloatSpec, IntSpec
from envweave.codec.spec import short_repr
from envweave.errors import BadReturnError
from envweave.session.snapshot import IMMUTABLE, snapshot
from envweave.types import Observation

if TYPE_CHECKING:
    from envweave.vector.agents.columns import ByAgent

Columns: TypeAlias = Any
"""An array, a list, or a dict of these by field."""


class LayoutMismatchError(Exception):
    """Some row does not fit the columns. Never raised to a caller: each row is checked next."""


_KINDS: dict[str, tuple[type, ...]] = {"b": (bool,), "i": (int,), "u": (int,), "f": (float, int)}
_EXACT = {np.dtype(np.bool_): bool, np.dtype(np.int64): int, np.dtype(np.float64): float}
"""The Python type whose values numpy stores in an array of this dtype unchanged, or refuses."""
_FLOAT64 = np.dtype(np.float64)
_DTYPE = operator.attrgetter("dtype")


@dataclasses.dataclass(frozen=True, slots=True)
class Numbers:
    """One array with a number for each environment."""

    dtype: np.dtype[Any]

    def check(self, value: Any) -> None:
        """Refuse what the array cannot hold: another kind of number, or one out of its range.

        A float of more digits than the array holds is rounded. A 0-dimensional array is a
        number too, as PettingZoo's are.
        """
        if type(value) is float and self.dtype is _FLOAT64:
            return
        if isinstance(value, np.generic | np.ndarray):
            fits = value.dtype == self.dtype and value.shape == ()
        else:
            fits = type(value) in _KINDS.get(self.dtype.kind, ()) and self.holds(value)
        if not fits:
            raise _misfit(value, f"a number of {self.dtype}")

    def holds(self, value: Any) -> bool:
        """Return whether a Python number of the right kind lies in the array's range."""
        if self.dtype.kind == "b":
            return True
        if self.dtype.kind == "f":
            try:
                value = float(value)
            except OverflowError:
                return False
            if self.dtype.itemsize >= 8 or not math.isfinite(value):
                return True
            return bool(abs(value) <= float(np.finfo(self.dtype).max))
        limits = np.iinfo(self.dtype)
        return bool(limits.min <= value <= limits.max)

    def gather(self, rows: Sequence[Any]) -> np.ndarray[Any, Any]:
        """Return a new read-only array of the rows.

        Raises:
            LayoutMismatchError: Some row does not fit.
        """
        kinds = set(map(type, rows))
        if kinds != {_EXACT.get(self.dtype)} and kinds != {self.dtype.type}:
            for row in rows:
                _check_row(self.check, row)
        try:
            array = np.array(rows, self.dtype)
        except OverflowError:
            raise LayoutMismatchError from None
        array.flags.writeable = False
        return array


@dataclasses.dataclass(frozen=True, slots=True)
class Arrays:
    """One array with an array for each environment."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def check(self, value: Any) -> None:
        """Refuse an array of another dtype or shape, and a subclass, which may hold more.

        Where arrays are 0-dimensional a numpy scalar will do: arithmetic turns them into one.
        """
        fits = type(value) is np.ndarray or (not self.shape and isinstance(value, np.generic))
        if not fits or value.dtype != self.dtype or value.shape != self.shape:
            raise _misfit(value, f"{self.dtype}{self.shape}")

    def gather(self, rows: Sequence[Any]) -> np.ndarray[Any, Any]:
        """Return a new read-only array of the rows.

        Raises:
            LayoutMismatchError: Some row does not fit.
        """
        count = len(rows)
        if list(map(type, rows)).count(np.ndarray) != count:
            for row in rows:
                _check_row(self.check, row)
        elif [row.dtype for row in rows].count(self.dtype) != count or [
            row.shape for row in rows
        ].count(self.shape) != count:
            raise LayoutMismatchError
        return self.join(rows)

    def join(self, rows: Sequence[Any]) -> np.ndarray[Any, Any]:
        """Return a new read-only array of rows that fit.

        Raises:
            ValueError: They do not: there are more numbers than the array holds.
            TypeError: There are fewer.
        """
        try:
            # In C, three times as fast as np.stack. Refuses arrays that are not C-contiguous.
            blob = b"".join(rows)
        except (BufferError, TypeError, ValueError):
            blob = b"".join([row.tobytes() for row in rows])
        array: np.ndarray[Any, Any] = np.ndarray((len(rows), *self.shape), self.dtype, blob)
        if array.nbytes != len(blob):
            raise ValueError(f"{len(blob)} bytes are not {array.nbytes}")
        return array


@dataclasses.dataclass(frozen=True, slots=True)
class Listed:
    """A list with an item for each environment: text, and everything without a fixed shape."""

    def check(self, value: Any) -> None:
        """Accept anything."""

    def gather(self, rows: Sequence[Any]) -> list[Any]:
        """Return a list of the rows."""
        return list(rows)


@dataclasses.dataclass(frozen=True, slots=True)
class Fields:
    """A dict with a column for each field, from dataclasses or dicts."""

    columns: Mapping[str, Layout]
    get: Callable[[str], Callable[[Any], Any]]
    kind: type

    def check(self, value: Any) -> None:
        """Refuse a row of another type, with a field that does not fit, or with an extra field."""
        row: Any = value
        if not isinstance(value, self.kind):
            raise _misfit(value, self.kind.__name__)
        for name, column in self.columns.items():
            try:
                one = self.get(name)(row)
            except (AttributeError, KeyError):
                raise BadReturnError(f"An observation has no {name!r}.") from None
            except Exception as error:
                raise BadReturnError(
                    f"The {name!r} of an observation cannot be read: {short_repr(error)}."
                ) from error
            try:
                column.check(one)
            except BadReturnError as error:
                raise BadReturnError(f"{name}: {error}") from None
        if self.kind is dict and len(row) != len(self.columns):
            more = [key for key in row if key not in self.columns]
            raise BadReturnError(
                f"An observation has {', '.join(map(repr, more))}, but the columns were fixed as "
                f"{', '.join(map(repr, self.columns))} at the first reset."
            )

    def gather(self, rows: Sequence[Any]) -> dict[str, Any]:
        """Return the columns by field.

        Raises:
            LayoutMismatchError: Some row does not fit.
        """
        if set(map(type, rows)) != {self.kind} and not all(isinstance(r, self.kind) for r in rows):
            raise LayoutMismatchError
        if self.kind is dict and list(map(len, rows)).count(len(self.columns)) != len(rows):
            raise LayoutMismatchError
        gathered = {}
        for name, column in self.columns.items():
            try:
                values = list(map(self.get(name), rows))
            except Exception:  # noqa: BLE001 - an author's property; `check` reports it
                raise LayoutMismatchError from None
            gathered[name] = column.gather(values)
        return gathered


Layout: TypeAlias = "Numbers | Arrays | Listed | Fields | ByAgent"


def layout_of(spec: Spec, first: Any) -> Layout:
    """Choose the columns from the spec, and from a first value where the spec leaves it open."""
    if isinstance(spec, Declared):
        return layout_of(spec.spec, first) if spec.spec.contains(first) else Listed()
    if isinstance(spec, DataclassSpec | PydanticSpec):
        if not isinstance(first, spec.cls):
            raise _undeclared(first, spec.cls)
        shown = shown_fields(spec)
        columns = {n: layout_of(s, getattr(first, n)) for n, s in shown.items()}
        return Fields(columns, operator.attrgetter, spec.cls)
    if isinstance(spec, DictSpec) and spec.fields is not None and not spec.optional:
        if not isinstance(first, dict) or first.keys() != spec.fields.keys():
            raise _undeclared(first, f"a dict of {', '.join(map(repr, spec.fields))}")
        columns = {n: layout_of(s, first[n]) for n, s in spec.fields.items()}
        return Fields(columns, operator.itemgetter, dict)
    if isinstance(spec, IntSpec):
        return _numbers(first, np.int64)
    if isinstance(spec, FloatSpec):
        return _numbers(first, np.float64)
    if isinstance(spec, BoolSpec):
        return _numbers(first, np.bool_)
    if isinstance(spec, EnumSpec) and all(type(value) is int for value in spec.values):
        return _numbers(first, np.int64)
    if isinstance(spec, ArraySpec | AnySpec):
        return _by_value(first)
    return Listed()


def _numbers(first: Any, default: Any) -> Numbers:
    is_own = isinstance(first, np.generic | np.ndarray)
    return Numbers(first.dtype if is_own else np.dtype(default))


def _by_value(first: Any) -> Layout:
    # A subclass, such as a masked array, holds more than one array of all of them would.
    if type(first) is np.ndarray and first.dtype.kind in "biufc":
        return Arrays(first.dtype, first.shape)
    if isinstance(first, np.generic) and first.dtype.kind in "biufc":
        return Numbers(first.dtype)
    if type(first) in (bool, int, float):
        dtype = np.dtype(type(first) if type(first) is not int else np.int64)
        return Numbers(dtype) if Numbers(dtype).holds(first) else Listed()
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        hidden = NOT_SHOWN if isinstance(first, Observation) else ()
        names = [f.name for f in dataclasses.fields(first) if f.name not in hidden]
        columns = {name: _by_value(getattr(first, name)) for name in names}
        return Fields(columns, operator.attrgetter, type(first))
    if type(first) is dict:
        columns = {name: _by_value(one) for name, one in first.items()}
        return Fields(columns, operator.itemgetter, dict)
    return Listed()


def replaced(columns: Columns, rows: Mapping[int, Any], layout: Layout) -> Columns:
    """Return a read-only copy of columns with other observations in some rows."""
    if isinstance(layout, Fields):
        return {
            name: replaced(
                columns[name], {i: layout.get(name)(row) for i, row in rows.items()}, column
            )
            for name, column in layout.columns.items()
        }
    changed = columns.copy()
    for i, row in rows.items():
        changed[i] = row
    if isinstance(changed, np.ndarray):
        changed.flags.writeable = False
    return changed


def owned(columns: Columns) -> Columns:
    """Return a copy of columns that a caller may write to."""
    if type(columns) is np.ndarray:
        return columns.copy()
    if isinstance(columns, dict):
        return {name: owned(column) for name, column in columns.items()}
    if set(map(type, columns)) <= IMMUTABLE:
        return list(columns)
    return [snapshot(one) for one in columns]


def lent(columns: Columns) -> Columns:
    """Return columns that a caller may read but not write to, without copying their values.

    A list is the caller's own; what is in it is not.
    """
    if isinstance(columns, dict):
        return {name: lent(column) for name, column in columns.items()}
    if isinstance(columns, list):
        return list(columns)
    if columns.flags.writeable:
        columns = columns.view()
        columns.flags.writeable = False
    return columns


def _misfit(value: Any, expected: str) -> BadReturnError:
    return BadReturnError(
        f"An observation is {_shown(value)}, but the columns were fixed as {expected} at the "
        "first reset."
    )


def _undeclared(value: Any, expected: str | type) -> BadReturnError:
    declared = expected.__name__ if isinstance(expected, type) else expected
    return BadReturnError(
        f"An observation is {_shown(value)}, but the environment's observation_spec says "
        f"{declared}. Return that from reset() and step(), or change the hint of step()."
    )


def _shown(value: Any) -> str:
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        return f"{'' if kind == 'ndarray' else f'{kind} '}{value.dtype}{value.shape}"
    return f"{kind} {short_repr(value)}"


def _check_row(check: Callable[[Any], None], row: Any) -> None:
    try:
        check(row)
    except BadReturnError:
        raise LayoutMismatchError from None
