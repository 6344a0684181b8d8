"""Adapter from OpenEnv environments: its classes, in this process, without its server.

OpenEnv is never imported here. An OpenEnv environment can only exist if it was already imported.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import operator
import sys
import threading
import typing
import weakref
from collections.abc import Callable, Mapping
from typing import Any, final

from envweave.codec import AnySpec, Spec, spec_from_hint
from envweave.codec.pydantic_models import is_model
from envweave.environment import Environment, Interface
from envweave.environment.introspection import Hints, observed_hint
from envweave.errors import ActionError, DefinitionError, OptionError, suggest

logger = logging.getLogger("envweave.adapters")

_INTERFACES = "openenv.core.env_server.interfaces"
_TOOLS = "openenv.core.env_server.mcp_environment"
_TOOL_TYPES = "openenv.core.env_server.mcp_types"


def is_foreign(candidate: Any) -> bool:
    """Whether this is an OpenEnv environment, or the class of one."""
    interfaces = sys.modules.get(_INTERFACES)
    if interfaces is None:
        return False
    cls = candidate if isinstance(candidate, type) else type(candidate)
    return issubclass(cls, interfaces.Environment)


def from_openenv(env: Any) -> Environment:
    """Return an OpenEnv environment as an `Environment`.

    Actions are built and validated by its own action class; `reward`, `done` and `metadata` of its
    observations are the outcome of a step. `reset` gets the seed and the episode id, and the
    options as further keywords. If it has coroutine methods, these are used. It is unknown whether
    it uses its seed, so it counts as not deterministic.

    Raises:
        DefinitionError: It is not an OpenEnv environment.
    """
    if isinstance(env, type) or not is_foreign(env):
        raise DefinitionError(f"{env!r} cannot be adapted: it is not an OpenEnv environment.")
    return FromOpenEnv(env)


def openenv_hints(cls: type) -> Hints:
    """Return the types that an OpenEnv environment class declares; `None` for missing ones.

    They are in the hints of `step`, `reset` and `state`, or in the brackets of `Environment[…]`.
    """
    given = _type_arguments(cls)
    step, reset = _method(cls, "step"), _method(cls, "reset")
    hints = _read_hints(step)
    action = _specific(hints.get(_first_parameter(step)), "Action") or given[0]
    observation = _specific(hints.get("return"), "Observation") or given[1]
    first = _specific(_read_hints(reset).get("return"), "Observation")
    state = inspect.getattr_static(cls, "state", None)
    state_hint = _read_hints(state.fget).get("return") if isinstance(state, property) else None
    observation = _union(observation, first) if observation is not None else None
    if _calls_tools(cls):
        types = sys.modules[_TOOL_TYPES]
        calls = (types.CallToolAction, types.ListToolsAction)
        action = _union(*calls) if action is None or action in calls else action
        base = sys.modules[_INTERFACES].Observation  # what most resets return
        observation = _union(
            types.CallToolObservation, types.ListToolsObservation, observation, first, base
        )
    return Hints(action, observation, _specific(state_hint, "State") or given[2] or state_hint)


@final
class FromOpenEnv(Environment):
    """An OpenEnv environment, as an `Environment`."""

    deterministic = False

    def __init__(self, env: Any) -> None:
        self.env = env
        self._name = type(env).__name__
        self._hints = openenv_hints(type(env))
        self._episode_id: str | None = None
        self._reset = _pick_method(env, "reset")
        parameters = inspect.signature(self._reset).parameters
        self._takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        self._named = [one.name for one in parameters.values() if one.kind is not one.VAR_KEYWORD]
        # Bound here to keep the environment's hints and async methods, and to save a call per step.
        if inspect.iscoroutinefunction(self._reset):
            self.reset = self._reset_async  # type: ignore[method-assign]
        self.step = _pick_method(env, "step")  # type: ignore[method-assign]
        if self._hints.action is None:
            self.step = _refuse_dicts(self.step, self._name)  # type: ignore[method-assign]
        self.close = _make_close(env)  # type: ignore[method-assign]
        _warn_if_concurrent(env)

    def reset(self, **given: Any) -> Any:
        """Begin an episode; the options become keywords of the environment's own `reset`."""
        return self._reset(**self._keywords(given))

    async def _reset_async(self, **given: Any) -> Any:
        return await self._reset(**self._keywords(given))

    def _keywords(self, given: Mapping[str, Any]) -> dict[str, Any]:
        self._episode_id = given.get("episode_id")
        options = dict(given.get("options") or {})
        for name in options:
            if name in ("seed", "episode_id"):
                raise OptionError(f"options has {name!r}, which is a keyword of reset() itself.")
            if not self._takes_any and name not in self._named:
                known = [one for one in self._named if one not in ("seed", "episode_id")]
                raise OptionError(
                    f"reset() of {self._name} takes no {name!r}.{suggest(name, known)}"
                )
        own = {name: one for name, one in given.items() if name != "options" and one is not None}
        return {**own, **options}

    def step(self, action: Any) -> Any:
        """Replaced by the environment's own."""

    @property
    def state(self) -> Any:
        """The environment's own state, with a missing episode id filled in."""
        state = self.env.state
        if is_model(type(state)) and getattr(state, "episode_id", "") is None:
            return state.model_copy(update={"episode_id": self._episode_id})
        return state

    def describe(self) -> Interface:
        """Describe the environment by its own name and its own hints."""
        takes = {name for name in ("seed", "episode_id") if self._takes_any or name in self._named}
        if self._takes_any or any(name not in ("seed", "episode_id") for name in self._named):
            takes.add("options")
        if self.action_spec is None:
            self.action_spec = _spec(self._hints.action)
        if self.observation_spec is None:
            self.observation_spec = _spec(self._hints.observation)
        state = self._hints.state
        return dataclasses.replace(
            super().describe(),
            reset_takes=frozenset(takes),
            name=self._name,
            state_spec=None if state is None else _spec(state),
        )


