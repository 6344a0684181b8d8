"""Making environments: `make`, `make_async` and `make_vector`."""

from __future__ import annotations

import dataclasses
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
    spec = _recipe(env, registry, max_episode_steps, transform, kwargs)
    module = _backend(backend)
    return Env(module.connect(spec, kwargs, Options(autoreset, timeout_s)), spec.id)


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
    spec = _recipe(env, registry, max_episode_steps, transform, kwargs)
    module = _backend(backend)
    return AsyncEnv(module.connect_async(spec, kwargs, Options(autoreset, timeout_s)), spec.id)


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
    if num_envs < 1:
        raise OptionError(f"num_envs={num_envs!r} is no vector; use 1 or more.")
    if not isinstance(env, str) and not callable(env):
        raise OptionError(
            f"One {type(env).__name__} object cannot be {num_envs} environments. Pass its class, "
            "a function that makes one, or an ID."
        )
    spec = _recipe(env, registry, max_episode_steps, transform, kwargs)
    module = _backend(backend)
    transport = module.connect_vector(spec, kwargs, Options(autoreset, timeout_s, mode), num_envs)
    return VectorEnv(transport, num_envs)


def _recipe(
    env: Any,
    registry: Registry | None,
    max_episode_steps: int | None,
    transform: Transforms | None,
    kwargs: dict[str, Any],
) -> EnvSpec:
    if isinstance(env, str):
        spec = spec_of(env, registry=registry)
    elif isinstance(env, type) or (callable(env) and not hasattr(env, "step")):
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
        changes["max_episode_steps"] = max_episode_steps
    if transform is not None:
        changes["transform"] = transform
    return dataclasses.replace(spec, **changes) if changes else spec


def _backend(name: str) -> Any:
    known = plugin_names(BACKENDS)
    if name not in known:
        raise BackendNotFoundError(
            f"No backend is called {name!r}.{suggest(name, known)} Known: {', '.join(known)}."
        )
    return load_plugin(BACKENDS, name)
