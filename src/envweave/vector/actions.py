"""The actions of many environments, as a list, as columns, or as one array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from envweave.codec import Spec
from envweave.codec.branches import Record
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
        rows = _from_columns(actions)
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


def _from_columns(columns: Mapping[str, Any]) -> list[Any]:
    named = {
        n: c.tolist() if isinstance(c, np.ndarray) and c.ndim == 1 else list(c)
        for n, c in columns.items()
    }
    lengths = {name: len(column) for name, column in named.items()}
    if len(set(lengths.values())) > 1:
        raise ActionError(f"actions: the columns differ in length: {lengths}")
    return [dict(zip(named, row, strict=True)) for row in zip(*named.values(), strict=True)]
