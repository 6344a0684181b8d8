"""Shared by the adapters to Gymnasium and PettingZoo: the environment inside, and its results.

Gymnasium and PettingZoo can express less than a `StepResult`. What they cannot express is raised
as an error here, and never turned into a reward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from envweave.codec import Mismatch
from envweave.errors import (
    ActionError,
    BadReturnError,
    EnvironmentFailure,
    OptionError,
    ToolCallOpenError,
)
from envweave.registry.plugins import load_path
from envweave.types import StepResult
from envweave.vector import VectorEnv


def open_env(env: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return `env` if it is an `Env`, else `make(env, **kwargs)`.

    Raises:
        OptionError: It would reset itself, or keywords were passed with an existing `Env`.
    """
    # Imported by name, like a plug-in: `make` is in a higher layer than the adapters.
    api = load_path("envweave.api")
    if kwargs.get("autoreset"):
        raise OptionError(
            "autoreset=True cannot be honored here: in Gymnasium and PettingZoo the caller "
            "resets. Leave it out."
        )
    if not isinstance(env, api.Env):
        return api.make(env, **kwargs)
    if kwargs:
        raise OptionError(
            f"{next(iter(kwargs))!r} comes too late: {env!r} was already made. Pass it to make()."
        )
    return env


def open_vector(env: Any, num_envs: int | None, kwargs: Mapping[str, Any]) -> VectorEnv:
    """Return `env` if it is a `VectorEnv`, else one from `make_vector` with autoreset.

    Raises:
        OptionError: It would not reset itself, or keywords were passed with a `VectorEnv`.
    """
    if kwargs.get("autoreset", True) is not True:
        raise OptionError(
            f"autoreset={kwargs['autoreset']!r} cannot be honored here: Gymnasium's trainers "
            "expect a vector to reset ended episodes. Leave it out."
        )
    if isinstance(env, VectorEnv):
        late = next(iter(kwargs), None if num_envs is None else "num_envs")
        if late is not None:
            raise OptionError(f"{late!r} comes too late: the VectorEnv was already made.")
        if not env.autoreset:
            raise OptionError(
                "The VectorEnv does not reset ended episodes, but Gymnasium's trainers expect "
                "that. Make it with autoreset=True."
            )
        return env
    if num_envs is None and hasattr(env, "step") and not isinstance(env, type):
        raise OptionError(
            f"One {type(env).__name__} object is not a vector. Pass an ID or a class with "
            "num_envs=…, or a VectorEnv from make_vector(..., autoreset=True)."
        )
    made: VectorEnv = load_path("envweave.api").make_vector(
        env, num_envs=num_envs, **{**kwargs, "autoreset": True}
    )
    return made


def check_result(result: StepResult[Any], name: str) -> None:
    """Refuse a result that the other library cannot express.

    Raises:
        ActionError: In a vector, the environment refused its action, so there is no reward.
        EnvironmentFailure: The step failed, so it has no reward.
        ToolCallOpenError: The environment asks its caller to run a tool.
        OptionError: The environment resets itself.
    """
    if result.refused is not None:
        raise ActionError(f"{name} refused its action: {result.refused}")
    if result.end is not None:
        if not result.valid:
            raise EnvironmentFailure(
                f"The episode of {name} ended by {result.end.reason} (blame: {result.end.blame}): "
                f"{result.end.cause}. It earned no reward; call reset()."
            )
        if result.ready is not None:
            raise OptionError(
                f"{name} was made with autoreset=True, but in Gymnasium and PettingZoo the "
                "caller resets. Make it without."
            )
    for call in result.tool_calls:
        raise ToolCallOpenError(
            f"{name} asks its caller to run {call.name}(), which Gymnasium and PettingZoo do not "
            "support. Use envweave.make()."
        )


def encode_observation(encode: Callable[[Any], Any], observation: Any, name: str) -> Any:
    """Return the space's value for an observation.

    Raises:
        BadReturnError: The observation does not fit the environment's spec.
    """
    try:
        return encode(observation)
    except Mismatch as mismatch:
        raise BadReturnError(
            f"{mismatch.describe(name)}, which the observation space does not allow."
        ) from None


def decode_action(decode: Callable[[Any], Any], action: Any, name: str) -> Any:
    """Return the environment's action for a value of the action space.

    Raises:
        ActionError: It does not fit.
    """
    try:
        return decode(action)
    except Mismatch as mismatch:
        raise ActionError(mismatch.describe(name)) from None


def to_reward(reward: float | None) -> float:
    """Return a reward as a number; NaN if it is not scored yet."""
    return math.nan if reward is None else reward


def number_of_actions(space: Any) -> int | None:
    """Return how many actions a `Discrete` space has; `None` for any other space."""
    from gymnasium.spaces import Discrete

    return int(space.n) if isinstance(space, Discrete) else None


def with_mask(info: Mapping[str, Any], mask: Any, number: int | None) -> dict[str, Any]:
    """Return a new info, with the action mask in the form that `Discrete.sample` takes.

    Args:
        info: The environment's info.
        mask: Which actions are legal, or `None`.
        number: The number of actions, if they are numbered.
    """
    if mask is None:
        return dict(info)
    array = np.array(mask)
    if array.shape == (number,) and array.dtype.kind in "biuf":
        mask = array.astype(np.int8)
    return {**info, "action_mask": mask}
