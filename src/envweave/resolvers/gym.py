"""`gym://CartPole-v1`: Gymnasium's registered IDs; `gym://module:Name-v0` imports first."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from envweave.adapters.gymnasium import gymnasium_module
from envweave.errors import (
    EnvIdError,
    EnvNotFoundError,
    MissingExtraError,
    OptionError,
    PluginError,
    format_error,
    suggest,
)
from envweave.registry import EnvSpec, Registry

_PACKAGES = {"MiniGrid": "minigrid", "BabyAI": "minigrid", "ALE": "ale_py"}
"""Packages that register their environments when imported, by the beginning of the names."""


def resolve(rest: str, registry: Registry) -> EnvSpec:  # noqa: ARG001 - a resolver's signature
    """`gym://[module:]Name-v0`: an environment registered with Gymnasium.

    Keywords of `make` go to `gymnasium.make`. The module is imported first.

    Raises:
        MissingExtraError: Gymnasium is not installed.
        EnvNotFoundError: Gymnasium has no such ID.
        EnvIdError: It is not a Gymnasium ID.
        PluginError: The module that it names cannot be imported.
    """
    _find(rest)
    return EnvSpec(
        f"gym://{rest}",
        f"{__name__}:make_environment",
        kwargs={"gym_id": rest},
        batch_factory=f"{__name__}:make_batch",
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
        _refuse_unknown(spec, spec.entry_point, keywords)
        # The session checks return values already; checking twice would slow down every step.
        return gymnasium.make(gym_id, **{"disable_env_checker": True, **keywords})
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise _missing_package_error(gym_id, error) from error


def make_batch(
    gym_id: str,
    *,
    num_envs: int,
    vectorization_mode: Any = None,
    vector_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Any] = (),
    **keywords: Any,
) -> Any:
    """Make a Gymnasium vector, with any keyword of `gymnasium.make_vec`.

    Without a `vectorization_mode` it returns `None`, unless the ID has only a
    `vector_entry_point`.

    Raises:
        OptionError: The mode is unknown or not supported, or a keyword is not taken.
        MissingExtraError: The environment needs a package that is not installed.
    """
    gymnasium = gymnasium_module()
    spec = _find(gym_id)
    known = {one.value: one for one in gymnasium.VectorizeMode}
    if vectorization_mode is None:
        if spec.entry_point is not None or spec.vector_entry_point is None:
            return None
        vectorization_mode = "vector_entry_point"
    mode = getattr(vectorization_mode, "value", vectorization_mode)
    if mode not in known:
        raise OptionError(
            f"vectorization_mode must be one of {', '.join(map(repr, known))}, got {mode!r}."
            f"{suggest(str(mode), known)}"
        )
    whole = mode == "vector_entry_point"
    given = dict(vector_kwargs or {})
    if not whole:
        # Our side resets ended episodes in the same step, and gives each its seed.
        given.setdefault("autoreset_mode", gymnasium.vector.AutoresetMode.DISABLED)
    try:
        _refuse_unknown(spec, spec.vector_entry_point if whole else spec.entry_point, keywords)
        return gymnasium.make_vec(
            gym_id,
            num_envs=num_envs,
            vectorization_mode=known[mode],
            vector_kwargs=given,
            wrappers=wrappers,
            **keywords,
        )
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise _missing_package_error(gym_id, error) from error
    except gymnasium.error.Error as error:
        raise OptionError(
            f"vectorization_mode={mode!r} cannot be honored by 'gym://{gym_id}': {error}"
        ) from error


def _missing_package_error(gym_id: str, error: Exception) -> MissingExtraError:
    return MissingExtraError(f"'gym://{gym_id}' needs a package that is not installed: {error}")


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
                f"{format_error(error)}"
            ) from error
    elif name not in gymnasium.registry:
        _import_package_of(name)
    try:
        parsed = gymnasium.envs.registration.parse_env_id(name)
    except gymnasium.error.Error as error:
        raise EnvIdError(
            f"'gym://{gym_id}' is not a Gymnasium ID. Use 'gym://[module:][namespace/]Name-v0'."
        ) from error
    if parsed[2] is None:
        version = gymnasium.envs.registration.find_highest_version(*parsed[:2])
        name = gymnasium.envs.registration.get_env_id(*parsed[:2], version)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        near = suggest(name, gymnasium.registry)
        hint = near.replace("'", "'gym://", 1) if near else f" {error}"
        raise EnvNotFoundError(
            f"Gymnasium has no environment {name!r}.{hint} "
            "gymnasium.pprint_registry() lists all of them; an environment of another package "
            "is 'gym://module:Name-v0'."
        ) from error


def available() -> list[str]:
    """Return the IDs of all environments of Gymnasium and of installed packages known to it."""
    gymnasium = gymnasium_module()
    for package in sorted(set(_PACKAGES.values())):
        if importlib.util.find_spec(package) is not None:
            _register(package)
    return sorted(gymnasium.registry)


def _import_package_of(name: str) -> None:
    """Import the package that registers a name, if the name begins like one of its names."""
    family = re.split("[-/]", name)[0]
    package = _PACKAGES.get(family)
    if package is None:
        return
    try:
        _register(package)
    except ImportError as error:
        raise MissingExtraError(
            f"'gym://{name}' needs a package that is not installed: {error}. Install it with: "
            f"pip install {package.replace('_', '-')}"
        ) from error


def _register(package: str) -> None:
    module = importlib.import_module(package)
    if package == "ale_py":  # which leaves it to the caller
        gymnasium_module().register_envs(module)


def _refuse_unknown(spec: Any, entry: Any, keywords: dict[str, Any]) -> None:
    if "vectorization_mode" in keywords:
        raise OptionError(
            "'vectorization_mode' makes a Gymnasium vector. Pass it to make_vector(), "
            "with backend='inproc'."
        )
    if entry is None:
        return  # if the ID is invalid, Gymnasium raises
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
