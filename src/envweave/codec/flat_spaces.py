"""Spaces as one flat array, for trainers that support neither `Dict` nor `Tuple`.

Observations are flattened like Gymnasium's `flatten`: numbers are unchanged, and a choice becomes
one-hot unless it has very many values. Actions stay choices or numbers: a policy has to know
which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatten, flatten_space, unflatten

from envweave.codec.gymnasium_spaces import AnyText, Bridge
from envweave.codec.scalars import IntSpec
from envweave.codec.spec import Mismatch, short_repr
from envweave.errors import SpecError

MAX_ONE_HOT = 1000
"""Choices with up to this many values become one-hot; larger ones become a number."""

Leaf: TypeAlias = tuple[str, spaces.Space[Any]]
"""The path of a leaf space in the whole, and the space."""


def flatten_observations(one: Bridge, name: str) -> Bridge:
    """Return the bridge to one flat `Box`.

    Raises:
        SpecError: A part has no flat form, such as text; it is named.
    """
    for path, leaf in _leaves(one.space, name):
        if not leaf.is_np_flattenable or isinstance(leaf, AnyText):
            raise SpecError(
                f"{path}: {leaf!r} cannot be flattened: it has no fixed size. Leave out "
                "flatten=True, or change its type."
            )
    shown = _narrowed(one.space)
    return Bridge(
        flatten_space(shown),
        lambda value: flatten(shown, one.encode(value)),
        lambda value: one.decode(_indexed(one.space, unflatten(shown, value))),
    )


def flatten_actions(one: Bridge, name: str) -> Bridge:
    """Return the bridge from one flat space of actions; it only decodes.

    A single choice becomes `Discrete`, several become `MultiDiscrete`, both counted from 0; real
    numbers become a `Box` of float32.

    Raises:
        SpecError: Actions have both choices and numbers, a part that is neither, or no parts.
    """
    leaves = list(_leaves(one.space, name))
    if not leaves:
        raise SpecError(f"{name} has no fields, so flatten=True leaves nothing to choose.")
    kinds = [leaf for _, leaf in leaves]
    if all(
        isinstance(k, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary) for k in kinds
    ):
        space, split = _choices(kinds)
    elif all(
        isinstance(k, spaces.Box) and k.dtype is not None and k.dtype.kind == "f" for k in kinds
    ):
        space, split = _numbers(kinds)
    else:
        parts = ", ".join(f"{path} is {leaf!r}" for path, leaf in leaves)
        raise SpecError(
            f"{name}: flatten=True makes one action of choices or one of real numbers, but "
            f"{parts}. Leave it out, or give integers both bounds."
        )
    return Bridge(space, one.encode, lambda value: one.decode(_join(one.space, iter(split(value)))))


def _narrowed(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return a space where a choice with very many values is a number: one-hot is too large."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _narrowed(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_narrowed(part) for part in space.spaces])
    if isinstance(space, spaces.Discrete) and space.n > MAX_ONE_HOT:
        low, count = np.asarray(space.start), np.asarray(space.n)
    elif isinstance(space, spaces.MultiDiscrete) and (space.nvec > MAX_ONE_HOT).any():
        low, count = space.start, space.nvec
    else:
        return space
    return spaces.Box(low, low + (count - 1), dtype=np.int64)


def _indexed(space: spaces.Space[Any], value: Any) -> Any:
    """Return a value of a narrowed space as one of the space itself."""
    if isinstance(space, spaces.Dict):
        return {key: _indexed(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_indexed(*pair) for pair in zip(space.spaces, value, strict=True))
    return np.int64(value) if isinstance(space, spaces.Discrete) else value


def _leaves(space: spaces.Space[Any], path: str) -> Iterator[Leaf]:
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, f"{path}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        for i, part in enumerate(space.spaces):
            yield from _leaves(part, f"{path}[{i}]")
    else:
        yield path, space


def _join(space: spaces.Space[Any], values: Iterator[Any]) -> Any:
    """Build a value of the whole space from the values of its leaves, in order."""
    if isinstance(space, spaces.Dict):
        return {key: _join(part, values) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_join(part, values) for part in space.spaces)
    return next(values)


def _choices(kinds: Sequence[Any]) -> tuple[spaces.Space[Any], Callable[[Any], list[Any]]]:
    if len(kinds) == 1 and isinstance(kinds[0], spaces.Discrete):
        only, index = kinds[0], IntSpec(0, int(kinds[0].n) - 1)
        return spaces.Discrete(only.n), lambda value: [only.start + index.read(value)]
    counts = [
        np.full(one.shape, 2)
        if isinstance(one, spaces.MultiBinary)
        else one.nvec
        if isinstance(one, spaces.MultiDiscrete)
        else np.array(one.n)
        for one in kinds
    ]
    flat = np.concatenate([one.ravel() for one in counts])
    indices = [IntSpec(0, int(count) - 1) for count in flat]

    def split(value: Any) -> list[Any]:
        chosen = np.asarray(value)
        if chosen.shape != flat.shape:
            raise Mismatch(f"shape {chosen.shape} is not {flat.shape}")
        for i, index in enumerate(indices):
            try:
                index.read(chosen[i])
            except Mismatch as mismatch:
                raise mismatch.under(f"[{i}]") from None
        ends = np.cumsum([one.size for one in counts])[:-1]
        parts = [
            part.reshape(one.shape)
            for part, one in zip(np.split(chosen, ends), counts, strict=True)
        ]
        return [
            part.astype(np.int8) if isinstance(one, spaces.MultiBinary) else (part + one.start)[()]
            for part, one in zip(parts, kinds, strict=True)
        ]

    return spaces.MultiDiscrete(flat), split


def _numbers(kinds: Sequence[Any]) -> tuple[spaces.Space[Any], Callable[[Any], list[Any]]]:
    ends = np.cumsum([one.low.size for one in kinds])[:-1]
    space = spaces.Box(
        np.concatenate([one.low.ravel() for one in kinds]).astype(np.float32),
        np.concatenate([one.high.ravel() for one in kinds]).astype(np.float32),
        dtype=np.float32,
    )

    def split(value: Any) -> list[Any]:
        chosen = np.asarray(value, np.float32)
        if not space.contains(chosen):
            raise Mismatch(f"{short_repr(value)} is not in {space!r}")
        parts = zip(np.split(chosen, ends), kinds, strict=True)
        # float32 may round a bound away from zero, beyond the float64 one.
        return [
            np.clip(part.reshape(one.shape).astype(one.dtype), one.low, one.high)
            for part, one in parts
        ]

    return space, split
