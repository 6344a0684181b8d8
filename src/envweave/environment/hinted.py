"""What the type hints of an author's class say, without an environment of that class."""

from __future__ import annotations

import inspect
import typing
from typing import Any, NamedTuple

from envweave.environment.base import Environment, MultiAgentEnvironment
from envweave.environment.interface import item_hint, observed_hint


class Hints(NamedTuple):
    """Type hints, `None` where the class does not say; with several agents, those of one agent."""

    action: Any = None
    observation: Any = None
    state: Any = None


def class_hints(factory: Any) -> Hints:
    """Return the hints of a class of environments; none for anything else."""
    if not isinstance(factory, type) or not issubclass(factory, Environment):
        return Hints()
    try:
        step = typing.get_type_hints(factory.step, include_extras=True)
        shown = step.pop("return", None)
        parameters = list(inspect.signature(factory.step).parameters)[1:]
        state = _state_hint(factory)
    except (NameError, AttributeError, TypeError, SyntaxError):
        return Hints()  # who makes one is told
    taken = step.get(parameters[0]) if parameters else None
    shown = None if shown is None else observed_hint(shown)
    if issubclass(factory, MultiAgentEnvironment):
        taken = None if taken is None else item_hint(taken)
        shown = None if shown is None else item_hint(shown)
    return Hints(
        None if factory.action_spec is not None or taken is Any else taken,
        None if factory.observation_spec is not None or shown is Any else shown,
        state,
    )


def _state_hint(cls: type) -> Any:
    found = inspect.getattr_static(cls, "state", None)
    if not isinstance(found, property) or found.fget is None:
        return None
    hint = typing.get_type_hints(found.fget, include_extras=True).get("return")
    return None if hint is Any else hint
