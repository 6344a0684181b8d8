"""The smallest environment: count to a number."""

from __future__ import annotations

from dataclasses import dataclass

import envweave as ew


@dataclass
class CounterAction(ew.Action):
    """Add `delta` to the counter."""

    delta: int


@dataclass
class CounterObservation(ew.Observation):
    """What the counter shows."""

    value: int


class CounterEnv(ew.Environment):
    """Count up to `done_at`; the reward of a step is the number it added."""

    copyable = True

    def __init__(self, done_at: int = 3) -> None:
        self.done_at = done_at
        self._value = 0

    def reset(self, *, seed: int | None = None) -> CounterObservation:  # noqa: ARG002 - not random
        """Start at 0, whatever the seed: nothing here is random."""
        self._value = 0
        return CounterObservation(self._value)

    def step(self, action: CounterAction) -> CounterObservation:
        """Add to the counter, and end the episode at `done_at` or beyond."""
        self._value += action.delta
        return CounterObservation(
            self._value, reward=float(action.delta), done=self._value >= self.done_at
        )
