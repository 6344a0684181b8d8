"""Reads what authors' `reset` and `step` return, and makes results of it.

An ordinary step does not come here: the compiled step and `Session.conclude` make its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np

from envweave.codec.pydantic_models import carries_outcome
from envweave.errors import BadReturnError
from envweave.session.snapshot import snapshot
from envweave.transforms import CompositeTransform, apply_transform
from envweave.types import (
    REFUSED,
    AutoResetReady,
    EpisodeEnd,
    Event,
    NeedAction,
    Observation,
    ResetResult,
    StepResult,
)

Parts: TypeAlias = tuple[Any, Any, Any, Any, dict[str, Any]]
"""Observation, reward, terminated, truncated, info."""

Needs: TypeAlias = tuple[NeedAction[Any], ...] | None

Start: TypeAlias = tuple[AutoResetReady[Any], Needs, tuple[Event, ...]]
"""The start of an episode: its first observation, the agents to act, and its events."""


class EpisodeState(Protocol):
    """Which step of which episode a result is about."""

    episode_id: str | None
    task_id: str | None
    step_index: int


def make_result(
    parts: Parts,
    end: EpisodeEnd | None,
    events: tuple[Event, ...],
    needs: Needs,
    about: EpisodeState,
) -> StepResult[Any]:
    """Make the result of a step."""
    result: StepResult[Any] = StepResult(*parts, end=end, step_index=about.step_index)
    result.episode_id, result.task_id = about.episode_id, about.task_id
    result._needs, result._events = needs, events  # noqa: SLF001 - the session makes results
    return result


def refused_row(
    error: Exception,
    last: Any,
    needs: tuple[NeedAction[Any], ...],
    waiting: tuple[Event, ...],
    about: EpisodeState,
    *,
    several_agents: bool,
) -> StepResult[Any]:
    """Make the row of a batch whose action was refused; the episode is unchanged.

    Args:
        error: Why it was refused.
        last: The last observation.
        needs: The agents that must act.
        waiting: The open tool calls; while there are any, no agent may act.
        about: The last step.
        several_agents: Whether results are keyed by agent.
    """
    info: dict[str, Any] = {REFUSED: str(error)}
    parts: Parts = (last, None, False, False, info)
    if several_agents:
        parts = (last, *(dict.fromkeys(last, one) for one in (None, False, False)), info)
    elif needs[0].action_mask is not None:
        info["action_mask"] = needs[0].action_mask
    return make_result(parts, None, waiting, () if waiting else needs, about)


def make_start(
    ready: AutoResetReady[Any], needs: Needs, events: tuple[Event, ...]
) -> ResetResult[Any]:
    """Make the result of a reset."""
    result: ResetResult[Any] = ResetResult(ready.initial_obs, ready.initial_info)
    result.episode_id, result.task_id = ready.episode_id, ready.task_id
    result._needs, result._events = needs, events  # noqa: SLF001 - the session makes results
    return result


def join_start(
    result: StepResult[Any], ready: AutoResetReady[Any], needs: Needs, events: tuple[Event, ...]
) -> StepResult[Any]:
    """Put the start of the next episode into the result that ended the last one."""
    result.ready = ready
    result._needs, result._ready_events = needs, events  # noqa: SLF001 - the session makes results
    return result


def end_of(terminated: bool) -> EpisodeEnd:  # noqa: FBT001 - the first of two flags
    """Return the end that an author's flags stand for."""
    return EpisodeEnd("terminated" if terminated else "truncated")


def settle_end(
    end: EpisodeEnd | None,
    terminated: bool,  # noqa: FBT001 - Gymnasium's order
    truncated: bool,  # noqa: FBT001
) -> tuple[EpisodeEnd | None, bool, bool]:
    """Reconcile an emitted end with the two flags."""
    if end is None:
        return (end_of(terminated) if terminated or truncated else None), terminated, truncated
    terminated |= end.reason == "terminated"
    return end, terminated, truncated or (end.reason != "terminated" and not terminated)


