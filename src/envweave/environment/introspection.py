"""The interface of an environment, from its methods, specs and type hints.

`Interface` is what a session needs, inspected once. `class_hints` and `refuse_types` read the hints
of a class without making an environment.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

from envweave.codec import AgentsSpec, Spec, spec_from_hint
from envweave.codec.hints import is_typed_dict, typed_dict_hints
from envweave.errors import DefinitionError, suggest
from envweave.types import AGENT, ResetResult, State, StepResult

RESET_PARAMETERS = ("task", "seed", "options", "episode_id")
"""The keywords that an author's `reset` may take; any subset."""


Given: TypeAlias = Spec | Mapping[str, Spec]
"""One spec, or one for each agent."""


@dataclass(frozen=True, slots=True)
class Interface:
    """How to call one environment.

    Attributes:
        reset_takes: Which of `RESET_PARAMETERS` its `reset` takes.
        async_methods: Which of `reset`, `step`, `answer`, `state`, `close`, `snapshot` and
            `restore` are coroutines.
        action_spec: The spec of its actions; by agent where there are several.
        observation_spec: The spec of its observations; by agent where there are several.
        possible_agents: Every agent that may ever take part; `None` for one unnamed agent.
        deterministic: Whether the same seed, task and actions give the same episode.
        name: Its name in messages.
        state_spec: The spec of its `state`, if the class of the environment does not give it.
        openenv_fields: The fields of an observation that OpenEnv's clients know; `None` for all.
    """

    reset_takes: frozenset[str]
    async_methods: frozenset[str]
    action_spec: Spec
    observation_spec: Spec
    possible_agents: tuple[str, ...] | None = None
    deterministic: bool = True
    name: str = "the environment"
    state_spec: Spec | None = None
    openenv_fields: tuple[str, ...] | None = None

    @property
    def is_async(self) -> bool:
        """Whether driving it needs an event loop."""
        return bool(self.async_methods)


def reset_parameters(reset: Callable[..., Any], name: str) -> frozenset[str]:
    """Return which of `RESET_PARAMETERS` the function takes.

    Raises:
        DefinitionError: It requires a parameter that is never passed.
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
                f"{name}.reset() requires {parameter.name!r}, which is never passed. "
                f"It may take any of {', '.join(RESET_PARAMETERS)} by keyword; anything else "
                "belongs in the constructor or in `options`."
            )
    return frozenset(parameter.name for parameter in parameters) & frozenset(RESET_PARAMETERS)


def coroutine_methods(environment: object) -> frozenset[str]:
    """Return which methods of an environment are coroutine functions, including `state`."""
    found = {
        name
        for name in ("reset", "step", "answer", "close", "snapshot", "restore")
        if inspect.iscoroutinefunction(getattr(environment, name, None))
    }
    state = inspect.getattr_static(type(environment), "state", None)
    if isinstance(state, property) and inspect.iscoroutinefunction(state.fget):
        found.add("state")
    return frozenset(found)


def hinted_specs(step: Callable[..., Any], *, several_agents: bool) -> tuple[Given, Given]:
    """Return the action and observation specs that the hints of a `step` describe.

    Raises:
        DefinitionError: The hints cannot be read; or, with several agents, the actions are not
            keyed by agent.
    """
    parameters = list(inspect.signature(step).parameters)
    function = getattr(step, "__func__", step)
    if not inspect.isfunction(function):
        function = getattr(function, "func", None) or type(function).__call__
    return _hinted(function, parameters[0] if parameters else "", several_agents)


@functools.lru_cache(maxsize=256)
def _hinted(
    step: Any,
    parameter: str,
    several_agents: bool,  # noqa: FBT001 - a part of the key
) -> tuple[Given, Given]:
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
    if not several_agents:
        return spec_from_hint(action), spec_from_hint(observed_hint(returned))
    is_class = isinstance(action, type) and action not in (Any, object)
    if is_class and not is_typed_dict(action) and not issubclass(action, Mapping):
        raise DefinitionError(
            f"The type hint of {step.__qualname__} is {action.__name__}. With several agents it "
            f"must be a dict by agent id, dict[str, {action.__name__}], or a TypedDict with a key "
            "for each agent."
        )
    given, shown = item_hint(action), item_hint(observed_hint(returned))
    return read_spec(given, "action_spec"), read_spec(shown, "observation_spec")


def state_spec(environment: object) -> Spec:
    """Return the spec of an environment's `state` from the hint of the property.

    Without a readable hint, it is that of `State`.
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


