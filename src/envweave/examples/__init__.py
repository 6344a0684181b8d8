"""Small environments to learn from, and programs that train on them."""

from __future__ import annotations

from envweave.examples.counter import CounterAction, CounterEnv, CounterObservation

__all__ = ["CounterAction", "CounterEnv", "CounterObservation"]
