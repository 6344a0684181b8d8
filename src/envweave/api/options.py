"""Parses the arguments of `make`: the recipe, the options, the backend."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, ParamSpec, TypeVar

from envweave.api.registration import spec as spec_of
from envweave.errors import BackendNotFoundError, EnvWeaveError, OptionError, suggest
from envweave.registry import EnvSpec, MadeElsewhere, RayOptions, ReadyMade, Registry, Remote
from envweave.registry.plugins import BACKENDS, load_plugin, plugin_names
from envweave.types import Observation

Transforms = Callable[[Observation], Observation]

P = ParamSpec("P")
R = TypeVar("R")

_HTTP, _CONTAINERS, _PODS = "http", "docker_http", "kubernetes"


def constructor_keywords(
    kwargs: Mapping[str, Any] | None, keywords: dict[str, Any]
) -> dict[str, Any]:
    """Return the keywords for an environment's constructor: `kwargs`, and all other keywords.

    Raises:
        OptionError: `kwargs` is not a dict with string keys, or repeats another keyword.
    """
    if kwargs is None:
        return keywords
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise OptionError(f"kwargs must be a dict with string keys, got {kwargs!r}.")
    for name in keywords:
        if name in kwargs:
            raise OptionError(
                f"{name!r} was passed twice, as a keyword and in kwargs. Leave one out."
            )
    return {**kwargs, **keywords}


def explain_collisions(make: Callable[P, R]) -> Callable[P, R]:
    """Add to a refused option how to pass it to a constructor that takes the same name."""
    options = inspect.signature(make).parameters

    @functools.wraps(make)
    def wrapper(*args: P.args, **keywords: P.kwargs) -> R:
        try:
            return make(*args, **keywords)
        except (OptionError, BackendNotFoundError) as error:
            env = args[0] if args else keywords.get("env")
            taken = _constructor_parameters(env, keywords.get("registry"))
            for name in taken:
                was_given = name in keywords or f"needs the keyword {name!r}" in str(error)
                if name in options and was_given and re.search(rf"\b{name}\b", str(error)):
                    raise type(error)(_add_explanation(str(error), name)) from error
            raise

    return wrapper


def _add_explanation(message: str, name: str) -> str:
    given = f"kwargs={{{name!r}: …}}"
    needed = message.replace(f"(..., {name}=…)", f"(..., {given})")
    if needed != message or "kwargs" in message:
        return needed
    return f"{message} The environment's constructor takes {name!r} as well: pass it as {given}."


def _constructor_parameters(env: Any, registry: Any) -> Collection[str]:
    try:
        factory = spec_of(env, registry=registry).load() if isinstance(env, str) else env
        return inspect.signature(factory).parameters if makes_environments(factory) else ()
    except (EnvWeaveError, TypeError, ValueError):
        return ()  # the original error says enough


def recipe(
    env: Any,
    registry: Registry | None,
    max_episode_steps: int | None,
    transform: Transforms | None,
    kwargs: dict[str, Any],
) -> EnvSpec:
    """Return the recipe for an ID, a class, a function or an object."""
    if isinstance(env, str):
        spec = spec_of(env, registry=registry)
    elif makes_environments(env):
        spec = EnvSpec(getattr(env, "__qualname__", repr(env)), env)
    else:
        name = type(env).__qualname__
        if kwargs:
            raise OptionError(
                f"{next(iter(kwargs))!r} is not an option of make(), and the {name} object was "
                "already made. Pass its class to give it keywords."
            )
        spec = EnvSpec(name, ReadyMade(env))
    changes: dict[str, Any] = {}
    if max_episode_steps is not None:
        changes["max_episode_steps"] = whole_number("max_episode_steps", max_episode_steps)
    if transform is not None:
        if not callable(transform):
            raise OptionError(
                f"transform={transform!r} cannot be called. Pass a Transform, or a function that "
                "takes an observation and returns one."
            )
        changes["transform"] = transform
    return dataclasses.replace(spec, **changes) if changes else spec


def with_registered_server(spec: EnvSpec, backend: Any, remote: Remote) -> Remote:
    """Return how to reach a server, with the URL or image that the ID was registered with.

    The caller's arguments take precedence.

    Raises:
        OptionError: The ID has no factory, and nothing else that the backend could use.
    """
    if remote.base_url is not None or remote.docker_image is not None:
        return remote
    if backend is None and isinstance(spec.factory, MadeElsewhere):
        is_url = spec.base_url is not None and remote.provider is None
        backend = _HTTP if is_url else _CONTAINERS
    elif backend is None:
        backend, _ = _implied_backend(spec, backend, remote, None)
    if backend == _HTTP and spec.base_url is not None and remote.provider is None:
        return dataclasses.replace(remote, base_url=spec.base_url)
    if backend in (_CONTAINERS, _PODS) and spec.docker_image is not None:
        return dataclasses.replace(remote, docker_image=spec.docker_image)
    if isinstance(spec.factory, MadeElsewhere):
        spec.factory()
    return remote


def choose_backend(
    spec: EnvSpec,
    backend: Any,
    remote: Remote,
    max_episode_steps: int | None,
    transform: Transforms | None,
    kwargs: dict[str, Any],
) -> tuple[Any, dict[str, Any]]:
    """Return the backend of an environment, and the keywords of its factory.

    The ID decides, then the caller; the default is `"inproc"`.

    Raises:
        OptionError: They contradict each other, or an option can only be set when the server is
            started.
    """
    if spec.takes_token and remote.token is not None:
        kwargs = {**kwargs, "token": remote.token}
        remote = dataclasses.replace(remote, token=None)
    if isinstance(remote.base_url, str) and not remote.base_url.strip():
        raise OptionError(
            f"base_url={remote.base_url!r} is not the URL of a server. Pass one such as "
            "'http://127.0.0.1:8000', or leave it out."
        )
    if spec.backend is not None and remote.base_url is not None:
        raise OptionError(
            f"base_url={remote.base_url!r} and {spec.id!r} are two servers. Name one of them."
        )
    url = spec.id if spec.backend == "http" else remote.base_url
    named, by = _implied_backend(spec, backend, remote, url)
    if named is not None and backend not in (None, named):
        raise OptionError(f"backend={backend!r} cannot be combined with {by}. Leave backend out.")
    chosen = (named or "inproc") if backend is None else backend
    if url is not None:
        _refuse_for_servers(url, max_episode_steps, transform, remote.provider, kwargs)
    elif chosen not in (_HTTP, _CONTAINERS, _PODS):
        only_for_servers = {
            "token": remote.token,
            "encoding": remote.encoding,
            "wait_s": remote.wait_s,
        }
        for name, value in only_for_servers.items():
            if value not in (None, "msgpack"):
                raise OptionError(
                    f"{name} is for a server, and backend={chosen!r} has none. Leave it out, or "
                    "name the server with base_url=…."
                )
    return chosen, _with_isolation(kwargs, remote.isolation, chosen)


def ray_options(
    chosen: Any, kwargs: dict[str, Any], options: RayOptions
) -> tuple[RayOptions, dict[str, Any]]:
    """Return the options for Ray, and the keywords of an environment's constructor.

    With another backend they can only be meant for the constructor, which refuses unknown ones.
    """
    if chosen == "ray":
        return options, kwargs
    given = {
        field.name: value
        for field in dataclasses.fields(options)
        if (value := getattr(options, field.name)) is not None
    }
    return RayOptions(), {**kwargs, **given}


def _implied_backend(
    spec: EnvSpec, backend: Any, remote: Remote, url: str | None
) -> tuple[str | None, str]:
    """Return the backend that another argument implies, and a name for that argument.

    Raises:
        OptionError: An image is named, and so is something else.
    """
    image = remote.docker_image
    if image is not None and (url is not None or spec.backend is not None):
        other = url or spec.id
        raise OptionError(f"docker_image={image!r} contradicts {other!r}. Pass one of them.")
    containers = _PODS if backend == _PODS else _CONTAINERS
    if spec.backend == _CONTAINERS:
        return containers, spec.id
    if spec.backend is not None or url is not None:
        return spec.backend or _HTTP, url or spec.id
    if image is not None:
        return containers, f"the image {image!r}"
    if remote.provider is None:
        return None, ""
    from envweave.providers import SubprocessProvider
    from envweave.providers.base import WatchedProvider
    from envweave.providers.docker.warm_pool import WarmPool

    # A third-party provider says itself what it starts.
    is_container = backend == containers or (
        isinstance(remote.provider, WatchedProvider | WarmPool)
        and not isinstance(remote.provider, SubprocessProvider)
    )
    return containers if is_container else _HTTP, "a provider"


def _with_isolation(kwargs: dict[str, Any], isolation: Any, chosen: Any) -> dict[str, Any]:
    """Return the keywords of a factory, which may take its own `isolation`.

    Raises:
        OptionError: A container per environment was requested, but the backend has none.
    """
    if isolation is None or (isolation == "container" and chosen in (_CONTAINERS, _PODS)):
        return kwargs
    if isolation == "container":
        raise OptionError(
            f"isolation='container' is for containers, and backend={chosen!r} has none. Name an "
            "image with docker_image=…, or leave it out."
        )
    return {**kwargs, "isolation": isolation}


def _refuse_for_servers(
    url: str, limit: Any, transform: Any, provider: Any, kwargs: dict[str, Any]
) -> None:
    given = {"max_episode_steps": limit, "transform": transform, **kwargs}
    for name, value in given.items():
        if value is not None or name in kwargs:
            raise OptionError(
                f"{name}={value!r} comes too late: the server at {url} makes its environments "
                f"itself. Start it with {name}, or leave it out."
            )
    if provider is not None:
        raise OptionError(
            f"provider={provider!r} would start a server, but {url} is already running. Leave one "
            "out."
        )


def makes_environments(env: Any) -> bool:
    """Whether it is a class or a function, rather than a callable environment."""
    return isinstance(env, type) or (callable(env) and not hasattr(env, "step"))


def refuse_one_object(env: Any, count: int) -> None:
    """Refuse to make many environments from one object."""
    if not isinstance(env, str) and not makes_environments(env):
        raise OptionError(
            f"One {type(env).__name__} object cannot be {count} environments. Pass its class, "
            "a function that makes one, or an ID."
        )


def whole_number(name: str, value: Any) -> int:
    """Check an option that is a count."""
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if count < 1 or isinstance(value, bool):
        raise OptionError(f"{name} must be an integer >= 1, such as {name}=8, got {value!r}.")
    return count


def flag(name: str, value: Any) -> bool:
    """Check an option that is a bool."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be True or False, got {value!r}.")
    return value


def seconds(name: str, value: Any) -> float | None:
    """Check an option that is a duration; `None` means no limit."""
    if value is None:
        return None
    try:
        length = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        length = math.nan
    if not 0 < length < math.inf:
        raise OptionError(
            f"{name} must be a number of seconds > 0, such as {name}=5.0, got {value!r}. Leave it "
            "out for no limit."
        )
    return length


def backend_module(name: Any) -> Any:
    """Return the module of a backend.

    Raises:
        BackendNotFoundError: No backend has this name.
    """
    known = plugin_names(BACKENDS)
    if not isinstance(name, str):
        raise OptionError(f"backend must be one of {', '.join(map(repr, known))}, got {name!r}.")
    if name not in known:
        raise BackendNotFoundError(
            f"No backend is called {name!r}.{suggest(name, known)} Known: {', '.join(known)}."
        )
    return load_plugin(BACKENDS, name)
