"""Reading what an author's `reset` or `step` returned into one form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from envweave.codec.pydantic_models import carries_outcome
from envweave.errors import BadReturnError
from envweave.types import Observation, ResetResult, StepResult

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
    """Return the outcome of an author's `step` as a `StepResult` that is ours to change."""
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
    """What a pydantic model says besides what it shows, as OpenEnv's observations do."""
    fields = type(outcome).model_fields
    info = outcome.metadata if "metadata" in fields else None
    result = StepResult(outcome, outcome.reward, info={} if info is None else dict(info))
    result.terminated = outcome.done
    result.truncated = outcome.truncated if "truncated" in fields else False
    return result


def bad_step(outcome: Any) -> BadReturnError:
    """Say what is wrong with the outcome of a `step`."""
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
        raise BadReturnError("reset() showed nobody anything; somebody must take part.")
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
        BadReturnError: It is no number.
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
    """Refuse reward parts that don't sum to the reward.

    Raises:
        BadReturnError: They are no dict of numbers, or their sum is another.
    """
    if not isinstance(parts, dict):
        raise BadReturnError(f"reward_parts {parts!r} is not a dict of numbers.")
    values = [value for value in map(number, parts.values()) if value is not None]
    total = math.fsum(values)
    rounded = 1e-14 * max(map(abs, values), default=0.0)  # by adding one after the other
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
