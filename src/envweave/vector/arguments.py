"""The arguments of a `VectorEnv`: actions as rows or columns, ids, seeds and tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from envweave.codec import AgentsSpec, Spec
from envweave.codec.containers import DataclassSpec, PydanticSpec
from envweave.codec.spec import short_repr
from envweave.errors import ActionError, EnvWeaveError, OptionError, SeedError, suggest
from envweave.session.episodes import read_seed
from envweave.types import Task


def action_rows(actions: Any, num_envs: int, spec: Spec) -> list[Any]:
    """Return one action for each environment.

    Args:
        actions: A list of actions or dicts; a dict of columns; or one array, where an action
            is a number or array itself, or has one field.
        num_envs: How many there must be.
        spec: What one action is.

    Raises:
        ActionError: Their number or their form is wrong.
    """
    rows: list[Any]
    if isinstance(actions, np.ndarray):
        rows = _from_array(actions, num_envs, spec)
    elif isinstance(actions, Mapping):
        rows = _from_columns(actions, num_envs)
    elif isinstance(actions, Sequence) and not isinstance(actions, str | bytes):
        rows = list(actions)
    else:
        raise ActionError(
            f"actions must be a list, a dict of columns or an array, got {type(actions).__name__}"
        )
    if len(rows) != num_envs:
        raise ActionError(f"actions: got {len(rows)} for {num_envs} environments")
    return rows


def _from_array(array: NDArray[Any], num_envs: int, spec: Spec) -> list[Any]:
    if array.ndim == 0:
        raise ActionError(f"actions: got a 0-dimensional array for {num_envs} environments")
    values = array.tolist() if array.ndim == 1 else list(array)
    if not isinstance(spec, DataclassSpec | PydanticSpec):
        return values
    fields = [name for name in spec.fields if name != "metadata"]
    if len(fields) != 1:
        raise ActionError(
            f"actions: one array cannot fill the fields {', '.join(fields)}. Pass a dict "
            "of columns, or a list of actions."
        )
    return [{fields[0]: value} for value in values]


def agent_action_rows(
    actions: Any, to_act: NDArray[np.bool_], agents: tuple[str, ...], spec: AgentsSpec
) -> list[Any]:
    """Return a dict of actions by agent for each environment.

    Args:
        actions: A list with such a dict for each environment; a dict by agent of what
            `action_rows` takes, where the actions of agents that must not act are ignored;
            or one array with a row for each environment and a column for each agent.
        to_act: Which agents must act, by row and agent.
        agents: The agent of each column of `to_act`.
        spec: What one action of each agent is.

    Raises:
        ActionError: Their number or their form is wrong.
    """
    if isinstance(actions, np.ndarray):
        if actions.shape[:2] != to_act.shape:
            raise ActionError(
                f"actions: the shape of the array must begin with {to_act.shape}, for the "
                f"environments and the agents {', '.join(map(repr, agents))}, got "
                f"{actions.shape}. A dict with a column for each agent works too."
            )
        actions = {agent: actions[:, slot] for slot, agent in enumerate(agents)}
    if not isinstance(actions, Mapping):
        return action_rows(actions, len(to_act), spec)
    rows: list[dict[str, Any]] = [{} for _ in to_act]
    for agent, column in actions.items():
        if agent not in agents:
            raise ActionError(
                f"actions[{agent!r}]: unknown agent.{suggest(str(agent), agents)} A dict has a "
                f"column for each of {', '.join(map(repr, agents))}."
            )
        try:
            given = action_rows(column, len(to_act), spec[agent])
        except ActionError as error:
            raise ActionError(f"actions[{agent!r}]{str(error).removeprefix('actions')}") from None
        for i in np.flatnonzero(to_act[:, agents.index(agent)]).tolist():
            rows[i][agent] = given[i]
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
            pass  # a 0-dimensional array
    raise ActionError(
        f"actions.{name}: a dict of columns has one value per environment for each field, got "
        f"{short_repr(column)}. Pass {{{name!r}: [{short_repr(column)}] * {num_envs}}}, or a list "
        "of actions."
    )


def read_ids(ids: Any, num_envs: int) -> list[int]:
    """Return the indices of the environments that a caller names.

    Raises:
        OptionError: One is not an index of an environment, or is named twice.
    """
    if not _is_sequence(ids):
        such = int(ids) if isinstance(ids, int | np.integer) else 0
        raise OptionError(
            f"ids must be a list or an array of environment indices, such as ids=[{such}], got "
            f"{short_repr(ids)}."
        )
    chosen = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    for i in chosen:
        if isinstance(i, bool | np.bool_):
            raise OptionError(
                f"ids must be indices, got the mask {short_repr(chosen)}. Use "
                "ids=np.flatnonzero(mask)."
            )
        if not isinstance(i, int | np.integer):
            raise OptionError(
                f"ids must be integers from 0 to {num_envs - 1}, got {short_repr(i)} in "
                f"{short_repr(chosen)}."
            )
    if len(set(chosen)) < len(chosen) or not all(0 <= i < num_envs for i in chosen):
        raise OptionError(
            f"ids must be different integers from 0 to {num_envs - 1}, got {short_repr(chosen)}."
        )
    return [int(i) for i in chosen]


def read_row(row: Any, num_envs: int) -> int:
    """Return the index of the environment that a caller names.

    Raises:
        OptionError: It is not one.
    """
    is_index = isinstance(row, int | np.integer) and not isinstance(row, bool)
    if not is_index or not 0 <= row < num_envs:
        raise OptionError(
            f"row must be an integer from 0 to {num_envs - 1}, got {short_repr(row)}."
        )
    return int(row)


ResetKwargs: TypeAlias = Mapping[int, Mapping[str, Any]]
"""The keyword arguments of each environment's reset, by its index."""


def read_reset_kwargs(
    ids: Sequence[int], seed: Any, task: Any, options: Mapping[str, Any] | None
) -> ResetKwargs:
    """Return the arguments of each environment's reset, from those of a reset of all.

    Raises:
        SeedError: A seed is invalid, or there are too few or too many.
        OptionError: There are too few or too many tasks.
    """
    rows = zip(ids, _read_seeds(seed, ids), _read_tasks(task, ids), strict=True)
    return {i: {"seed": s, "task": t, "options": options} for i, s, t in rows}


def read_snapshots(snapshot: Any, ids: Sequence[int]) -> dict[int, Any]:
    """Return the snapshot of each environment: one for all, or one for each.

    Raises:
        OptionError: There are too few or too many.
    """
    if not _is_sequence(snapshot):
        return dict.fromkeys(ids, snapshot)
    return dict(zip(ids, _one_each(snapshot, ids, "snapshot", OptionError), strict=True))


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
        raise refusal(f"{name}: got {len(given)} for {len(ids)} environments.")
    return given