def read_spec(given: Any, name: str) -> Given:
    """Return a spec that an author set: a type becomes the spec it describes.

    Args:
        given: A spec, a type or a Gymnasium space; or one for each agent, by agent id.
        name: Its name in messages.

    Raises:
        DefinitionError: It is none of these.
    """
    if isinstance(given, Spec):
        return given
    if isinstance(given, Mapping):
        specs = {agent: read_spec(one, f"{name}[{agent!r}]") for agent, one in given.items()}
        if any(not isinstance(spec, Spec) for spec in specs.values()):
            raise DefinitionError(f"{name} is a dict of dicts; give one type for each agent.")
        return cast("Mapping[str, Spec]", specs)
    gymnasium = sys.modules.get("gymnasium")
    if gymnasium is not None and isinstance(given, gymnasium.Space):
        from envweave.codec.gymnasium_spaces import from_space

        return from_space(given)
    if not _is_hint(given):
        raise DefinitionError(
            f"{name} must be a type or a Spec, or a dict with one for each agent, got {given!r}."
        )
    try:
        return _described(given)
    except TypeError:  # an `Annotated` with a mark that has no hash
        return spec_from_hint(given)


@functools.lru_cache(maxsize=256)
def _described(hint: Any) -> Spec:
    return spec_from_hint(hint)


def _is_hint(given: Any) -> bool:
    special = isinstance(given, typing.NewType | typing.TypeVar) or given in (Any, None)
    return isinstance(given, type) or typing.get_origin(given) is not None or special


def for_one(given: Given, name: str) -> Spec:
    """Return the spec of an environment with one agent, which may be keyed by its id.

    Raises:
        DefinitionError: It has specs for other agents.
    """
    if isinstance(given, Mapping):
        if set(given) == {AGENT}:
            return given[AGENT]
        raise DefinitionError(
            f"{name} has a type for each of {', '.join(map(repr, given))}, but the environment has "
            "one agent. Set one type, or subclass MultiAgentEnvironment."
        )
    return given


def by_agent(given: Given, agents: tuple[str, ...], name: str = "spec") -> Spec:
    """Return a spec keyed by agent, from one for all or from a mapping.

    Raises:
        DefinitionError: A mapping lacks an agent, or has one that takes no part.
    """
    if isinstance(given, Spec) and not isinstance(given, AgentsSpec):
        return AgentsSpec(dict.fromkeys(agents, given))
    keyed = given if isinstance(given, AgentsSpec) else AgentsSpec(given)
    left_out = [agent for agent in agents if agent not in keyed.agents]
    if left_out:
        raise DefinitionError(f"There is no {name} for the possible agent {left_out[0]!r}.")
    unknown = [agent for agent in keyed.agents if agent not in agents]
    if unknown:
        raise DefinitionError(
            f"There is an {name} for {unknown[0]!r}, which is not in possible_agents."
            f"{suggest(str(unknown[0]), agents)}"
        )
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
    """The value type of a dict hint; for a `TypedDict` that of each key."""
    if is_typed_dict(typing.get_origin(hint) or hint):
        return typed_dict_hints(typing.get_origin(hint) or hint, typing.get_args(hint))
    arguments = typing.get_args(hint)
    return arguments[1] if len(arguments) == 2 else Any


class Hints(NamedTuple):
    """Type hints; `None` where the class has none.

    With several agents, each is the hint of one agent, or a dict with one per agent.
    """

    action: Any = None
    observation: Any = None
    state: Any = None


def class_hints(factory: Any) -> Hints:
    """Return the hints of an environment class; empty for anything else."""
    from envweave.environment.base import Environment, MultiAgentEnvironment  # which imports this

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
    from envweave.environment.base import MultiAgentEnvironment

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
