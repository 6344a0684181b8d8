"""What a session must know of an environment, looked at once, when it enters."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from envweave.codec import AgentsSpec, Spec, spec_from_hint
from envweave.errors import DefinitionError
from envweave.types import ResetResult, State, StepResult

RESET_PARAMETERS = ("task", "seed", "options", "episode_id")
"""What an author's `reset` may take: any subset of these, by keyword."""


@dataclass(frozen=True, slots=True)
class Interface:
    """How to talk to one environment.

    Attributes:
        reset_takes: Which of `RESET_PARAMETERS` its `reset` takes.
        async_methods: Which of `reset`, `step`, `answer`, `state` and `close` are coroutines.
        action_spec: What actions it takes; by agent where there are several.
        observation_spec: What it shows; by agent where there are several.
        possible_agents: All that may ever take part; `None` for one agent without a name.
        deterministic: Whether the same seed, task and actions give the same episode.
        name: What to call it in messages.
        openenv_fields: The fields of an observation that OpenEnv's clients know; `None` for all.
    """

    reset_takes: frozenset[str]
    async_methods: frozenset[str]
    action_spec: Spec
    observation_spec: Spec
    possible_agents: tuple[str, ...] | None = None
    deterministic: bool = True
    name: str = "the environment"
    openenv_fields: tuple[str, ...] | None = None

    @property
    def is_async(self) -> bool:
        """Whether driving it needs an event loop."""
        return bool(self.async_methods)


def reset_parameters(reset: Callable[..., Any], name: str) -> frozenset[str]:
    """Return which of `RESET_PARAMETERS` the function takes.

    Raises:
        DefinitionError: It cannot do without a parameter that nobody will pass.
    """
    parameters = inspect.signature(reset).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return frozenset(RESET_PARAMETERS)
    for parameter in parameters:
        needed = parameter.default is parameter.empty and parameter.kind is not (
            parameter.VAR_POSITIONAL
        )
        unnamed = parameter.kind is parameter.POSITIONAL_ONLY
        if needed and (unnamed or parameter.name not in RESET_PARAMETERS):
            raise DefinitionError(
                f"{name}.reset() cannot do without {parameter.name!r}, which nobody passes. "
                f"It may take any of {', '.join(RESET_PARAMETERS)} by keyword; anything else "
                "belongs in the constructor or in `options`."
            )
    return frozenset(parameter.name for parameter in parameters) & frozenset(RESET_PARAMETERS)


def coroutine_methods(environment: object) -> frozenset[str]:
    """Return which methods of an environment are coroutine functions, its `state` among them."""
    found = {
        name
        for name in ("reset", "step", "answer", "close")
        if inspect.iscoroutinefunction(getattr(environment, name, None))
    }
    state = inspect.getattr_static(type(environment), "state", None)
    if isinstance(state, property) and inspect.iscoroutinefunction(state.fget):
        found.add("state")
    return frozenset(found)


def hinted_specs(step: Callable[..., Any], *, several_agents: bool) -> tuple[Spec, Spec]:
    """Return the action and observation specs that the hints of a `step` describe."""
    parameters = list(inspect.signature(step).parameters)
    function = getattr(step, "__func__", step)
    if not inspect.isfunction(function):
        function = getattr(function, "func", None) or type(function).__call__
    return _hinted(function, parameters[0] if parameters else "", several_agents)


@functools.lru_cache(maxsize=256)
def _hinted(step: Any, parameter: str, several_agents: bool) -> tuple[Spec, Spec]:  # noqa: FBT001
    try:
        hints = typing.get_type_hints(step, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise DefinitionError(
            f"The type hints of {step.__qualname__} cannot be read: {error}. Define the "
            "class it names at the top level of a module, or set `action_spec` and "
            "`observation_spec` on the environment."
        ) from error
    returned = hints.pop("return", Any)
    action = hints.get(parameter, Any)
    if several_agents:
        action, returned = item_hint(action), item_hint(observed_hint(returned))
    else:
        returned = observed_hint(returned)
    return spec_from_hint(action), spec_from_hint(returned)


def state_spec(environment: object) -> Spec:
    """Return what an environment's `state` is, by the hint of the property.

    Where there is none, or none that can be read, it is a `State`.
    """
    cls: Any = type(environment)
    return _hinted_state(cls)


@functools.lru_cache(maxsize=256)
def _hinted_state(cls: Any) -> Spec:
    found = inspect.getattr_static(cls, "state", None)
    getter = found.fget if isinstance(found, property) else None
    try:
        hint = typing.get_type_hints(getter, include_extras=True).get("return", State)
        return spec_from_hint(State if hint in (None, Any) else hint)
    except (NameError, AttributeError, TypeError, SyntaxError, DefinitionError):
        return spec_from_hint(State)


def by_agent(spec: Spec | Mapping[str, Spec], agents: tuple[str, ...]) -> Spec:
    """Return a spec keyed by agent, from one for all or from a mapping.

    Raises:
        DefinitionError: A mapping leaves somebody out.
    """
    if isinstance(spec, Spec) and not isinstance(spec, AgentsSpec):
        return AgentsSpec(dict.fromkeys(agents, spec))
    keyed = spec if isinstance(spec, AgentsSpec) else AgentsSpec(spec)
    left_out = [agent for agent in agents if agent not in keyed.agents]
    if left_out:
        raise DefinitionError(f"There is no spec for {left_out[0]!r}, who may take part.")
    return keyed


def observed_hint(hint: Any) -> Any:
    """The observation within a return hint: of a result, of a gym tuple, or itself."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (StepResult, ResetResult):
        return arguments[0]
    if origin is tuple:
        return arguments[0] if len(arguments) == 5 else Any
    return Any if hint in (None, type(None), tuple, StepResult) else hint


def item_hint(hint: Any) -> Any:
    """The value type of a dict hint."""
    arguments = typing.get_args(hint)
    return arguments[1] if len(arguments) == 2 else Any