def truncate_all(agents: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the rewards and flags of agents whose episode failed."""
    return dict.fromkeys(agents), dict.fromkeys(agents, False), dict.fromkeys(agents, True)


def total(*earned: float | None) -> float | None:
    """Add up rewards; `None` means not scored yet, and adds nothing."""
    scored = [one for one in earned if one is not None]
    return math.fsum(scored) if scored else None


def nan_rewards(parts: Parts, end: EpisodeEnd) -> tuple[Parts, EpisodeEnd]:
    """Replace every reward of a failed step by NaN, so that none is trained on."""
    observation, reward, terminated, truncated, info = parts
    nothing = dict.fromkeys(reward, math.nan) if isinstance(reward, dict) else math.nan
    info = {name: one for name, one in info.items() if name != "reward_parts"}
    end = msgspec.structs.replace(end, rewards=dict.fromkeys(end.rewards, math.nan))
    return (observation, nothing, terminated, truncated, info), end


_ALL = "__all__"


def read_reset(outcome: Any) -> ResetResult[Any]:
    """Return the outcome of an author's `reset` as a `ResetResult`."""
    if isinstance(outcome, StepResult):
        read: ResetResult[Any] = ResetResult(
            outcome.observation, dict(outcome.info), requests=outcome.events
        )
        read.end = outcome.end
        return read
    if isinstance(outcome, Observation):
        return ResetResult(outcome, outcome.metadata)
    if carries_outcome(type(outcome)):
        parts = _model_parts(outcome)
        if parts.terminated is True or parts.truncated is True:
            raise BadReturnError("reset() returned an episode that is over already.")
        return ResetResult(outcome, parts.info)
    if isinstance(outcome, tuple):
        if len(outcome) != 2 or not isinstance(outcome[1], dict):
            raise BadReturnError(
                f"reset() returned a tuple of {len(outcome)}; expected (observation, info) "
                "with info a dict."
            )
        return ResetResult(outcome[0], outcome[1])
    if outcome is None:
        raise BadReturnError("reset() returned None; expected the first observation.")
    return ResetResult(outcome)


def read_step(outcome: Any) -> StepResult[Any]:
    """Return the outcome of an author's `step` as a `StepResult` that we may change."""
    if isinstance(outcome, StepResult):
        return outcome.copied()
    if isinstance(outcome, Observation):
        result = StepResult(outcome, outcome.reward, info=outcome.metadata)
        result.terminated, result.truncated = outcome.done, outcome.truncated
        return result
    if isinstance(outcome, tuple) and len(outcome) == 5:
        result = StepResult(outcome[0], outcome[1], info=outcome[4])
        result.terminated, result.truncated = outcome[2], outcome[3]
        return result
    if carries_outcome(type(outcome)):
        return _model_parts(outcome)
    raise bad_step(outcome)


def _model_parts(outcome: Any) -> StepResult[Any]:
    """Split a pydantic model with `reward` and `done`, such as OpenEnv's observations."""
    fields = type(outcome).model_fields
    info = outcome.metadata if "metadata" in fields else None
    result = StepResult(outcome, outcome.reward, info={} if info is None else dict(info))
    result.terminated = outcome.done
    result.truncated = outcome.truncated if "truncated" in fields else False
    return result


def bad_step(outcome: Any) -> BadReturnError:
    """Return the error for an invalid outcome of a `step`."""
    if isinstance(outcome, tuple):
        old = " (four is the gym API from before 0.26)" if len(outcome) == 4 else ""
        what = f"a tuple of {len(outcome)}{old}"
    else:
        what = f"{type(outcome).__name__}"
    return BadReturnError(
        f"step() returned {what}; expected an Observation, a StepResult, a tuple of (observation, "
        "reward, terminated, truncated, info), or a pydantic model with reward and done."
    )


def read_agents_reset(outcome: Any) -> ResetResult[dict[str, Any]]:
    """Return the outcome of a multi-agent `reset`; its info is keyed by agent."""
    result = read_reset(outcome)
    observations = result.observation
    if not isinstance(observations, dict):
        raise BadReturnError(
            f"reset() returned {type(observations).__name__}; with several agents it returns a "
            "dict of observations keyed by agent id."
        )
    if not observations:
        raise BadReturnError("reset() returned no observations; at least one agent must take part.")
    result.observation = dict(observations)
    if not isinstance(outcome, tuple | StepResult):
        result.info = {agent: _metadata(one) for agent, one in observations.items()}
    return result


def read_agents_step(outcome: Any) -> StepResult[dict[str, Any]]:
    """Return the outcome of a multi-agent `step`, every part a dict keyed by agent."""
    if isinstance(outcome, dict):
        for agent, one in outcome.items():
            if not isinstance(one, Observation):
                raise BadReturnError(
                    f"step() returned {type(one).__name__} for {agent!r}; expected an "
                    "Observation, or a tuple of five dicts."
                )
        result = StepResult(
            dict(outcome),
            {agent: one.reward for agent, one in outcome.items()},
            info={agent: one.metadata for agent, one in outcome.items()},
        )
        result.terminated = {agent: one.done for agent, one in outcome.items()}
        result.truncated = {agent: one.truncated for agent, one in outcome.items()}
        return result
    result = read_step(outcome)
    if isinstance(outcome, StepResult):
        # One flag of a result is about the whole episode.
        for name in ("terminated", "truncated"):
            if isinstance(getattr(result, name), bool):
                setattr(result, name, {_ALL: getattr(result, name)})
    for name in ("observation", "reward", "terminated", "truncated", "info"):
        if not isinstance(getattr(result, name), dict):
            raise BadReturnError(
                f"step() returned {type(getattr(result, name)).__name__} as {name}; with "
                "several agents it is a dict keyed by agent id."
            )
    return result


def number(reward: Any) -> float | None:
    """Return a reward as a float; `None` (not scored yet) stays.

    Raises:
        BadReturnError: It is not a number.
    """
    if reward is None:
        return None
    if isinstance(reward, str | bytes | bytearray):
        raise BadReturnError(f"reward {reward!r} is not a number.")
    try:
        value = float(reward)
    except OverflowError:
        raise BadReturnError("reward is too large for a float.") from None
    except (TypeError, ValueError):
        raise BadReturnError(f"reward {reward!r} is not a number.") from None
    if math.isnan(value):
        raise BadReturnError("reward is NaN. None means not scored yet.")
    return value


def flag(value: Any, name: str) -> bool:
    """Return a flag as a bool.

    Raises:
        BadReturnError: It is neither a bool nor 0 or 1.
    """
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_) or (type(value) is int and value in (0, 1)):
        return bool(value)
    raise BadReturnError(f"{name} {value!r} is not a bool.")


