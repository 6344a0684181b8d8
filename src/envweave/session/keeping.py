"""Private copies of observations that an author may go on writing to."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np

from envweave.errors import BadReturnError

_IMMUTABLE = frozenset((str, bytes, int, float, bool, complex, type(None)))


def keep(value: Any) -> Any:
    """Return a copy of an observation that no later call can change.

    Raises:
        BadReturnError: It holds something that cannot be copied.
    """
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind is np.ndarray:
        return value.copy()
    if kind is dict:
        return {key: keep(one) for key, one in value.items()}
    if kind is list:
        return [keep(one) for one in value]
    if kind is tuple:
        return tuple([keep(one) for one in value])
    if dataclasses.is_dataclass(value):
        twin = copy.copy(value)
        for name in kind.__dataclass_fields__:
            one = getattr(value, name)
            if type(one) not in _IMMUTABLE:
                object.__setattr__(twin, name, keep(one))  # also into a frozen one
        return twin
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise BadReturnError(
            f"An observation of type {kind.__name__} cannot be copied ({error}). Observations "
            "are data: arrays, text, dataclasses, dicts, lists."
        ) from error
