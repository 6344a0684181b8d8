"""Transforms: pure functions from observation to observation, for shaping rewards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

from envweave.errors import BadReturnError
from envweave.types import Observation


class Transform(ABC):
    """Changes what an environment shows or what it pays, without touching the environment.

    The session applies it once to every observation, also to the first one of an episode.
    Rewards add up: use `observation.add_reward(part, value)`, so that each part keeps its
    name and none overwrites another. Only what judges the task itself sets its part anew, by
    `observation.set_reward(part, value)`.

    Attributes:
        last: Whether it is applied after all the others, wherever it stands among them: for
            what must have the last word on a reward.
    """

    last: bool = False

    @abstractmethod
    def __call__(self, observation: Observation) -> Observation:
        """Return the observation to be shown. It may be the same object, changed."""


@final
class CompositeTransform(Transform):
    """Several transforms, one after the other; those that are `last` after all others.

    One inside another is taken as its parts.
    """

    def __init__(self, transforms: Iterable[Callable[[Observation], Observation]]) -> None:
        self.transforms = list(transforms)
        self._in_order = in_order(self.transforms)

    def __call__(self, observation: Observation) -> Observation:
        """Apply each in turn."""
        for transform in self._in_order:
            observation = apply_transform(transform, observation)
        return observation


def in_order(
    transforms: Iterable[Callable[[Observation], Observation]],
) -> list[Callable[[Observation], Observation]]:
    """Return the parts of some transforms in the order in which they are applied."""
    parts: list[Callable[[Observation], Observation]] = []
    for transform in transforms:
        if isinstance(transform, CompositeTransform):
            parts.extend(in_order(transform.transforms))
        else:
            parts.append(transform)
    return sorted(parts, key=lambda part: isinstance(part, Transform) and part.last)


def apply_transform(
    transform: Callable[[Observation], Observation], observation: Any
) -> Observation:
    """Apply a transform to what an environment shows.

    Raises:
        BadReturnError: The environment shows no `Observation`, or the transform returned none.
    """
    if not isinstance(observation, Observation):
        raise BadReturnError(
            f"A transform needs an environment that returns Observations, and this one "
            f"returned {type(observation).__name__}."
        )
    changed: object = transform(observation)
    if not isinstance(changed, Observation):
        raise BadReturnError(
            f"The transform {transform!r} returned {type(changed).__name__}, not an Observation."
        )
    return changed


def apply_to_each(
    transform: Callable[[Observation], Observation], observations: Mapping[str, Any]
) -> dict[str, Observation]:
    """Apply a transform to the observation of each agent."""
    return {agent: apply_transform(transform, one) for agent, one in observations.items()}
