"""Batches of environments with several agents: columns by agent."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from envweave.types import AgentEnd, NeedAction, ResetResult, StepResult
from envweave.vector.batch import ResetBatch, RowStatus, StepBatch, tick_of
from envweave.vector.columns import Columns

Needs = Sequence[NeedAction[Any]]


class Slots(NamedTuple):
    """The status of agents, with a row for each environment and a slot for each agent.

    It is never changed.

    Attributes:
        agents: The agent of each slot.
        current: The columns of what each agent is to act on.
        alive: Which agents take part.
        to_act: Which agents must act.
        needs: The same for each row, as its environment emitted it.
    """

    agents: tuple[str, ...]
    current: dict[str, Columns]
    alive: NDArray[np.bool_]
    to_act: NDArray[np.bool_]
    needs: Sequence[Needs]


class AgentStep(NamedTuple):
    """What one step did, in its own episode.

    Attributes:
        successor: The columns of the observation that the step led each agent to.
        present: Which agents took part, including new ones.
        acted: Which agents have acted in the episode, and had not left before this step.
    """

    successor: dict[str, Columns]
    present: NDArray[np.bool_]
    acted: NDArray[np.bool_]


@final
class AgentResetBatch(ResetBatch):
    """The outcome of a reset of environments with several agents.

    It has the columns of an `AgentStepBatch`, as a `ResetBatch` has those of a `StepBatch`.

    Attributes:
        possible_agents: The agent of each slot, in the columns by environment and agent.
    """

    def __init__(
        self,
        began: Mapping[int, ResetResult[Any]],
        others: Mapping[int, RowStatus],
        idle: Collection[int],
        slots: Slots,
    ) -> None:
        super().__init__(began, others, idle, slots.current)
        self._slots = slots
        self.possible_agents = slots.agents

    @cached_property
    def alive(self) -> NDArray[np.bool_]:
        """Which agents take part."""
        return self._slots.alive.copy()

    @cached_property
    def to_act(self) -> NDArray[np.bool_]:
        """Which agents each environment asks for an action now."""
        return self._slots.to_act.copy()

    @cached_property
    def action_mask(self) -> dict[str, Any]:
        """Which actions are legal, by agent, as in `AgentStepBatch.action_mask`."""
        return _masks(self._slots)

    @property
    def reward(self) -> NDArray[np.float64]:
        """NaN everywhere: no step was taken."""
        return np.full(self._slots.alive.shape, math.nan)

    @property
    def earned(self) -> NDArray[np.float64]:
        """NaN everywhere: no action has an outcome yet."""
        return self.reward

    @property
    def settled(self) -> NDArray[np.bool_]:
        """Nowhere."""
        return np.zeros(self._slots.alive.shape, np.bool_)

    @property
    def terminated(self) -> NDArray[np.bool_]:
        """Nowhere."""
        return np.zeros(self._slots.alive.shape, np.bool_)

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """Nowhere."""
        return np.zeros(self._slots.alive.shape, np.bool_)

    @property
    def bootstrap(self) -> NDArray[np.bool_]:
        """Where an agent takes part."""
        return self.alive.copy()


@final
class AgentStepBatch(StepBatch):
    """The outcome of one step of many environments with several agents.

    `current` and `successor` are dicts by agent ID, each with that agent's columns over the
    environments. Where an agent takes no part its columns hold zeros, and `None` in lists; in
    the step in which it leaves, they hold its last observation. Columns with one value per agent
    have a row for each environment and a slot for each of `possible_agents`. `done`, `valid`,
    `needs_reset` and the names of the episode have one value per environment.

    Attributes:
        possible_agents: The agent of each slot.
    """

    def __init__(self, batch: StepBatch, slots: Slots, step: AgentStep) -> None:
        super().__init__(tick_of(batch), slots.current)  # the same batch, by agent
        self._slots = slots
        self._step = step
        self.possible_agents = slots.agents

    @cached_property
    def successor(self) -> dict[str, Columns]:
        """What to learn from: each agent's next observation, the final one at its end.

        An agent without a new observation keeps its last one.
        """
        return {agent: self._export(columns) for agent, columns in self._step.successor.items()}

    @cached_property
    def alive(self) -> NDArray[np.bool_]:
        """Which agents take part now, and observe what `current` holds."""
        return self._slots.alive.copy()

    @cached_property
    def to_act(self) -> NDArray[np.bool_]:
        """Which agents each environment asks now: the next step takes their actions."""
        return self._slots.to_act.copy()

    @cached_property
    def action_mask(self) -> dict[str, Any]:
        """Which actions are legal, by agent: an array of bools with a row for each environment.

        It is true throughout where the agent must not act, or its environment has no mask;
        `None` for an agent for which no environment has a mask; a list where masks are not
        arrays of one shape.
        """
        return _masks(self._slots)

    @cached_property
    def reward(self) -> NDArray[np.float64]:
        """Each agent's reward; NaN where it has none, or it is not scored yet or not valid."""
        agents = self._slots.agents
        rows = [[result.reward.get(agent) for agent in agents] for result in self]
        return np.array(rows, np.float64).reshape(self._slots.alive.shape)

    @cached_property
    def settled(self) -> NDArray[np.bool_]:
        """Where the outcome of an agent's last action is known, and may be learned from.

        The agent must act again, has left, or its episode is over; `earned` is the reward of
        the action, and `successor` the observation that it led to. Where all agents act at once
        that is so after every step. In turn-based games it is later, when others have moved.
        """
        step, slots = self._step, self._slots
        acts_again = slots.to_act & ~self.done[:, None]
        left = step.present & (self.terminated | self.truncated)
        settled: NDArray[np.bool_] = step.acted & (acts_again | left) & self.valid[:, None]
        return settled

    @cached_property
    def earned(self) -> NDArray[np.float64]:
        """The reward of each agent since it last acted, where it must act again or has left.

        NaN elsewhere, and where nothing was scored since.
        """
        agents = {agent: slot for slot, agent in enumerate(self._slots.agents)}
        earned = np.full(self._slots.alive.shape, math.nan)
        for i, result in enumerate(self):
            rewards = [(need.agent_id, need.reward) for need in self._slots.needs[i]]
            rewards += [(end.agent_id, end.reward) for end in _agent_ends(result)]
            rewards += [] if result.end is None else result.end.rewards.items()
            for agent, reward in rewards:
                earned[i, agents[agent]] = math.nan if reward is None else reward
        return earned

    @cached_property
    def terminated(self) -> NDArray[np.bool_]:
        """Where the task ended for an agent in this step."""
        return self._ends("terminated")

    @cached_property
    def truncated(self) -> NDArray[np.bool_]:
        """Where a limit ended an agent's part in this step."""
        return self._ends("truncated")

    def _ends(self, name: str) -> NDArray[np.bool_]:
        agents = self._slots.agents
        marks = np.zeros(self._slots.alive.shape, np.bool_)
        for i, result in enumerate(self):
            if result.end is not None:
                # The flags name agents with an observation or a reward; the end is for all.
                rest = (result.end.reason == "terminated") is (name == "terminated")
                flags = getattr(result, name)
                marks[i] = [flags.get(agent, rest) for agent in agents]
            else:
                for end in _agent_ends(result):
                    marks[i, agents.index(end.agent_id)] = getattr(end, name)
        return marks & self._step.present

    @property
    def done(self) -> NDArray[np.bool_]:
        """Where the episode is over, one bool per environment."""
        return self._mark(lambda result: result.done)

    @property
    def bootstrap(self) -> NDArray[np.bool_]:
        """Where the value of `successor` counts: valid, the agent took part, not terminated."""
        return self.valid[:, None] & self._step.present & ~self.terminated


def _agent_ends(result: StepResult[Any]) -> list[AgentEnd[Any]]:
    return [event for event in result.events if isinstance(event, AgentEnd)]


def _masks(slots: Slots) -> dict[str, Any]:
    by_agent: dict[str, dict[int, Any]] = {agent: {} for agent in slots.agents}
    for i, needs in enumerate(slots.needs):
        for need in needs:
            if need.action_mask is not None:
                by_agent[need.agent_id][i] = need.action_mask
    return {agent: _mask_column(masks, len(slots.needs)) for agent, masks in by_agent.items()}


def _mask_column(masks: Mapping[int, Any], count: int) -> Any:
    if not masks:
        return None
    given = list(masks.values())
    if {type(mask) for mask in given} == {np.ndarray} and len({mask.shape for mask in given}) == 1:
        column = np.ones((count, *given[0].shape), np.bool_)
        column[list(masks)] = given
        return column
    return [masks.get(i) for i in range(count)]
