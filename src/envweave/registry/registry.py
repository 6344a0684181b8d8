"""The registry: IDs and the recipes they name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, final

from envweave.errors import (
    AlreadyRegisteredError,
    DefinitionError,
    EnvIdError,
    EnvNotFoundError,
    OptionError,
)
from envweave.registry.plugins import ENVS, plugin_names, plugin_target
from envweave.registry.spec import EnvSpec, MadeElsewhere
from envweave.types import Observation

LOCAL = "local://"


@final
class Registry:
    """A table of IDs. Tests and libraries make their own; `register` uses a default one."""

    def __init__(self) -> None:
        self._specs: dict[str, EnvSpec] = {}
        self._lock = threading.Lock()  # protects _specs

    def register(
        self,
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
    ) -> EnvSpec:
        """Register a recipe. See `envweave.register`."""
        name = local_name(env_id)
        if None not in (replace, overwrite) and replace != overwrite:
            raise OptionError(
                f"replace={replace!r} and overwrite={overwrite!r} contradict each other: they are "
                "two names for one option. Pass one of them."
            )
        if factory is None:
            if base_url is None and docker_image is None:
                raise DefinitionError(
                    f"{env_id!r} cannot be registered with nothing to make it from. Pass a "
                    "factory, base_url=… of a server, or docker_image=…."
                )
            if docker_image is None and (kwargs or max_episode_steps or transform):
                raise OptionError(
                    f"{env_id!r}: the server at {base_url} makes its environments itself. Start "
                    "it with kwargs, max_episode_steps and transform, and register the URL alone."
                )
            factory = MadeElsewhere(LOCAL + name)
        if not isinstance(factory, str) and not callable(factory):
            raise DefinitionError(
                f"{env_id!r} cannot be registered with {type(factory).__name__} object "
                f"{factory!r}, which is not callable. Pass a class, a function that returns "
                "an environment, or 'module:attribute'."
            )
        spec = EnvSpec(
            LOCAL + name,
            factory,
            kwargs=dict(kwargs or {}),
            max_episode_steps=max_episode_steps,
            transform=transform,
            description=description,
            base_url=base_url,
            docker_image=docker_image,
        )
        with self._lock:
            if name in self._specs and not (replace or overwrite):
                raise AlreadyRegisteredError(
                    f"{env_id!r} is registered already. Choose another name, or pass replace=True."
                )
            self._specs[name] = spec
        return spec

    def get(self, name: str, *, announced: bool) -> EnvSpec:
        """Return the recipe for a name without scheme.

        Args:
            name: Such as `"counter-v0"`.
            announced: Whether environments of installed packages count too.

        Raises:
            EnvNotFoundError: No environment has this name.
        """
        with self._lock:
            names = list(self._specs)
            if name in self._specs:
                return self._specs[name]
        if announced:
            target = plugin_target(ENVS, name)
            if target is not None:
                return EnvSpec(name, target)
        known = [LOCAL + one for one in names] + plugin_names(ENVS)
        if announced:
            raise EnvNotFoundError.for_id(name, known + names)
        raise EnvNotFoundError.for_id(LOCAL + name, known)

    def list(self) -> list[EnvSpec]:
        """Return all recipes: those registered here, then those of installed packages."""
        announced = [EnvSpec(n, plugin_target(ENVS, n) or "") for n in plugin_names(ENVS)]
        with self._lock:
            registered = [self._specs[name] for name in sorted(self._specs)]
        return registered + announced


def local_name(env_id: str) -> str:
    """Return the name within a `local://` or bare ID.

    Raises:
        EnvIdError: It has another scheme, or no name.
    """
    if not isinstance(env_id, str):
        raise EnvIdError(f"The ID must be a string such as 'local://name-v0', got {env_id!r}.")
    name = env_id.removeprefix(LOCAL)
    if "://" in name:
        scheme = name.partition("://")[0]
        raise EnvIdError(
            f"{env_id!r} cannot be registered: {scheme}:// IDs are defined elsewhere. "
            f"Use 'local://name-v0'."
        )
    if not name or name != name.strip() or any(character.isspace() for character in name):
        raise EnvIdError(f"{env_id!r} is not a valid ID. Use 'local://name-v0', without spaces.")
    return name


DEFAULT_REGISTRY = Registry()
"""The registry that `register` uses by default."""
