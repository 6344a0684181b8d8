"""Register and look up environments: `register`, `spec`, `list_envs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from envweave.environment.introspection import refuse_types
from envweave.errors import EnvIdError, EnvNotFoundError, EnvWeaveError, suggest
from envweave.registry import DEFAULT_REGISTRY, EnvSpec, Registry
from envweave.registry.plugins import RESOLVERS, load_plugin, plugin_names
from envweave.types import Observation


def register(
    env_id: str,
    factory: Callable[..., Any] | str | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    transform: Callable[[Observation], Observation] | None = None,
    description: str = "",
    base_url: str | None = None,
    docker_image: str | None = None,
    replace: bool | None = None,
    overwrite: bool | None = None,
    registry: Registry | None = None,
) -> EnvSpec:
    """Register an environment under an ID for `make`.

    An ID may have a factory, a server and an image. Then `backend`, or a provider that starts
    containers, chooses among them; the default is the factory. An ID without a factory connects to
    its server, or starts its image.

    Args:
        env_id: `"local://name-v0"`, or the bare name.
        factory: A class, a function that returns an environment, or an import path
            `"module:attribute"`. May be left out with `base_url` or `docker_image`.
        kwargs: Keywords for the factory.
        max_episode_steps: Truncate every episode after this many steps.
        transform: Applied to every observation.
        description: One line for `envweave list`.
        base_url: A server that runs it, for `backend="http"`.
        docker_image: An image that serves it, for `backend="docker_http"` and `"kubernetes"`.
        replace: Whether an existing registration may be replaced.
        overwrite: Another name for `replace`.
        registry: Where to register it; by default the registry of this process.

    Raises:
        AlreadyRegisteredError: The ID is taken.
        EnvIdError: It is not an ID that can be registered.
        DefinitionError: The types of its actions or observations are not supported, or there is
            nothing to make it from.
        OptionError: Options contradict each other.
    """
    refuse_types(factory)
    return (DEFAULT_REGISTRY if registry is None else registry).register(
        env_id,
        factory,
        kwargs=kwargs,
        max_episode_steps=max_episode_steps,
        transform=transform,
        description=description,
        base_url=base_url,
        docker_image=docker_image,
        replace=replace,
        overwrite=overwrite,
    )


def spec(env_id: str, *, registry: Registry | None = None) -> EnvSpec:
    """Return the recipe that an ID names, without making anything.

    Raises:
        EnvNotFoundError: No environment has this ID.
        EnvIdError: The ID is malformed, or its scheme unknown.
    """
    table = DEFAULT_REGISTRY if registry is None else registry
    if not isinstance(env_id, str):
        raise EnvIdError(
            f"The ID must be a string such as 'name-v0', got {env_id!r}. See `envweave list`."
        )
    scheme, separator, rest = env_id.partition("://")
    if not separator:
        if not env_id.strip():
            raise EnvIdError("The ID is empty. See `envweave list`.")
        return _bare(env_id, table)
    scheme = scheme.lower()  # as in every URL
    known = plugin_names(RESOLVERS)
    if scheme not in known:
        hint = suggest(scheme, known)
        raise EnvIdError(
            f"{env_id!r} has an unknown scheme {scheme!r}.{hint} "
            f"Known: {', '.join(f'{one}://' for one in known)}."
        )
    if not rest:
        raise EnvIdError(f"{env_id!r} names nothing after '{scheme}://'.")
    resolve: Callable[[str, Registry], EnvSpec] = load_plugin(RESOLVERS, scheme)
    return resolve(rest, table)


def _bare(env_id: str, table: Registry) -> EnvSpec:
    """Return the recipe of a bare ID: registered, of an installed package, or of the Prime Hub."""
    try:
        return table.get(env_id, announced=True)
    except EnvNotFoundError as unknown:
        if "/" not in env_id:
            raise
        resolve: Callable[[str, Registry], EnvSpec] = load_plugin(RESOLVERS, "prime")
        try:
            return resolve(env_id, table)
        except EnvIdError:
            raise unknown from None
        except EnvWeaveError as error:
            raise EnvNotFoundError(
                f"{unknown} Nor was it found on the Prime Hub, as 'prime://{env_id}': {error}"
            ) from error


def list_envs(*, registry: Registry | None = None) -> list[EnvSpec]:
    """Return all named environments: registered ones, then those of installed packages."""
    return (DEFAULT_REGISTRY if registry is None else registry).list()
