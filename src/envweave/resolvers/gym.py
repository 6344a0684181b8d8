"""`gym://CartPole-v1`: what Gymnasium has registered; `gym://module:Name-v0` imports first."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from envweave.codec.spaces import gymnasium_module
from envweave.errors import (
    EnvIdError,
    EnvNotFoundError,
    MissingExtraError,
    OptionError,
    PluginError,
    in_words,
    suggest,
)
from envweave.registry import EnvSpec, Registry


def resolve(rest: str, registry: Registry) -> EnvSpec:  # noqa: ARG001 - a resolver's signature
    """Return the recipe of a Gymnasium ID. Keywords of `make` go to `gymnasium.make`.

    Raises:
        MissingExtraError: Gymnasium is not installed.
        EnvNotFoundError: Gymnasium knows no such ID.
        EnvIdError: It is no Gymnasium ID.
        PluginError: The module that it names cannot be imported.
    """
    _find(rest)
    return EnvSpec(
        f"gym://{rest}",
        f"{__name__}:make_environment",
        kwargs={"gym_id": rest},
        description=f"Gymnasium's {rest.rpartition(':')[2]}",
    )


def make_environment(gym_id: str, **keywords: Any) -> Any:
    """Make a Gymnasium environment, with any keyword of `gymnasium.make`.

    Raises:
        OptionError: The environment does not take a keyword.
        MissingExtraError: The environment needs a package that is not installed.
    """
    gymnasium = gymnasium_module()
    spec = _find(gym_id)
    try:
        _refuse_unknown(spec, keywords)
        # The session checks what an environment returns; doing it twice costs every step.
        return gymnasium.make(gym_id, **{"disable_env_checker": True, **keywords})
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise MissingExtraError(
            f"'gym://{gym_id}' needs a package that is not installed: {error}"
        ) from error


def _find(gym_id: str) -> Any:
    """Return Gymnasium's own recipe, importing the module that the ID names, if any."""
    gymnasium = gymnasium_module()
    module, _, name = gym_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except Exception as error:
            raise PluginError(
                f"'gym://{gym_id}' names the module {module!r}, which cannot be imported: "
                f"{in_words(error)}"
            ) from error
    try:
        parsed = gymnasium.envs.registration.parse_env_id(name)
    except gymnasium.error.Error as error:
        raise EnvIdError(
            f"'gym://{gym_id}' is no Gymnasium ID. Use 'gym://[module:][namespace/]Name-v0'."
        ) from error
    if parsed[2] is None:
        version = gymnasium.envs.registration.find_highest_version(*parsed[:2])
        name = gymnasium.envs.registration.get_env_id(*parsed[:2], version)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        near = suggest(name, gymnasium.registry)
        said = near.replace("'", "'gym://", 1) if near else f" {error}"
        raise EnvNotFoundError(
            f"Gymnasium knows no environment {name!r}.{said} "
            "gymnasium.pprint_registry() lists all it knows; an environment of another package "
            "is 'gym://module:Name-v0'."
        ) from error


def _refuse_unknown(spec: Any, keywords: dict[str, Any]) -> None:
    entry = spec.entry_point
    if entry is None:
        return  # only a vector can be made of it, as gymnasium.make will say
    load = gymnasium_module().envs.registration.load_env_creator
    creator = entry if callable(entry) else load(entry)
    parameters = inspect.signature(creator).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    own = ["max_episode_steps", "disable_env_checker"]
    for name in keywords:
        if name not in parameters and name not in own:
            known = f" It takes: {', '.join(parameters)}."
            raise OptionError(
                f"{name!r} is neither an option of make() nor a keyword of "
                f"'gym://{spec.id}'.{suggest(name, parameters) or known}"
            )
