"""How the actions of a process vector travel in shared columns, without pickling.

An int is one column of numbers, an array of a fixed shape one column of arrays. A dataclass has a
column for each field, if they are all numbers, bools or choices. Other actions are sent in
messages, and so are those that columns cannot hold: with metadata, or an int of more than 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Protocol, TypeAlias, final

import numpy as np

from envweave.codec import Spec
from envweave.codec.records import DataclassSpec
from envweave.codec.scalars import ArraySpec, BoolSpec, EnumSpec, FloatSpec, IntSpec
from envweave.session.snapshot import copies_plainly
from envweave.types import Action
from envweave.vector.columns import Arrays, LayoutMismatchError, Numbers
from envweave.workers.shared_memory import AnyArray

ColumnKind: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
"""The dtype and the shape of a row in one column."""


class ActionColumns(Protocol):
    """Writes actions to columns, and reads them back.

    Attributes:
        kinds: The columns; none if actions have no columns.
    """

    kinds: Sequence[ColumnKind]

    def gather(self, actions: Sequence[Any]) -> Sequence[AnyArray] | None:
        """Return admitted actions as columns; `None` if columns cannot hold them."""
        ...

    def read(self, columns: Sequence[AnyArray]) -> list[Any]:
        """Return the actions of some rows, in the form that an author's `step` takes."""
        ...


def action_columns(spec: Spec) -> ActionColumns:
    """Return the columns of the actions that a spec describes."""
    if isinstance(spec, IntSpec):
        return _OneColumn(Numbers(np.dtype(np.int64)))
    if isinstance(spec, ArraySpec) and spec.dtype is not None and spec.shape is not None:
        return _OneColumn(Arrays(spec.dtype, spec.shape))
    if isinstance(spec, DataclassSpec) and not spec.derived and not spec.init_only:
        fields = {name: one for name, one in spec.fields.items() if name not in _unwritten(spec)}
        columns = {name: _field_column(one) for name, one in fields.items()}
        if columns and None not in columns.values() and copies_plainly(spec.cls):
            return _FieldColumns(spec, columns)  # type: ignore[arg-type] # none is None
    return _NoColumns()


@final
class _NoColumns:
    kinds: Sequence[ColumnKind] = ()

    def gather(self, actions: Sequence[Any]) -> Sequence[AnyArray] | None:  # noqa: ARG002
        return None

    def read(self, columns: Sequence[AnyArray]) -> list[Any]:  # noqa: ARG002
        raise AssertionError("there are no columns to read")


@final
class _OneColumn:
    """Actions that are numbers, or arrays of one shape."""

    def __init__(self, layout: Numbers | Arrays) -> None:
        self._layout = layout
        shape = layout.shape if isinstance(layout, Arrays) else ()
        self.kinds: Sequence[ColumnKind] = [(layout.dtype, shape)]

    def gather(self, actions: Any) -> Sequence[AnyArray] | None:
        if isinstance(actions, np.ndarray):
            return [actions]
        try:
            return [self._layout.gather(actions)]
        except LayoutMismatchError:
            return None

    def read(self, columns: Sequence[AnyArray]) -> list[Any]:
        if isinstance(self._layout, Numbers):
            numbers: list[Any] = columns[0].tolist()
            return numbers
        return list(columns[0].copy())


class _FieldColumn:
    """One field of a dataclass.

    Args:
        dtype: That of its column.
        values: The values of a choice, which is written as an index.
    """

    def __init__(self, dtype: Any, values: Sequence[Any] | None = None) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._values = values
        self._codes = None if values is None else {value: i for i, value in enumerate(values)}

    def gather(self, values: list[Any]) -> AnyArray:
        """Return the values as a column; raises `OverflowError` for an int that is too large."""
        codes = values if self._codes is None else map(self._codes.__getitem__, values)
        return np.fromiter(codes, self.dtype, len(values))

    def read(self, column: AnyArray) -> list[Any]:
        values: list[Any] = column.tolist()
        return values if self._values is None else list(map(self._values.__getitem__, values))


def _field_column(spec: Spec) -> _FieldColumn | None:
    for kind, dtype in ((IntSpec, np.int64), (FloatSpec, np.float64), (BoolSpec, np.bool_)):
        if isinstance(spec, kind):
            return _FieldColumn(dtype)
    if isinstance(spec, EnumSpec) and not spec.stands_in:
        try:
            # Not where two values are equal, such as 1 and True.
            return _FieldColumn(np.int64, spec.values) if _differ(spec.values) else None
        except TypeError:
            return None  # a value without a hash
    return None


def _differ(values: Sequence[Any]) -> bool:
    return len(set(values)) == len(values)


def _unwritten(spec: DataclassSpec) -> frozenset[str]:
    """The fields that must be empty for an action to travel in columns."""
    return frozenset({"metadata"} if issubclass(spec.cls, Action) else ())


@final
class _FieldColumns:
    """Dataclasses, each field of which is a number, a bool or a choice.

    They are made again as a pickle makes them: without their `__init__`, which has run.
    """

    def __init__(self, spec: DataclassSpec, columns: Mapping[str, _FieldColumn]) -> None:
        self.kinds: Sequence[ColumnKind] = [(column.dtype, ()) for column in columns.values()]
        self._cls = spec.cls
        self._columns = dict(columns)
        self._width = len(spec.fields)
        self._has_metadata = bool(_unwritten(spec))
        self._getters: list[tuple[_FieldColumn, Callable[[Any], Any]]] = [
            (column, itemgetter(name)) for name, column in columns.items()
        ]

    def gather(self, actions: Sequence[Any]) -> Sequence[AnyArray] | None:
        if set(map(type, actions)) != {self._cls}:
            return None
        rows = list(map(vars, actions))
        try:
            if set(map(len, rows)) != {self._width}:
                return None  # someone added an attribute
            if self._has_metadata and any(map(_metadata, rows)):
                return None
            return [column.gather(list(map(get, rows))) for column, get in self._getters]
        except (OverflowError, KeyError):
            return None  # an int of more than 64 bits, or a deleted attribute

    def read(self, columns: Sequence[AnyArray]) -> list[Any]:
        pairs = zip(self._columns.values(), columns, strict=True)
        values = [field.read(column) for field, column in pairs]
        new, cls, names = object.__new__, self._cls, tuple(self._columns)
        actions = []
        for row in zip(*values, strict=True):
            action: Any = new(cls)
            fields = action.__dict__
            fields.update(zip(names, row, strict=True))
            if self._has_metadata:
                fields["metadata"] = {}
            actions.append(action)
        return actions


_metadata = itemgetter("metadata")
