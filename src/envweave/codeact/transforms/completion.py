"""`TaskCompletionTransform`: rewards a task and ends the episode once a condition holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np

from envweave.codeact.models import CodeObservation
from envweave.codeact.transforms.checks import read_part, read_reward, read_step
from envweave.errors import BadReturnError, OptionError
from envweave.transforms import Transform
from envweave.types import Observation

_NAME = "TaskCompletionTransform"


@final
class TaskCompletionTransform(Transform):
    """Sets a part of the reward once a condition holds; 0 while it does not.

    Args:
        is_complete: Returns whether the task is done, given the observation of a step. It runs on
            the host; the observation is plain data, but its content is under the agent's control.
        reward: The reward for the task.
        part: The name of this part of the reward.
        ends: Whether the episode ends then. Otherwise every step at which the task is done earns
            `reward`.

    Raises:
        OptionError: An option is invalid.
    """

    def __init__(
        self,
        is_complete: Callable[[CodeObservation], bool],
        reward: float = 1.0,
        *,
        part: str = "task",
        ends: bool = True,
    ) -> None:
        if not callable(is_complete):
            raise OptionError(
                f"{_NAME}: is_complete must be a function that takes the observation of a step and "
                f"returns a bool, got {is_complete!r}."
            )
        self._is_complete = is_complete
        self._reward = read_reward(_NAME, "reward", reward)
        self._part = read_part(_NAME, part)
        self._ends = ends

    def __call__(self, observation: Observation) -> Observation:
        """Set the part. The first observation of an episode is unchanged."""
        step = read_step(observation, _NAME)
        if step is None:
            return observation
        is_complete: object = self._is_complete(step)
        if not isinstance(is_complete, bool | np.bool_):
            raise BadReturnError(
                f"{_NAME}: {self._is_complete!r} must return a bool, got "
                f"{type(is_complete).__name__}."
            )
        step.set_reward(self._part, self._reward if is_complete else 0.0)
        step.done = step.done or (bool(is_complete) and self._ends)
        return step
