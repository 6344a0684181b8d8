"""What an author returned, in one form, with the session's transform applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envweave.environment.outcome import (
    check_parts,
    flag,
    number,
    read_agents_reset,
    read_agents_step,
    read_reset,
    read_step,
)
from envweave.errors import BadReturnError
from envweave.session.keeping import keep
from envweave.transforms import CompositeTransform, apply_transform
from envweave.types import Observation, ResetResult, StepResult

Transforming = Callable[[Observation], Observation] | None
Fitting = Callable[[Any], None] | None
"""Raises `BadReturnError` for what a vector's columns cannot take."""


def compose(first: Transforming, second: Transforming) -> Transforming:
    """Return one transform for two: the environment's own comes first."""
    if first is None or second is None:
        return first or second
    return CompositeTransform([first, second])


def read_start(outcome: Any, transform: Transforming) -> tuple[Any, dict[str, Any]]:
    """Return the observation and the info of a `reset`.

    Raises:
        BadReturnError: It says that the episode is over before it began.
    """
    if type(outcome) is tuple and transform is None and len(outcome) == 2:
        shown, info = outcome
        # The hot path of an autoreset: no result has to be made of it first.
        if type(info) is dict and not isinstance(shown, Observation):
            return shown, info
    read = read_reset(outcome)
    shown, info = read.observation, read.info
    if transform is not None:
        shown = apply_transform(transform, keep(shown))
        info = {**info, **shown.metadata}
    ends = isinstance(shown, Observation) and (shown.done is True or shown.truncated is True)
    if ends or read.end is not None:
        raise BadReturnError("reset() returned an episode that is over already.")
    return shown, info


def read_agents_start(
    outcome: Any, transform: Transforming, fits: Fitting
) -> ResetResult[dict[str, Any]]:
    """Return the outcome of a `reset` for several agents, every part keyed by agent."""
    read = read_agents_reset(outcome)
    if transform is not None:
        for agent, one in read.observation.items():
            shown = apply_transform(transform, keep(one))
            read.observation[agent], read.info[agent] = shown, shown.metadata
    if fits is not None:
        fits(read.observation)
    return read


def read_parts(
    outcome: Any, transform: Transforming
) -> tuple[Any, float | None, bool, bool, dict[str, Any]]:
    """Return the five parts of a step's outcome, checked."""
    read = read_step(outcome)
    observation, reward, info = read.observation, read.reward, _dict(read.info)
    terminated, truncated = read.terminated, read.truncated
    if transform is not None:
        if isinstance(observation, Observation):
            observation = _told(observation, reward, terminated, truncated, info)
        observation = apply_transform(transform, observation)
        reward, info = observation.reward, observation.metadata
        terminated, truncated = observation.done, observation.truncated
    reward = number(reward)
    if "reward_parts" in info:
        check_parts(info["reward_parts"], reward)
    terminated, truncated = flag(terminated, "terminated"), flag(truncated, "truncated")
    return observation, reward, terminated, truncated, info


def read_agents(outcome: Any, transform: Transforming, fits: Fitting) -> StepResult[dict[str, Any]]:
    """Return one step of several agents, every part keyed by agent."""
    read = read_agents_step(outcome)
    if transform is not None:
        _transform_each(read, transform)
    if fits is not None:
        fits(read.observation)
    return read


def _transform_each(
    read: StepResult[dict[str, Any]], transform: Callable[[Observation], Observation]
) -> None:
    for name in ("observation", "reward", "terminated", "truncated", "info"):
        setattr(read, name, dict(getattr(read, name)))
    for agent, one in read.observation.items():
        told = one
        if isinstance(one, Observation):
            flags = read.terminated.get(agent, False), read.truncated.get(agent, False)
            told = _told(one, read.reward.get(agent), *flags, read.info.get(agent) or {})
        shown = apply_transform(transform, told)
        read.observation[agent], read.reward[agent] = shown, shown.reward
        read.info[agent] = shown.metadata
        read.terminated[agent], read.truncated[agent] = shown.done, shown.truncated


def _dict(info: Any) -> dict[str, Any]:
    if info is None:
        return {}
    if not isinstance(info, dict):
        raise BadReturnError(f"info {info!r} is not a dict.")
    return info


def _told(
    observation: Observation, reward: Any, terminated: Any, truncated: Any, info: Any
) -> Observation:
    """Return a copy that knows what a wrapper or a result says besides it."""
    told: Observation = keep(observation)
    told.reward, told.done, told.truncated = reward, terminated, truncated
    told.metadata = keep(info or {})
    return told
