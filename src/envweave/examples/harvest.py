"""Harvest: several agents live off one stock that regrows, and may deplete it together."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated

import envweave as ew

MAX_TAKE = 5
"""The most that one agent can take in a round."""

Share = Annotated[float, ew.Bounds(0, 1)]


@dataclass
class HarvestAction(ew.Action):
    """How much to take of the stock."""

    take: Annotated[int, ew.Bounds(0, MAX_TAKE)]


@dataclass
class HarvestObservation(ew.Observation):
    """What an agent sees, each as a share of its maximum.

    Attributes:
        stock: The stock to take from.
        energy: The energy that keeps this agent alive.
        taken: How much all agents together took in the last round.
        alive: How many agents are left.
    """

    stock: Share
    energy: Share
    taken: Share
    alive: Share


@dataclass(kw_only=True)
class HarvestState(ew.State):
    """The state of the commons, in units of the harvest."""

    stock: float
    energy: dict[str, float]


class HarvestEnv(ew.MultiAgentEnvironment):
    """Share a stock that regrows: what one agent takes now, no agent has later.

    In a round all agents choose at once how much to take, which is their reward; if they request
    more than there is, each gets the same share of its request. Then the stock regrows, most when
    it is half full, and more or less depending on the weather. Two units each are sustainable and
    five each deplete the stock within a few rounds, yet five are better for one agent while the
    others take two. That is the dilemma.

    A round costs each agent one unit of energy and adds what it took. An agent without energy
    starves: that costs it 10, and it leaves while the others continue. The episode ends when less
    than one unit of the stock is left, or is truncated after `max_rounds`. The last observation
    has the metrics `harvested`, `rounds` and `starved`.
    """

    copyable = True
    capacity_each = 25.0
    growth = 0.4
    most_energy = 10.0
    cost_of_starving = 10.0

    def __init__(self, num_agents: int = 4, max_rounds: int = 50) -> None:
        if num_agents < 2:
            raise ew.errors.OptionError(f"num_agents must be >= 2, got {num_agents!r}.")
        if max_rounds < 1:
            raise ew.errors.OptionError(f"max_rounds must be >= 1, got {max_rounds!r}.")
        self.possible_agents = tuple(f"farmer_{i}" for i in range(num_agents))
        self.capacity = self.capacity_each * num_agents
        self.max_rounds = max_rounds
        self._weather = random.Random()  # noqa: S311 - a world, not a secret
        self._stock = self._taken = 0.0
        self._energy: dict[str, float] = {}  # the keys are the living agents
        self._harvested: dict[str, float] = {}
        self._rounds = 0

    def reset(self, *, seed: int | None = None) -> dict[str, HarvestObservation]:
        """Draw the stock and the energy of every agent."""
        self._weather = random.Random(seed)  # noqa: S311 - a world, not a secret
        self._stock = self._weather.uniform(0.5, 0.8) * self.capacity
        self._energy = {agent: float(self._weather.randint(3, 6)) for agent in self.possible_agents}
        self._harvested = dict.fromkeys(self.possible_agents, 0.0)
        self._taken = 0.0
        self._rounds = 0
        return {agent: self._observe(agent) for agent in self._energy}

    def step(self, actions: dict[str, HarvestAction]) -> dict[str, HarvestObservation]:
        """Let all living agents harvest at once."""
        self._rounds += 1
        taken = self._harvest({agent: action.take for agent, action in actions.items()})
        is_ruined = self._stock < 1
        is_over = is_ruined or self._rounds >= self.max_rounds
        self._regrow()
        starving = {agent for agent in taken if self._feed(agent, taken[agent])}
        for agent in starving:
            del self._energy[agent]
        observations = {}
        for agent, amount in taken.items():
            observations[agent] = observation = self._observe(agent)
            parts = {"harvest": amount}
            if agent in starving:
                parts["starving"] = -self.cost_of_starving
            observation.reward = sum(parts.values())
            observation.done = is_ruined or agent in starving
            observation.truncated = is_over and not observation.done
            observation.metadata["reward_parts"] = parts
            if observation.done or observation.truncated:
                observation.metadata["metrics"] = {
                    "harvested": self._harvested[agent],
                    "rounds": float(self._rounds),
                    "starved": float(agent in starving),
                }
        return observations

    @property
    def state(self) -> HarvestState:
        """The stock, and the energy of the living agents."""
        return HarvestState(stock=self._stock, energy=dict(self._energy))

    def _harvest(self, requested: dict[str, int]) -> dict[str, float]:
        """Take the requested amounts, or the same share of each if there is not enough."""
        total = sum(requested.values())
        part = min(1.0, self._stock / total) if total else 0.0
        taken = {agent: amount * part for agent, amount in requested.items()}
        self._taken = total * part
        self._stock = max(0.0, self._stock - self._taken)
        return taken

    def _regrow(self) -> None:
        """Grow logistically: slowly when the stock is small, and when it is nearly full."""
        weather = self._weather.uniform(0.8, 1.2)
        room = 1 - self._stock / self.capacity
        self._stock = min(self.capacity, self._stock * (1 + self.growth * weather * room))

    def _feed(self, agent: str, taken: float) -> bool:
        """Feed an agent, and return whether it starves."""
        self._harvested[agent] += taken
        energy = min(self.most_energy, self._energy[agent] + taken) - 1
        self._energy[agent] = energy
        return energy <= 0

    def _observe(self, agent: str) -> HarvestObservation:
        most_taken = MAX_TAKE * len(self.possible_agents)
        return HarvestObservation(
            stock=self._stock / self.capacity,
            energy=self._energy.get(agent, 0.0) / self.most_energy,
            taken=self._taken / most_taken,
            alive=len(self._energy) / len(self.possible_agents),
        )
