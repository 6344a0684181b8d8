"""A random policy for any environment, within specs and action masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from envweave.api import Env
from envweave.codec import AgentsSpec, Spec
from envweave.codec.containers import DataclassSpec, PydanticSpec
from envweave.codec.scalars import EnumSpec, IntSpec
from envweave.errors import ActionError
from envweave.types import NeedAction, StepResult, ToolResult

_ATTEMPTS = 100


@final
class RandomPolicy:
    """Draws a random action for each agent that must act; reproducible with a seed.

    An action mask is honored if the action is a bounded integer or a choice, or a dataclass with
    one such field.
    """

    def __init__(self, action_spec: Spec, seed: int | None = None) -> None:
        self._spec = action_spec
        self._rng = np.random.default_rng(seed)

    def __call__(self, result: StepResult[Any]) -> Any:
        """Return the argument of the next `step`; an open tool call gets an empty answer.

        Raises:
            SpecError: No random action can be drawn for this environment.
        """
        if result.tool_calls:
            return ToolResult(result.tool_calls[0].call_id)
        if isinstance(self._spec, AgentsSpec):
            return {
                need.agent_id: self._draw(self._spec[need.agent_id], need) for need in result.needs
            }
        return self._draw(self._spec, result.needs[0])

    def _draw(self, spec: Spec, need: NeedAction[Any]) -> Any:
        legal = legal_actions(spec, need.action_mask)
        if legal:
            return legal[int(self._rng.integers(len(legal)))]
        return spec.sample(self._rng)


def legal_actions(spec: Spec, mask: Any) -> list[Any]:
    """Return the actions that a mask allows; nothing where masks don't apply to the actions."""
    if mask is None:
        return []
    legal = np.flatnonzero(np.asarray(mask))
    if isinstance(spec, DataclassSpec | PydanticSpec):
        own = [name for name in spec.fields if name != "metadata"]
        if len(own) == 1 and (choices := _choices(spec.fields[own[0]])) is not None:
            return [spec.cls(**{own[0]: choices[int(one)]}) for one in legal]
    elif (choices := _choices(spec)) is not None:
        return [choices[int(one)] for one in legal]
    return []


def take_step(
    env: Env, choose: Callable[[StepResult[Any]], Any], result: StepResult[Any]
) -> tuple[Any, StepResult[Any]]:
    """Take one step; if the environment refuses an action, choose another.

    Returns:
        The action and the result.

    Raises:
        ActionError: It refused too many actions in a row.
    """
    for _ in range(_ATTEMPTS - 1):
        action = choose(result)
        try:
            return action, env.step(action)
        except ActionError:
            continue
    action = choose(result)
    return action, env.step(action)


def _choices(spec: Spec) -> Sequence[Any] | None:
    if isinstance(spec, EnumSpec):
        return spec.values
    if isinstance(spec, IntSpec) and spec.low is not None and spec.high is not None:
        return range(spec.low, spec.high + 1)
    return None
