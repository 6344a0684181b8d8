"""Making environments: `make`, `make_async` and `make_vector`."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

from envweave.api.env import AsyncEnv, Env
from envweave.api.naming import spec as spec_of
from envweave.errors import BackendNotFoundError, OptionError, suggest
from envweave.registry import EnvSpec, Options, Registry
from envweave.registry.plugins import BACKENDS, load_plugin, plugin_names
from envweave.types import Observation
from envweave.vector import VectorEnv

Transforms = Callable[[Observation], Observation]


def make(
    env: Any,
    *,
    backend: str = "inproc",
    autoreset: bool = False,
    timeout_s: float | None = None,
    max_episode_steps: int | None = None,
    transform: Transforms | None = None,
    registry: Registry | None = None,
    **kwargs: Any,
) -> Env:
    """Make an environment, and return the caller's side of it.

    Args:
        env: An ID, an environment object, or a class.
        backend: Where it runs.
        autoreset: Whether an end begins the next episode, in the same result.
        timeout_s: How long one call may take, on backends that can end a call.
        max_episode_steps: Truncate every episode after so many steps.
        transform: Applied to every observation.
        registry: Where to look up the ID; a table of this process by default.
        **kwargs: Passed to the environment's constructor.

    Raises:
        EnvNotFoundError: Nobody answers to the ID.
        BackendNotFoundError: No backend has this name.
        OptionError: A keyword that neither `make` nor the environment knows.
        DefinitionError: The environment could not be made.
    """
    module = _backend(backend)
    options = Options(_flag("autoreset", autoreset), timeout_s)
    spec = _recipe(env, registry, max_episode_steps, transform, kwargs)
    return Env(module.connect(spec, kwargs, options), spec.id)


def make_async(
    env: Any,
    *,
    backend: str = "inproc",
    autoreset: bool = False,
    timeout_s: float | None = None,
    max_episode_steps: int | None = None,
    transform: Transforms | None = None,
    registry: Registry | None = None,
    **kwargs: Any,
) -> AsyncEnv:
    """Make an environment for an async caller. Takes and raises what `make` does.

    In-process, an environment written with plain functions runs on the loop's own thread.
    """
    module = _backend(backend)
    options = Options(_flag("autoreset", autoreset), timeout_s)
    spec = _recipe(env, registry, max_episode_steps, transform, kwargs)
    return AsyncEnv(module.connect_async(spec, kwargs, options), spec.id)


def make_vector(
    env: Any,
    *,
    num_envs: int,
    backend: str = "inproc",
    mode: str | None = None,
    autoreset: bool = False,
    timeout_s: float | None = None,
    max_episode_steps: int | None = None,
    transform: Transforms | None = None,
    registry: Registry | None = None,
    **kwargs: Any,
) -> VectorEnv:
    """Make `num_envs` environments of one kind, stepped together.

    Takes an ID or a class; one object cannot be many environments. Raises what `make` does.

    Args:
        env: An ID, a class, or a function that makes one.
        num_envs: How many.
        backend: Where they run.
        mode: In this process: `"serial"`, one after the other in this thread; `"threads"`,
            for steps that wait on something; `"async"`, at once on one event loop. Left out,
            async environments run as `"async"`, all others as `"serial"`.
        autoreset: Whether an end begins the next episode, in the same result.
        timeout_s: How long one call may take, on backends that can end a call.
        max_episode_steps: Truncate every episode after so many steps.
        transform: Applied to every observation.
        registry: Where to look up the ID; a table of this process by default.
        **kwargs: Passed to each environment's constructor.
    """
    count = _count("num_envs", num_envs)
    if not isinstance(env, str) and not _makes_environments(env):
        raise OptionError(
            f"One {type(env).__name__} object cannot be {count} environments. Pass its class, "
            "a function that makes one, or an ID."
        )
    module = _backend(backend)
    options = Options(_flag("autoreset", autoreset), timeout_s, mode)
    spec = _recipe(env, registry, max_episode_steps, transform, kwargs)
    return VectorEnv(module.connect_vector(spec, kwargs, options, count), count)


def _recipe(
    env: Any,
    registry: Registry | None,
    max_episode_steps: int | None,
    transform: Transforms | None,
    kwargs: dict[str, Any],
) -> EnvSpec:
    if isinstance(env, str):
        spec = spec_of(env, registry=registry)
    elif _makes_environments(env):
        spec = EnvSpec(getattr(env, "__qualname__", repr(env)), env)
    else:
        name = type(env).__qualname__
        if kwargs:
            raise OptionError(
                f"{next(iter(kwargs))!r} is no option of make(), and the {name} object is made "
                "already. Pass its class to give it keywords."
            )
        spec = EnvSpec(name, lambda: env)
    changes: dict[str, Any] = {}
    if max_episode_steps is not None:
        changes["max_episode_steps"] = _count("max_episode_steps", max_episode_steps)
    if transform is not None:
        if not callable(transform):
            raise OptionError(
                f"transform={transform!r} cannot be called. Pass a Transform, or a function that "
                "takes an observation and returns one."
            )
        changes["transform"] = transform
    return dataclasses.replace(spec, **changes) if changes else spec


def _makes_environments(env: Any) -> bool:
    """Whether it is a class or a function, and no environment that can itself be called."""
    return isinstance(env, type) or (callable(env) and not hasattr(env, "step"))


def _count(name: str, value: Any) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if count < 1 or isinstance(value, bool):
        raise OptionError(
            f"{name}={value!r} is no whole number of 1 or more; use 1 or more, such as {name}=8."
        )
    return count


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"{name}={value!r} is neither True nor False; use one of them.")
    return value


def _backend(name: Any) -> Any:
    known = plugin_names(BACKENDS)
    if not isinstance(name, str):
        raise OptionError(f"backend={name!r} is no name. Use one of {', '.join(map(repr, known))}.")
    if name not in known:
        raise BackendNotFoundError(
            f"No backend is called {name!r}.{suggest(name, known)} Known: {', '.join(known)}."
        )
    return load_plugin(BACKENDS, name)
