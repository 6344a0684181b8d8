"""Columns of several agents: each agent has its own, laid out by its observations.

An agent that is not there at the first reset needs a layout too, and one that does not depend on
when it joins. It is made from the agent's spec; what the spec leaves open is a list.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from envweave.codec import Spec
from envweave.codec.arrays import ArraySpec
from envweave.codec.containers import DataclassSpec, DictSpec, PydanticSpec, shown_fields
from envweave.codec.scalars import BoolSpec, EnumSpec, FloatSpec, IntSpec
from envweave.errors import BadReturnError
from envweave.vector.columns import Arrays, Columns, Fields, Layout, Listed, Numbers, layout_of


@dataclasses.dataclass(frozen=True, slots=True)
class ByAgent:
    """How the observations of several agents are laid out in columns, by agent.

    Transports check against it, and pass each environment's dict of observations unchanged.
    """

    agents: Mapping[str, Layout]

    def check(self, value: Mapping[str, Any]) -> None:
        """Refuse an observation that its agent's columns cannot hold.

        Which agents may take part is the session's business.
        """
        for agent, observation in value.items():
            layout = self.agents.get(agent)
            if layout is not None:
                try:
                    layout.check(observation)
                except BadReturnError as error:
                    raise BadReturnError(f"{agent!r}: {error}") from None

    def gather(self, rows: Sequence[Any]) -> list[Any]:
        """Return a list of the rows."""
        return list(rows)


def layout_by_agent(specs: Mapping[str, Spec], shown: Sequence[Mapping[str, Any]]) -> ByAgent:
    """Choose the columns of each agent, at the first reset.

    Args:
        specs: The observation spec of each agent.
        shown: The observations of each environment, by agent.

    Raises:
        BadReturnError: An agent's observation is of another kind than in the environments
            before; environment and agent are named.
    """
    seen: dict[str, Layout] = {}
    for i, observations in enumerate(shown):
        for agent, observation in observations.items():
            try:
                if agent not in seen:
                    seen[agent] = layout_of(specs[agent], observation)
                seen[agent].check(observation)
            except BadReturnError as error:
                raise BadReturnError(f"Environment {i}, {agent!r}: {error}") from None
    layouts = dict(seen)
    for agent, spec in specs.items():
        if agent not in seen:
            twins = [layout for other, layout in seen.items() if specs[other] is spec]
            layouts[agent] = _declared(spec, twins[0] if twins else None)
    return ByAgent(layouts)


def _declared(spec: Spec, twin: Layout | None) -> Layout:
    """Return the columns that a spec alone determines; a list where it does not.

    Args:
        spec: The observation spec.
        twin: The columns of another agent with the same spec, whose dtypes are reused.
    """
    if isinstance(spec, DataclassSpec | PydanticSpec):
        return Fields(_each(shown_fields(spec), twin), operator.attrgetter, spec.cls)
    if isinstance(spec, DictSpec) and spec.fields is not None and not spec.optional:
        return Fields(_each(spec.fields, twin), operator.itemgetter, dict)
    if isinstance(spec, ArraySpec) and spec.shape is not None:
        if isinstance(twin, Arrays) and twin.shape == spec.shape:
            return twin
        return Listed() if spec.dtype is None else Arrays(spec.dtype, spec.shape)
    dtype = _number_type(spec)
    if dtype is None:
        return Listed()
    return twin if isinstance(twin, Numbers) else Numbers(np.dtype(dtype))


def _each(specs: Mapping[str, Spec], twin: Layout | None) -> dict[str, Layout]:
    twins = twin.columns if isinstance(twin, Fields) else {}
    return {name: _declared(spec, twins.get(name)) for name, spec in specs.items()}


def _number_type(spec: Spec) -> type[np.generic] | None:
    if isinstance(spec, IntSpec):
        return np.int64
    if isinstance(spec, FloatSpec):
        return np.float64
    if isinstance(spec, BoolSpec):
        return np.bool_
    if isinstance(spec, EnumSpec) and all(type(value) is int for value in spec.values):
        return np.int64
    return None


def blank(layout: Layout, count: int) -> Columns:
    """Return columns for rows without an observation: zeros, and `None` in lists."""
    if isinstance(layout, Fields):
        return {name: blank(column, count) for name, column in layout.columns.items()}
    if isinstance(layout, Numbers):
        return np.zeros(count, layout.dtype)
    if isinstance(layout, Arrays):
        return np.zeros((count, *layout.shape), layout.dtype)
    return [None] * count


def take(columns: Columns, rows: list[int]) -> Columns:
    """Return a copy of some rows of columns."""
    if isinstance(columns, dict):
        return {name: take(column, rows) for name, column in columns.items()}
    if isinstance(columns, list):
        return [columns[i] for i in rows]
    return columns[rows]


def put(columns: Columns, rows: list[int], values: Columns) -> None:
    """Write the rows of `values` into those rows of columns."""
    if isinstance(columns, dict):
        for name, column in columns.items():
            put(column, rows, values[name])
    elif isinstance(columns, list):
        for i, value in zip(rows, values, strict=True):
            columns[i] = value
    else:
        columns[rows] = values
