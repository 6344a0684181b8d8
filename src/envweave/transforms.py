"""Transforms: pure functions from observation to observation, for shaping rewards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, final

from envweave.errors import BadReturnError, OptionError
from envweave.types import Observation


class Transform(ABC):
    """Changes observations or rewards without touching the environment.

    The session applies it once to every observation, including the first one of an episode.
    Rewards add up: use `observation.add_reward(part, value)`, so that each part keeps its
    name and none overwrites another. Only a transform that judges the task itself replaces its
    part, by `observation.set_reward(part, value)`.

    Attributes:
        last: Whether it is applied after all others, whatever its position: for transforms
            that must have the last word on a reward.
    """

    last: bool = False

    @abstractmethod
    def __call__(self, observation: Observation) -> Observation:
        """Return the changed observation, which may be the same object."""


class TransformResult(Transform):
    """A transform that has the last word on a reward and sees unmodified observations.

    It inspects each observation before any other transform changes it, and is applied after
    all of them, including those that are `last`.
    """

    last = True

    @abstractmethod
    def judge(self, observation: Observation) -> Callable[[Observation], Observation]:
        """Inspect the original observation, and return what is applied at the very end."""

    @final
    def __call__(self, observation: Observation) -> Observation:
        """Inspect and apply in one go."""
        return self.judge(observation)(observation)


@final
class CompositeTransform(Transform):
    """Several transforms, one after the other; those that are `last` after all others.

    A composite inside another is flattened.

    Attributes:
        transforms: The transforms, as they were passed.

    Raises:
        OptionError: One of them cannot be called.
    """

    def __init__(self, transforms: Iterable[Callable[[Observation], Observation]]) -> None:
        self.transforms = tuple(transforms)
        self._in_order: list[Callable[[Observation], Observation]] = []
        self._verdicts: list[TransformResult] = []
        for one in self.transforms:
            if not callable(one):
                raise OptionError(
                    f"CompositeTransform: {one!r} cannot be called. Give it Transforms, or "
                    "functions that take and return an observation."
                )
            if isinstance(one, CompositeTransform):
                self._in_order += one._in_order  # noqa: SLF001 - of this very class
                self._verdicts += one._verdicts  # noqa: SLF001
            elif isinstance(one, TransformResult):
                self._verdicts.append(one)
            else:
                self._in_order.append(one)
        self._in_order.sort(key=lambda part: isinstance(part, Transform) and part.last)

    def __call__(self, observation: Observation) -> Observation:
        """Apply each in turn."""
        verdicts = [verdict.judge(observation) for verdict in self._verdicts]
        for transform in (*self._in_order, *verdicts):
            observation = apply_transform(transform, observation)
        return observation


def apply_transform(
    transform: Callable[[Observation], Observation], observation: Any
) -> Observation:
    """Apply a transform to an observation.

    Raises:
        BadReturnError: It is not an `Observation`, or the transform did not return one.
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
