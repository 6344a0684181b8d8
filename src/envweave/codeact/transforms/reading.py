"""What the transforms for code ask of an observation: whether code ran, and which."""

from __future__ import annotations

import math
from typing import Any

from envweave.codeact.models import CodeObservation
from envweave.errors import BadReturnError, OptionError
from envweave.types import Observation


def read_step(observation: Observation, transform: str) -> CodeObservation | None:
    """Return the observation of a step; `None` if it is the first one of an episode.

    Of an episode's first observation no code is known, and nothing that took any time. A step
    whose code is empty is a step like any other.

    Raises:
        BadReturnError: It is no `CodeObservation`.
    """
    if not isinstance(observation, CodeObservation):
        raise BadReturnError(
            f"{transform} is for environments that run code: it needs a CodeObservation, and was "
            f"given {type(observation).__name__}."
        )
    if not observation.code and not observation.execution_result.duration_s:
        return None
    return observation


def read_reward(transform: str, name: str, given: Any) -> float:
    """Return a reward that an option gives.

    Raises:
        OptionError: It is no finite number.
    """
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not math.isfinite(given):
        raise OptionError(f"{transform}({name}={given!r}): a reward is a finite number.")
    return float(given)


def read_part(transform: str, given: Any) -> str:
    """Return the name of a part of the reward.

    Raises:
        OptionError: It is no name.
    """
    if not isinstance(given, str) or not given:
        raise OptionError(f"{transform}(part={given!r}): the name of a part is text.")
    return given
