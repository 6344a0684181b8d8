"""An environment's definition on its way to a server: an import path, and keywords as JSON.

A server need not be a process of the same user, so nothing is pickled.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from envweave.errors import DefinitionError, OptionError, PluginError
from envweave.registry import EnvSpec, ReadyMade
from envweave.registry.plugins import load_path
from envweave.registry.registry import LOCAL

_WAYS_OUT = "HTTP needs an importable definition; put it in a module, or use backend='process'."


def served_as(spec: EnvSpec, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what to tell a server process about a recipe, as JSON can hold it.

    Raises:
        DefinitionError: It cannot be imported by name.
        OptionError: A keyword has no form in JSON.
    """
    if isinstance(spec.factory, ReadyMade):
        name = type(spec.factory.environment).__name__
        raise DefinitionError(
            f"The {name} object is made already, and cannot move to a server. Pass its class, or "
            "serve it yourself with create_fastapi_app()."
        )
    env_id, given = spec.id, dict(kwargs)
    if not isinstance(spec.factory, str) or env_id.startswith(LOCAL):
        # Only this process knows it by its name.
        env_id, given = f"pkg://{import_path(spec.factory, spec.id)}", {**spec.kwargs, **kwargs}
    transform = spec.transform
    return {
        "id": env_id,
        "kwargs": _plain(given, spec.id),
        "max_episode_steps": spec.max_episode_steps,
        "transform": None if transform is None else import_path(transform, repr(transform)),
    }


def import_path(value: Callable[..., Any] | str, name: str) -> str:
    """Return where another process finds the same thing.

    Raises:
        DefinitionError: Nowhere.
    """
    if isinstance(value, str):
        return value
    module = getattr(value, "__module__", None)
    attribute = getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(attribute, str):
        raise DefinitionError(
            f"{name!r} is made by a {type(value).__name__} object, which has no name in a module. "
            f"{_WAYS_OUT}"
        )
    if module == "__main__":
        raise DefinitionError(f"{name!r} is defined in the program itself. {_WAYS_OUT}")
    path = f"{module}:{attribute}"
    try:
        is_there = "<" not in attribute and _is_found(module) and load_path(path) is value
    except PluginError:
        is_there = False
    if not is_there:
        raise DefinitionError(f"{name!r} cannot be imported as {path!r}. {_WAYS_OUT}")
    return path


def _is_found(name: str) -> bool:
    """Whether another process that looks in the same places finds this very module."""
    module = sys.modules.get(name)
    if module is None or getattr(module, "__file__", None) is None:
        return True
    parent = name.rpartition(".")[0]
    path: Any = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    if parent and (path is None or not _is_found(parent)):
        return False
    looks = (finder.find_spec(name, path) for finder in sys.meta_path)
    found = next((one for one in looks if one is not None), None)
    return found is not None and found.origin == module.__file__


def _plain(kwargs: Mapping[str, Any], env_id: str) -> dict[str, Any]:
    for name, value in kwargs.items():
        try:
            is_kept = json.loads(json.dumps(value, allow_nan=False)) == value
        except (TypeError, ValueError, RecursionError):
            is_kept = False
        if not is_kept:
            raise OptionError(
                f"{name}={value!r} of {env_id!r} cannot travel to a server: it is no plain JSON "
                "value. Pass texts, numbers, lists and dicts, or use backend='process'."
            )
    return dict(kwargs)
