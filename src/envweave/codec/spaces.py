"""Between specs and Gymnasium spaces."""

from __future__ import annotations

from typing import Any

import numpy as np

from envweave.codec.branches import Dictionary, Either, Fixed, Record
from envweave.codec.leaves import Array, Boolean, Choice, Instance, Integer, Real, Text
from envweave.codec.spec import AgentsSpec, AnySpec, Spec
from envweave.errors import MissingExtraError, SpecError


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError:
        raise MissingExtraError.for_extra("Spaces need Gymnasium.", "gym") from None
    return gymnasium


def to_space(spec: Spec) -> Any:
    """Return the Gymnasium space of the values that `spec` allows."""
    spaces = _gymnasium().spaces
    match spec:
        case Boolean():
            return spaces.Discrete(2)
        case Choice(values=values):
            return spaces.Discrete(len(values))
        case Integer(low=low, high=high) if low is not None and high is not None:
            return spaces.Discrete(high - low + 1, start=low)
        case Integer() | Real():
            low = -np.inf if spec.low is None else spec.low
            high = np.inf if spec.high is None else spec.high
            kind = np.int64 if isinstance(spec, Integer) else np.float64
            if isinstance(spec, Integer):
                limits = np.iinfo(np.int64)
                low, high = max(low, limits.min), min(high, limits.max)
            return spaces.Box(low, high, (), kind)
        case Text(binary=False):
            return spaces.Text(min_length=0, max_length=1 << 20)
        case Array(shape=shape, dtype=dtype) if shape is not None and dtype is not None:
            if dtype.kind == "b" or (dtype == np.int8 and (spec.low, spec.high) == (0, 1)):
                return spaces.MultiBinary(shape)
            low, high = _limits(spec)
            return spaces.Box(low, high, shape, dtype.type)
        case Fixed(items=items):
            return spaces.Tuple([to_space(item) for item in items])
        case Dictionary(fields=fields) if fields is not None:
            return spaces.Dict({name: to_space(one) for name, one in fields.items()})
        case Record():
            return spaces.Dict(
                {name: to_space(one) for name, one in spec.fields.items() if name not in NOT_SHOWN}
            )
        case Either(options=options):
            return spaces.OneOf([to_space(option) for option in options])
        case AgentsSpec(agents=agents):
            return spaces.Dict({name: to_space(one) for name, one in agents.items()})
    raise SpecError(
        f"{spec!r} has no Gymnasium space. Give the field bounds, a Literal or an array shape, "
        "or set the spec on the environment yourself."
    )


NOT_SHOWN = frozenset({"metadata", "reward", "done", "truncated"})
"""Base fields of `Action` and `Observation`, which no policy reads."""


def _limits(spec: Array) -> tuple[Any, Any]:
    assert spec.dtype is not None
    if spec.dtype.kind in "iu":
        info = np.iinfo(spec.dtype)
        return (
            info.min if spec.low is None else spec.low,
            info.max if spec.high is None else spec.high,
        )
    return (
        -np.inf if spec.low is None else spec.low,
        np.inf if spec.high is None else spec.high,
    )


def from_space(space: Any) -> Spec:
    """Return the spec of a Gymnasium space's values."""
    spaces = _gymnasium().spaces
    match space:
        case spaces.Discrete():
            start = int(space.start)
            return Integer(start, start + int(space.n) - 1)
        case spaces.Box():
            low = np.where(np.isfinite(space.low), space.low, -np.inf)
            high = np.where(np.isfinite(space.high), space.high, np.inf)
            return Array(space.shape, space.dtype, low, high, clips=space.dtype.kind == "f")
        case spaces.MultiBinary():
            return Array(space.shape, space.dtype, 0, 1)
        case spaces.MultiDiscrete():
            return Array(space.shape, space.dtype, space.start, space.start + space.nvec - 1)
        case spaces.Text():
            return Text()
        case spaces.Dict():
            return Dictionary(fields={key: from_space(one) for key, one in space.spaces.items()})
        case spaces.Tuple():
            return Fixed(from_space(one) for one in space.spaces)
    return AnySpec() if space is None else Instance(object)
