"""Which option of a union a plain value was: told by its form, and without making anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from envweave.codec import AgentsSpec, AnySpec, Spec
from envweave.codec.branches import Dictionary, Either, Fixed, Listing, Model, Record, Recursion
from envweave.codec.leaves import Array, Instance


def best_of(options: Sequence[Spec], plain: Any) -> int | None:
    """Return the number of the option that a value fits; the nearest record where none does."""
    for index, option in enumerate(options):
        if fits(option, plain):
            return index
    if type(plain) is not dict:
        return None
    overlaps = [
        (option.overlap(plain), -index)
        for index, option in enumerate(options)
        if isinstance(option, Record | Model)
    ]
    overlap, index = max(overlaps, default=(0, 0))
    return -index if overlap else None


def fits(spec: Spec, plain: Any) -> bool:
    """Whether a value of this spec can look like this as plain data."""
    match spec:
        case AnySpec():
            return True
        case Record() | Model():
            return _is_record(spec, plain)
        case Recursion():
            return spec.record is not None and fits(spec.record, plain)
        case Listing(item=item):
            return type(plain) is list and all(fits(item, one) for one in plain)
        case Fixed(items=items):
            return type(plain) is list and len(plain) == len(items) and all(map(fits, items, plain))
        case Dictionary(fields=None, item=item):
            return type(plain) is dict and all(fits(item, one) for one in plain.values())
        case Dictionary(fields=fields, optional=optional) if fields is not None:
            return (
                type(plain) is dict
                and plain.keys() <= fields.keys()
                and fields.keys() - optional <= plain.keys()
                and all(fits(fields[name], one) for name, one in plain.items())
            )
        case AgentsSpec(agents=agents):
            return type(plain) is dict and plain.keys() <= agents.keys()
        case Either(options=options):
            return any(fits(option, plain) for option in options)
        case Array():
            return isinstance(plain, np.ndarray | list) and spec.contains(plain)
        case Instance():
            return not isinstance(plain, bool | int | float | None)
    return spec.contains(plain)


def _is_record(spec: Record | Model, plain: Any) -> bool:
    held = {**spec.fields, **spec.derived}
    return (
        type(plain) is dict
        and plain.keys() == held.keys()
        and all(fits(held[name], one) for name, one in plain.items())
    )
