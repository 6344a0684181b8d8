"""`TaskCompletionTransform`: rewards a task and ends the episode once a condition holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np

from envweave.codeact.models import CodeObservation
from envweave.codeact.transforms.reading import read_part, read_reward, read_step
from envweave.errors import BadReturnError, OptionError
from envweave.transforms import Transform
from envweave.types import Observation

_NAME = "TaskCompletionTransform"


@final
class TaskCompletionTransform(Transform):
    """Pays once a condition holds, and sets that part of the reward: 0 while it does not.

    Args:
        is_complete: Says of the observation of a step whether the task is done. It runs on the
            host; what it looks at is the agent's word, plain data all of it.
        reward: What the task earns.
        part: The name of this part of the reward.
        ends: Whether the episode is over then. Without that the task earns `reward` at every step
            at which it is done.

    Raises:
        OptionError: An option is not sound.
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
                f"{_NAME}: {is_complete!r} cannot be called. Pass a function that takes the "
                "observation of a step, and says whether the task is done."
            )
        self._is_complete = is_complete
        self._reward = read_reward(_NAME, "reward", reward)
        self._part = read_part(_NAME, part)
        self._ends = ends

    def __call__(self, observation: Observation) -> Observation:
        """Set the part. The first observation of an episode stays as it is."""
        step = read_step(observation, _NAME)
        if step is None:
            return observation
        is_complete: object = self._is_complete(step)
        if not isinstance(is_complete, bool | np.bool_):
            raise BadReturnError(
                f"{_NAME}: {self._is_complete!r} returned {type(is_complete).__name__}, and not "
                "whether the task is done."
            )
        step.set_reward(self._part, self._reward if is_complete else 0.0)
        step.done = step.done or (bool(is_complete) and self._ends)
        return step
