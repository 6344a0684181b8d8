"""What an author returned, with the session's transform applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envweave.environment.outcome import (
    flag,
    read_agents_reset,
    read_agents_step,
    read_reset,
)
from envweave.transforms import apply_to_each, apply_transform
from envweave.types import Observation, StepResult

Transforming = Callable[[Observation], Observation] | None


def read_start(outcome: Any, transform: Transforming) -> tuple[Any, dict[str, Any]]:
    """Return the first observation of an episode and its info."""
    read = read_reset(outcome)
    if transform is None:
        return read.observation, read.info
    observation = apply_transform(transform, read.observation)
    return observation, {**read.info, **observation.metadata}


def read_agents_start(
    outcome: Any, transform: Transforming
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the first observations of several agents and their infos."""
    read = read_agents_reset(outcome)
    if transform is None:
        return read.observation, read.info
    observations = apply_to_each(transform, read.observation)
    return observations, {agent: one.metadata for agent, one in observations.items()}


def read_result(
    outcome: StepResult[Any], transform: Transforming
) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    """Take apart a result that an author or a wrapper made."""
    observation, info = outcome.observation, outcome.info
    if transform is None:
        return observation, outcome.reward, outcome.terminated, outcome.truncated, info
    if isinstance(observation, Observation):
        # A wrapper's word on the end, which the observation inside does not know.
        observation.done = flag(outcome.terminated, "terminated")
        observation.truncated = flag(outcome.truncated, "truncated")
    observation = apply_transform(transform, observation)
    return (
        observation,
        observation.reward,
        observation.done,
        observation.truncated,
        {**info, **observation.metadata},
    )


def read_agents(outcome: Any, transform: Transforming) -> StepResult[dict[str, Any]]:
    """Return one step of several agents, every part keyed by agent."""
    read = read_agents_step(outcome)
    if transform is not None:
        read.observation = apply_to_each(transform, read.observation)
        read.reward = {agent: one.reward for agent, one in read.observation.items()}
        read.info = {agent: one.metadata for agent, one in read.observation.items()}
    return read