def check_parts(parts: Any, reward: float | None) -> None:
    """Check that reward parts sum to the reward.

    Raises:
        BadReturnError: They are not a dict of numbers, or don't sum to the reward.
    """
    if not isinstance(parts, dict):
        raise BadReturnError(f"reward_parts {parts!r} is not a dict of numbers.")
    values = [value for value in map(number, parts.values()) if value is not None]
    total = math.fsum(values)
    rounded = 1e-14 * max(map(abs, values), default=0.0)  # the error of adding one by one
    if reward is None:
        if parts:
            raise BadReturnError(f"reward_parts {parts!r} were given for a reward of None.")
    elif not math.isclose(total, reward, rel_tol=1e-6, abs_tol=max(1e-9, rounded)):
        raise BadReturnError(f"reward_parts {parts!r} sum to {total}, but the reward is {reward}.")


def split_all(flags: dict[str, Any], name: str) -> tuple[dict[str, bool], bool]:
    """Return the flags by agent, and whether `"__all__"` was set."""
    everyone = flag(flags.get(_ALL, False), f"{name}['__all__']")
    by_agent = {
        agent: flag(value, f"{name}[{agent!r}]") for agent, value in flags.items() if agent != _ALL
    }
    return by_agent, everyone


def _metadata(observation: Any) -> dict[str, Any]:
    return observation.metadata if isinstance(observation, Observation) else {}


