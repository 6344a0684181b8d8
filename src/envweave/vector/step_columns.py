"""What many authors' steps returned, split into columns.

A few passes in C find that all rows are ordinary; only if one is not are rows checked one by one.
For 256 rows that is half the cost of checking each row.
"""

from __future__ import annotations

import operator
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import isnan, nan
from typing import Any, NamedTuple, TypeAlias, final

import msgspec
import numpy as np
from numpy.typing import NDArray

from envweave.session.snapshot import snapshot_info
from envweave.types import Observation, StepResult

Rare: TypeAlias = dict[int, Exception | None]
"""The rows that their sessions must conclude, with what their authors' code raised, if it did."""

BLANK: tuple[Any, ...] = (None, nan, False, False, {})
"""Takes the place of the outcome of a step that raised."""

_NUMBERS = (float, int, np.floating, np.integer, np.bool_)
_PARTS = operator.attrgetter("reward", "done", "truncated", "metadata")
# Compares flags in one go, and strictly: only bools are encoded as bools.
_pack = msgspec.msgpack.Encoder().encode


class StepColumns(NamedTuple):
    """The ordinary parts of many steps. In the rows of `rare` they mean nothing.

    Attributes:
        observations: The authors' own objects.
        rewards: A float for each row.
        infos: Those that are not empty; authors hold no reference to them.
    """

    observations: Sequence[Any]
    rewards: NDArray[np.float64]
    infos: Mapping[int, dict[str, Any]]


@final
class NonEmptyInfos(Mapping[int, dict[str, Any]]):
    """The infos that are not empty, by row."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self._rows = rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        if 0 <= row < len(self._rows) and self._rows[row]:
            return self._rows[row]
        raise KeyError(row)

    def __iter__(self) -> Iterator[int]:
        return (i for i, info in enumerate(self._rows) if info)

    def __len__(self) -> int:
        return len(list(iter(self)))


_NO_INFOS: Mapping[int, dict[str, Any]] = {}


def split_outcomes(outcomes: list[Any], rare: Rare) -> StepColumns:
    """Return the columns of these outcomes, and add to `rare` the rows that are not ordinary.

    Where none is added and there are infos, the list is emptied.
    """
    observations, earned, terminated, truncated, infos = _split(outcomes, rare)
    try:
        is_quiet = _pack((terminated, truncated)) == _quiet(len(terminated))
    except Exception:  # noqa: BLE001 - whatever an author takes for a flag
        is_quiet = False
    if not is_quiet:
        for i, flags in enumerate(zip(terminated, truncated, strict=True)):
            if flags[0] is not False or flags[1] is not False:
                _note(rare, i, all(map(_is_false, flags)))
    rewards = _numbers(earned, rare)
    if isnan(sum(rewards)):  # also of inf and -inf, which is harmless
        for i, reward in enumerate(rewards):
            _note(rare, i, not isnan(reward))
    return StepColumns(observations, np.frombuffer(rewards), _keep_infos(infos, outcomes, rare))


def _split(outcomes: Sequence[Any], rare: Rare) -> Sequence[Sequence[Any]]:
    """Return observations, rewards, two flags and infos, each for all rows."""
    kinds = list(map(type, outcomes))
    try:
        if kinds.count(tuple) == len(kinds):
            parts = tuple(zip(*outcomes, strict=True))
            if len(parts) == 5:
                return parts
        elif all(issubclass(kind, Observation) for kind in set(kinds)):
            return tuple(outcomes), *zip(*map(_PARTS, outcomes), strict=True)
    except Exception:  # noqa: BLE001, S110 - an author's property, or tuples of many lengths
        pass  # found again row by row
    return list(zip(*[_row(i, one, rare) for i, one in enumerate(outcomes)], strict=True))


def _row(i: int, outcome: Any, rare: Rare) -> tuple[Any, ...]:
    try:
        if type(outcome) is tuple and len(outcome) == 5:
            return outcome
        if isinstance(outcome, Observation):
            return outcome, *_PARTS(outcome)
        if type(outcome) is StepResult and outcome.end is None and not outcome.events:
            return tuple(outcome)
    except Exception as error:  # noqa: BLE001 - an author's property
        rare.setdefault(i, error)
    rare.setdefault(i, None)
    return BLANK


@lru_cache
def _quiet(count: int) -> bytes:
    return _pack(((False,) * count, (False,) * count))


def _is_false(flag: Any) -> bool:
    return flag is False or (type(flag) is np.bool_ and not flag)


def _numbers(earned: Sequence[Any], rare: Rare) -> array[float]:
    try:
        return array("d", earned)  # as `float` does, but not from text
    except Exception:  # noqa: BLE001 - whatever an author takes for a reward
        return array("d", [_number(i, one, rare) for i, one in enumerate(earned)])


def _number(i: int, reward: Any, rare: Rare) -> float:
    if isinstance(reward, _NUMBERS):
        try:
            return float(reward)
        except OverflowError:
            pass  # a huge int; its session reports it
    rare.setdefault(i, None)
    return nan


def _keep_infos(
    infos: Sequence[Any], outcomes: list[Any], rare: Rare
) -> Mapping[int, dict[str, Any]]:
    try:
        if not any(infos):
            return _NO_INFOS
        if set(map(type, infos)) == {dict}:
            keys = set().union(*infos)
            if "reward_parts" not in keys and "action_mask" not in keys:
                if not rare:
                    # An info that nothing else refers to needs no copy: a third of the cost.
                    outcomes.clear()
                    if max(map(sys.getrefcount, infos)) <= UNSHARED_IN_COLUMN:
                        return NonEmptyInfos(infos)
                return NonEmptyInfos(list(map(dict.copy, infos)))
    except Exception:  # noqa: BLE001, S110 - whatever an author takes for an info
        pass  # found again row by row
    return NonEmptyInfos([_info(i, info, rare) for i, info in enumerate(infos)])


def _info(i: int, info: Any, rare: Rare) -> dict[str, Any]:
    try:
        if not info:
            return {}
        if type(info) is dict and "reward_parts" not in info:
            return snapshot_info(info)
        rare.setdefault(i, None)
    except Exception as error:  # noqa: BLE001 - from an author's `__bool__` or `__len__`
        rare.setdefault(i, error)
    return {}


def _note(rare: Rare, i: int, is_ordinary: bool) -> None:  # noqa: FBT001
    if not is_ordinary:
        rare.setdefault(i, None)


def _unshared_in_column() -> int:
    """Return the reference count of an object that only a column refers to."""
    column = ({"held": 1}, {"held": 2})
    return max(map(sys.getrefcount, column))


UNSHARED_IN_COLUMN = _unshared_in_column()
