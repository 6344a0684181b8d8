"""LineWorld: walk along a line to the goal at its left or right end."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated, Literal

import envweave as ew

LEFT: Literal[-1] = -1
RIGHT: Literal[1] = 1


@dataclass
class LineWorldAction(ew.Action):
    """Move one place: −1 to the left, 1 to the right."""

    move: Literal[-1, 1]


@dataclass
class LineWorldObservation(ew.Observation):
    """What the agent sees.

    Attributes:
        position: Its position, from −1 at the left end to 1 at the right.
        goal: The end where the goal is, −1 or 1.
    """

    position: Annotated[float, ew.Bounds(-1, 1)]
    goal: Literal[-1, 1]


@dataclass(kw_only=True)
class LineWorldState(ew.State):
    """The state of the world: positions are counted from 0 at the left end."""

    place: int
    goal_place: int


class LineWorldEnv(ew.Environment):
    """Walk along a line to the goal at its left or right end, depending on the seed.

    The goal earns 1 and the other end −1; both end the episode. Every step costs 0.01, and
    after `max_steps` of them the episode is truncated. The agent starts in the middle half.
    The last observation has the metric `success`.
    """

    copyable = True
    step_cost = 0.01

    def __init__(self, size: int = 15, max_steps: int = 30) -> None:
        if size < 3:
            raise ew.errors.OptionError(f"size must be >= 3, got {size!r}.")
        if max_steps < 1:
            raise ew.errors.OptionError(f"max_steps must be >= 1, got {max_steps!r}.")
        self.size = size
        self.max_steps = max_steps
        self._place = size // 2
        self._goal: Literal[-1, 1] = RIGHT
        self._taken = 0

    def reset(self, *, seed: int | None = None) -> LineWorldObservation:
        """Draw the goal's side and the start."""
        rng = random.Random(seed)  # noqa: S311 - a world, not a secret
        margin = max(1, self.size // 4)
        self._goal = rng.choice((LEFT, RIGHT))
        self._place = rng.randrange(margin, self.size - margin)
        self._taken = 0
        return self._observe()

    def step(self, action: LineWorldAction) -> LineWorldObservation:
        """Move, and end the episode at either end of the line."""
        self._place += action.move
        self._taken += 1
        seen = self._observe()
        seen.reward = -self.step_cost
        seen.done = self._place in (0, self.size - 1)
        seen.truncated = not seen.done and self._taken >= self.max_steps
        if seen.done:
            seen.reward += 1.0 if self._place == self._goal_place else -1.0
        if seen.done or seen.truncated:
            seen.metadata["metrics"] = {"success": float(self._place == self._goal_place)}
        return seen

    def solution(self) -> LineWorldAction:
        """Return a step towards the goal."""
        return LineWorldAction(self._goal)

    @property
    def state(self) -> LineWorldState:
        """The positions of the agent and the goal."""
        return LineWorldState(place=self._place, goal_place=self._goal_place)

    @property
    def _goal_place(self) -> int:
        return 0 if self._goal == LEFT else self.size - 1

    def _observe(self) -> LineWorldObservation:
        return LineWorldObservation(2 * self._place / (self.size - 1) - 1, self._goal)