TransformCall = Callable[[Observation], Observation] | None
ObservationCheck = Callable[[Any], None] | None
"""Raises `BadReturnError` for an observation that a vector's columns cannot hold."""


def compose(first: TransformCall, second: TransformCall) -> TransformCall:
    """Combine two transforms; the environment's own comes first."""
    if first is None or second is None:
        return first or second
    return CompositeTransform([first, second])


def read_start(outcome: Any, transform: TransformCall) -> tuple[Any, dict[str, Any]]:
    """Return the observation and the info of a `reset`.

    Raises:
        BadReturnError: The episode is over before it began.
    """
    if type(outcome) is tuple and transform is None and len(outcome) == 2:
        shown, info = outcome
        # The hot path of an autoreset: skips making a result first.
        if type(info) is dict and not isinstance(shown, Observation):
            return shown, info
    read = read_reset(outcome)
    shown, info = read.observation, read.info
    if transform is not None:
        shown = apply_transform(transform, snapshot(shown))
        info = {**info, **shown.metadata}
    ends = isinstance(shown, Observation) and (shown.done is True or shown.truncated is True)
    if ends or read.end is not None:
        raise BadReturnError("reset() returned an episode that is over already.")
    return shown, info


def read_agents_start(
    outcome: Any, transform: TransformCall, fits: ObservationCheck
) -> ResetResult[dict[str, Any]]:
    """Return the outcome of a `reset` for several agents, every part keyed by agent."""
    read = read_agents_reset(outcome)
    if transform is not None:
        for agent, one in read.observation.items():
            shown = apply_transform(transform, snapshot(one))
            read.observation[agent], read.info[agent] = shown, shown.metadata
    if fits is not None:
        fits(read.observation)
    return read


def read_parts(
    outcome: Any, transform: TransformCall
) -> tuple[Any, float | None, bool, bool, dict[str, Any]]:
    """Return the five parts of a step's outcome, checked."""
    read = read_step(outcome)
    observation, reward, info = read.observation, read.reward, _dict(read.info)
    terminated, truncated = read.terminated, read.truncated
    if transform is not None:
        if isinstance(observation, Observation):
            observation = _with_outcome(observation, reward, terminated, truncated, info)
        observation = apply_transform(transform, observation)
        reward, info = observation.reward, observation.metadata
        terminated, truncated = observation.done, observation.truncated
    reward = number(reward)
    if "reward_parts" in info:
        check_parts(info["reward_parts"], reward)
    terminated, truncated = flag(terminated, "terminated"), flag(truncated, "truncated")
    return observation, reward, terminated, truncated, info


def read_agents(
    outcome: Any, transform: TransformCall, fits: ObservationCheck
) -> StepResult[dict[str, Any]]:
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
        observation = one
        if isinstance(one, Observation):
            flags = read.terminated.get(agent, False), read.truncated.get(agent, False)
            observation = _with_outcome(
                one, read.reward.get(agent), *flags, read.info.get(agent) or {}
            )
        shown = apply_transform(transform, observation)
        read.observation[agent], read.reward[agent] = shown, shown.reward
        read.info[agent] = shown.metadata
        read.terminated[agent], read.truncated[agent] = shown.done, shown.truncated


def _dict(info: Any) -> dict[str, Any]:
    if info is None:
        return {}
    if not isinstance(info, dict):
        raise BadReturnError(f"info {info!r} is not a dict.")
    return info


def _with_outcome(
    observation: Observation, reward: Any, terminated: Any, truncated: Any, info: Any
) -> Observation:
    """Return a copy with the reward, flags and info of a wrapper or result."""
    copied: Observation = snapshot(observation)
    copied.reward, copied.done, copied.truncated = reward, terminated, truncated
    copied.metadata = snapshot(info or {})
    return copied
