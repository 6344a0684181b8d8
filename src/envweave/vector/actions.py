"""The actions of many environments, as a list, as columns, or as one array."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from envweave.codec import Spec
from envweave.codec.branches import Record
from envweave.codec.spec import short
from envweave.errors import ActionError


def action_rows(actions: Any, num_envs: int, spec: Spec) -> list[Any]:
    """Return one action an environment.

    Args:
        actions: A list of actions or dicts; a dict of columns; or one array, where an action
            is a number or array itself, or has one field.
        num_envs: How many there must be.
        spec: What one action is.

    Raises:
        ActionError: Their number or their form is wrong.
    """
    fields = [] if not isinstance(spec, Record) else [n for n in spec.fields if n != "metadata"]
    if isinstance(actions, Mapping):
        rows = _from_columns(actions, num_envs)
    elif isinstance(actions, np.ndarray):
        if actions.ndim == 0:
            raise ActionError(f"actions: an array of no dimension is not {num_envs} actions")
        values = actions.tolist() if actions.ndim == 1 else list(actions)
        if isinstance(spec, Record):
            if len(fields) != 1:
                raise ActionError(
                    f"actions: one array cannot fill the fields {', '.join(fields)}. Pass a dict "
                    "of columns, or a list of actions."
                )
            rows = [{fields[0]: value} for value in values]
        else:
            rows = values
    elif isinstance(actions, Sequence) and not isinstance(actions, str | bytes):
        rows = list(actions)
    else:
        raise ActionError(
            f"actions: {type(actions).__name__} is no list, no dict of columns and no array"
        )
    if len(rows) != num_envs:
        raise ActionError(f"actions: {len(rows)} were given for {num_envs} environments")
    return rows


def _from_columns(columns: Mapping[str, Any], num_envs: int) -> list[Any]:
    named = {name: _column(name, column, num_envs) for name, column in columns.items()}
    lengths = {name: len(column) for name, column in named.items()}
    if len(set(lengths.values())) > 1:
        raise ActionError(f"actions: the columns differ in length: {lengths}")
    return [dict(zip(named, row, strict=True)) for row in zip(*named.values(), strict=True)]


def _column(name: str, column: Any, num_envs: int) -> list[Any]:
    if isinstance(column, np.ndarray) and column.ndim == 1:
        return list(column.tolist())
    if isinstance(column, Iterable) and not isinstance(column, str | bytes | Mapping | Set):
        try:
            return list(column)
        except TypeError:
            pass  # an array of no dimension
    raise ActionError(
        f"actions.{name}: {short(column)} is no column. A dict holds one value an environment "
        f"for each field: {{{name!r}: [{short(column)}] * {num_envs}}}; or pass a list of actions."
    )
