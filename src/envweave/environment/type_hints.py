"""The type hints of an author's class, read without making an environment."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple

from envweave.codec import Spec
from envweave.environment.base import Environment, MultiAgentEnvironment
from envweave.environment.introspection import (
    by_agent,
    for_one,
    item_hint,
    observed_hint,
    read_spec,
)


class Hints(NamedTuple):
    """Type hints; `None` where the class has none.

    With several agents, each is the hint of one agent, or a dict with one per agent.
    """

    action: Any = None
    observation: Any = None
    state: Any = None


def class_hints(factory: Any) -> Hints:
    """Return the hints of an environment class; empty for anything else."""
    if not isinstance(factory, type) or not issubclass(factory, Environment):
        return Hints()
    try:
        step = typing.get_type_hints(factory.step, include_extras=True)
        shown = step.pop("return", None)
        parameters = list(inspect.signature(factory.step).parameters)[1:]
        state = _state_hint(factory)
    except (NameError, AttributeError, TypeError, SyntaxError):
        return Hints()  # making an environment raises the error
    taken = step.get(parameters[0]) if parameters else None
    shown = None if shown is None else observed_hint(shown)
    if issubclass(factory, MultiAgentEnvironment):
        taken = None if taken is None else item_hint(taken)
        shown = None if shown is None else item_hint(shown)
    return Hints(_known(factory.action_spec, taken), _known(factory.observation_spec, shown), state)


def _known(given: Any, hint: Any) -> Any:
    """The types that the author set, if they are types; by default, the hint."""
    if given is None:
        return None if hint is Any else hint
    parts = given.values() if isinstance(given, Mapping) else [given]
    return None if any(isinstance(one, Spec) for one in parts) else given


def _state_hint(cls: type) -> Any:
    found = inspect.getattr_static(cls, "state", None)
    if not isinstance(found, property) or found.fget is None:
        return None
    hint = typing.get_type_hints(found.fget, include_extras=True).get("return")
    return None if hint is Any else hint


def refuse_types(factory: Any) -> None:
    """Refuse an environment class whose types are not supported, before making one.

    Raises:
        DefinitionError: A type is not supported, or a limit cannot be enforced.
    """
    hints = class_hints(factory)
    several = isinstance(factory, type) and issubclass(factory, MultiAgentEnvironment)
    listed = getattr(factory, "possible_agents", ())  # a property, if each environment has its own
    agents = tuple(listed) if isinstance(listed, list | tuple) else ()
    named = (("action_spec", hints.action), ("observation_spec", hints.observation))
    for name, hint in named:
        if hint is None:
            continue
        read = read_spec(hint, f"{factory.__name__}.{name}")
        if not several:
            for_one(read, f"{factory.__name__}.{name}")
        elif agents:
            by_agent(read, agents, name)
