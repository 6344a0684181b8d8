"""The status of the agents of many environments: which take part, must act, and saw what."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from envweave.codec import AgentsSpec
from envweave.types import AgentEnd, ResetResult, StepResult
from envweave.vector.agents.batch import AgentStep, AgentStepBatch, Needs, Slots
from envweave.vector.agents.columns import ByAgent, blank, layout_by_agent, put, take
from envweave.vector.batch import StepBatch
from envweave.vector.columns import Columns


@final
class AgentRows:
    """The agents of a vector's rows, tracked through its environments' results.

    Attributes:
        agents: All agents that may ever take part, in the order of the slots.
    """

    def __init__(self, agents: tuple[str, ...], num_envs: int) -> None:
        self.agents = agents
        self._slot = {agent: slot for slot, agent in enumerate(agents)}
        self._everyone = list(range(num_envs))
        self._layouts: Mapping[str, Any] = {}
        # Batches refer to these, so that none is ever written to in place.
        shape = (num_envs, len(agents))
        self._current: dict[str, Columns] = {}
        self._alive: NDArray[np.bool_] = np.zeros(shape, np.bool_)
        self._to_act: NDArray[np.bool_] = np.zeros(shape, np.bool_)
        self._acted: NDArray[np.bool_] = np.zeros(shape, np.bool_)
        self._needs: list[Needs] = [()] * num_envs

    def fix(self, spec: AgentsSpec, shown: Sequence[Mapping[str, Any]]) -> ByAgent:
        """Fix the columns, from the observations of the first reset of all."""
        layout = layout_by_agent({agent: spec[agent] for agent in self.agents}, shown)
        self.adopt(layout)
        return layout

    def adopt(self, layout: ByAgent) -> None:
        """Fix the columns as those of another vector."""
        self._layouts = layout.agents
        count = len(self._everyone)
        self._current = {agent: blank(self._layouts[agent], count) for agent in self.agents}

    def to_act(self, ids: Sequence[int]) -> NDArray[np.bool_]:
        """Return which agents must act in these environments, by row and slot."""
        return self._to_act[list(ids)]

    def acted(self, row: int) -> frozenset[str]:
        """Return the agents of a row that have acted in its episode."""
        return frozenset(one for one in self.agents if self._acted[row, self._slot[one]])

    def restart(
        self, began: Mapping[int, ResetResult[Any]], acted: Mapping[int, Collection[str]]
    ) -> None:
        """Record the first observations of new episodes, and who has acted in restored ones."""
        if not began or not self._layouts:
            return
        ids, results = list(began), list(began.values())
        shown = [result.observation for result in results]
        seen = np.zeros((len(ids), len(self.agents)), np.bool_)
        current = {a: self._filled(a, shown, seen[:, k]) for a, k in self._slot.items()}
        marks = np.array([[a in acted.get(i, ()) for a in self.agents] for i in ids], np.bool_)
        self._store(ids, current, seen, marks, [result.needs for result in results])

    def slots(self, idle: Collection[int]) -> Slots:
        """Return the status of all; where no episode is running, no agent takes part."""
        live = np.array([i not in idle for i in self._everyone], np.bool_)[:, None]
        needs = [() if i in idle else self._needs[i] for i in self._everyone]
        return Slots(self.agents, self._current, self._alive & live, self._to_act & live, needs)

    def record(self, batch: StepBatch) -> AgentStepBatch:
        """Record one step of some environments, and return it as columns."""
        ids, results = batch.ids.tolist(), list(batch)
        before = self._alive[ids]
        acted = self._acted[ids] | self._to_act[ids]
        shown = [result.observation for result in results]
        seen = np.zeros_like(before)
        successor = {
            agent: self._seen(agent, ids, shown, seen[:, slot], before[:, slot])
            for agent, slot in self._slot.items()
        }
        present = before | seen
        alive = present.copy()
        for i, result in enumerate(results):
            if result.done:
                alive[i] = False
            elif result.events:
                gone = [e.agent_id for e in result.events if isinstance(e, AgentEnd)]
                alive[i, [self._slot[agent] for agent in gone]] = False
        step = AgentStep(successor, present, acted)
        current = self._renewed(successor, results, alive)
        needs = [result.needs for result in results]
        done = np.array([result.done for result in results], np.bool_)
        slots = self._store(ids, current, alive, acted & ~done[:, None], needs)
        return AgentStepBatch(batch, slots, step)

    def _filled(
        self, agent: str, shown: Sequence[Mapping[str, Any]], seen: NDArray[np.bool_]
    ) -> Columns:
        """Return one agent's columns, blank without an observation; set `seen` where it has one."""
        before = np.zeros(len(shown), np.bool_)
        return self._seen(agent, None, shown, seen, before)

    def _seen(
        self,
        agent: str,
        ids: list[int] | None,
        shown: Sequence[Mapping[str, Any]],
        seen: NDArray[np.bool_],
        before: NDArray[np.bool_],
    ) -> Columns:
        """Return one agent's columns: its new observation, else its last one, else blank.

        Args:
            agent: Whose columns.
            ids: The environment of each row, if any of them has earlier observations.
            shown: The observations of each environment, by agent.
            seen: Set where the agent has a new observation.
            before: Where it took part before.
        """
        layout = self._layouts[agent]
        rows = [i for i, observations in enumerate(shown) if agent in observations]
        seen[rows] = True
        values = layout.gather([shown[i][agent] for i in rows]) if rows else None
        if rows and len(rows) == len(shown):
            return values
        columns = blank(layout, len(shown))
        kept = np.flatnonzero(before & ~seen).tolist()
        if kept and ids is not None:
            put(columns, kept, take(self._current[agent], [ids[i] for i in kept]))
        if rows:
            put(columns, rows, values)
        return columns

    def _renewed(
        self,
        successor: dict[str, Columns],
        results: Sequence[StepResult[Any]],
        alive: NDArray[np.bool_],
    ) -> dict[str, Columns]:
        """Return what to act on: `successor`, with other rows where a new episode has begun."""
        fresh = [i for i, result in enumerate(results) if result.ready is not None]
        if not fresh:
            return successor
        initial = [results[i].current for i in fresh]
        seen = np.zeros((len(fresh), len(self.agents)), np.bool_)
        everyone = list(range(len(results)))
        current = {}
        for agent, slot in self._slot.items():
            current[agent] = take(successor[agent], everyone)
            put(current[agent], fresh, self._filled(agent, initial, seen[:, slot]))
        alive[fresh] = seen
        return current

    def _store(
        self,
        ids: list[int],
        current: dict[str, Columns],
        alive: NDArray[np.bool_],
        acted: NDArray[np.bool_],
        needs: Sequence[Needs],
    ) -> Slots:
        """Record the status of some environments, and return it."""
        to_act = np.zeros_like(alive)
        acting = [(i, self._slot[n.agent_id]) for i, row in enumerate(needs) for n in row]
        if acting:
            to_act[tuple(np.array(acting).T)] = True
        if ids == self._everyone:
            self._current, self._needs = current, list(needs)
            self._alive, self._to_act, self._acted = alive, to_act, acted
        else:
            self._current = {
                agent: _changed(columns, ids, current[agent], self._everyone)
                for agent, columns in self._current.items()
            }
            self._needs = list(self._needs)
            for i, row in zip(ids, needs, strict=True):
                self._needs[i] = row
            self._alive, self._to_act, self._acted = (
                _changed(column, ids, rows, self._everyone)
                for column, rows in (
                    (self._alive, alive),
                    (self._to_act, to_act),
                    (self._acted, acted),
                )
            )
        return Slots(self.agents, current, alive, to_act, needs)


def _changed(columns: Columns, ids: list[int], rows: Columns, everyone: list[int]) -> Columns:
    changed = take(columns, everyone)
    put(changed, ids, rows)
    return changed
