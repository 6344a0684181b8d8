"""Which environments a caller names, and which seed and task each of them gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from envweave.codec.spec import short
from envweave.errors import EnvWeaveError, OptionError, SeedError
from envweave.session.seeds import read_seed
from envweave.types import Task


def read_ids(ids: Any, num_envs: int) -> list[int]:
    """Return the numbers of the environments that a caller names.

    Raises:
        OptionError: They are no numbers, or name nobody, or one twice.
    """
    if not _is_sequence(ids):
        such = int(ids) if isinstance(ids, int | np.integer) else 0
        raise OptionError(
            f"ids={short(ids)} is no list of environments. Pass a list or an array of their "
            f"numbers, such as ids=[{such}]."
        )
    chosen = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    for i in chosen:
        if isinstance(i, bool | np.bool_):
            raise OptionError(
                f"ids={short(chosen)} is a mask; ids are numbers. Use ids=np.flatnonzero(mask)."
            )
        if not isinstance(i, int | np.integer):
            raise OptionError(
                f"ids={short(chosen)} must be whole numbers from 0 to {num_envs - 1}, but "
                f"{short(i)} is none."
            )
    if len(set(chosen)) < len(chosen) or not all(0 <= i < num_envs for i in chosen):
        raise OptionError(
            f"ids={short(chosen)} must be different numbers from 0 to {num_envs - 1}."
        )
    return [int(i) for i in chosen]


Wanted: TypeAlias = Mapping[int, Mapping[str, Any]]
"""What each environment's reset is asked for, by its number: `seed`, `task` and `options`."""


def read_wishes(
    ids: Sequence[int], seed: Any, task: Any, options: Mapping[str, Any] | None
) -> Wanted:
    """Return what each environment's reset is asked for, from what a caller asked of all.

    Raises:
        SeedError: It is no seed, or there are too few or too many.
        OptionError: There are too few or too many tasks.
    """
    rows = zip(ids, _read_seeds(seed, ids), _read_tasks(task, ids), strict=True)
    return {i: {"seed": s, "task": t, "options": options} for i, s, t in rows}


def _read_seeds(seed: Any, ids: Sequence[int]) -> list[int | None]:
    """From one seed, environment i gets `seed + i`."""
    if seed is None:
        return [None] * len(ids)
    if _is_sequence(seed):
        return _one_each(seed, ids, "seed", SeedError)
    base = read_seed(seed)
    return [base + i for i in ids]


def _read_tasks(task: Any, ids: Sequence[int]) -> list[Task | str | None]:
    """One task is for all of them."""
    return _one_each(task, ids, "task", OptionError) if _is_sequence(task) else [task] * len(ids)


def _is_sequence(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _one_each(
    values: Any, ids: Sequence[int], name: str, refusal: type[EnvWeaveError]
) -> list[Any]:
    given = values.tolist() if isinstance(values, np.ndarray) else list(values)
    if len(given) != len(ids):
        raise refusal(f"{name}: {len(given)} were given for {len(ids)} environments.")
    return given