def _spec(hint: Any) -> Spec:
    return AnySpec() if hint is None else spec_from_hint(hint)


def _pick_method(env: Any, name: str) -> Callable[..., Any]:
    """Return the method that OpenEnv's own server calls: the async one, if overridden."""
    method: Callable[..., Any] = getattr(env, _method_name(type(env), name))
    return method


def _method(cls: Any, name: str) -> Any:
    return getattr(cls, _method_name(cls, name))


def _method_name(cls: Any, name: str) -> str:
    async_name = f"{name}_async"
    inherited = getattr(sys.modules[_INTERFACES].Environment, async_name, None)
    return name if getattr(cls, async_name, inherited) is inherited else async_name


def _refuse_dicts(step: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a step that refuses dicts, for actions of an unknown class."""

    def check(action: Any) -> Any:
        if isinstance(action, Mapping):
            raise ActionError(
                f"action: the hints of {name}.step() do not name the class of its actions, so a "
                "dict cannot be converted. Pass an object of that class, or add the hint."
            )
        return action

    if inspect.iscoroutinefunction(step):

        async def async_step(action: Any) -> Any:
            return await step(check(action))

        return async_step
    return lambda action: step(check(action))


def _calls_tools(cls: type) -> bool:
    tools = sys.modules.get(_TOOLS)
    return tools is not None and issubclass(cls, tools.MCPEnvironment)


def _first_parameter(step: Any) -> str:
    return next(iter(list(inspect.signature(step).parameters)[1:]), "")


def _read_hints(function: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError):
        return {}


def _specific(hint: Any, base: str) -> Any:
    """Return a specific hint: neither OpenEnv's own base class nor a type variable."""
    hint = observed_hint(hint)
    if hint is Any or isinstance(hint, typing.TypeVar):
        return None
    return None if hint is getattr(sys.modules[_INTERFACES], base) else hint


def _type_arguments(cls: Any) -> tuple[Any, Any, Any]:
    """Return the arguments of `Environment[Action, Observation, State]`, if any."""
    for base in cls.__mro__:
        for one in base.__dict__.get("__orig_bases__", ()):
            given = typing.get_args(one)
            if is_foreign(typing.get_origin(one)) and len(given) == 3:
                action, observation, state = given
                return (
                    _specific(action, "Action"),
                    _specific(observation, "Observation"),
                    _specific(state, "State"),
                )
    return None, None, None


def _union(*hints: Any) -> Any:
    different = list(dict.fromkeys(one for one in hints if one is not None))
    return functools.reduce(operator.or_, different)


_open: weakref.WeakSet[Any] = weakref.WeakSet()
_warned: set[type] = set()
_lock = threading.Lock()  # protects both


def _warn_if_concurrent(env: Any) -> None:
    """Warn once if several run in this process of a class that does not declare support for it."""
    cls: Any = type(env)
    if cls.SUPPORTS_CONCURRENT_SESSIONS:
        return
    with _lock:
        is_quiet = cls in _warned or not any(type(other) is cls for other in _open)
        _open.add(env)
        if is_quiet:
            return
        _warned.add(cls)
    logger.warning(
        "There are several %s in this process, and SUPPORTS_CONCURRENT_SESSIONS of that "
        "class is False. Use backend='process' with a worker for each, or set it to True.",
        cls.__name__,
    )


def _make_close(env: Any) -> Callable[[], Any]:
    """Return a function that closes an environment; a coroutine function if its own is one."""

    def unregister() -> None:
        with _lock:
            _open.discard(env)

    def close() -> None:
        unregister()
        env.close()

    async def close_async() -> None:
        unregister()
        await env.close()

    return close_async if inspect.iscoroutinefunction(env.close) else close
