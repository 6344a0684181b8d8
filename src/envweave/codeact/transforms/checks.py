"""Checks of the observations and the options of transforms for code."""

from __future__ import annotations

import math
from typing import Any

from envweave.codeact.models import CodeObservation
from envweave.errors import BadReturnError, OptionError
from envweave.types import Observation


def read_step(observation: Observation, transform: str) -> CodeObservation | None:
    """Return the observation of a step, or `None` for the first observation of an episode.

    The first observation has no code and no duration. A step with empty code has a duration, and
    is a step like any other.

    Raises:
        BadReturnError: It is not a `CodeObservation`.
    """
    if not isinstance(observation, CodeObservation):
        raise BadReturnError(
            f"{transform} is for environments that run code: it needs a CodeObservation, got "
            f"{type(observation).__name__}."
        )
    if not observation.code and not observation.execution_result.duration_s:
        return None
    return observation


def read_reward(transform: str, name: str, given: Any) -> float:
    """Return the reward in an option as a float.

    Raises:
        OptionError: It is not a finite number.
    """
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not math.isfinite(given):
        raise OptionError(f"{transform}({name}={given!r}): a reward must be a finite number.")
    return float(given)


def read_part(transform: str, given: Any) -> str:
    """Return the name of a part of the reward.

    Raises:
        OptionError: It is not a non-empty string.
    """
    if not isinstance(given, str) or not given:
        raise OptionError(f"{transform}(part={given!r}): part must be a non-empty string.")
    return given
