"""An environment's definition for a server process: an import path, and keywords as JSON.

A server may run as another user, so nothing is pickled.
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

_REMEDY = "HTTP needs an importable definition; put it in a module, or use backend='process'."


def server_config(spec: EnvSpec, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON configuration by which a server process makes the environment.

    Raises:
        DefinitionError: It cannot be imported by name.
        OptionError: A keyword is not JSON data.
    """
    if isinstance(spec.factory, ReadyMade):
        name = type(spec.factory.environment).__name__
        raise DefinitionError(
            f"The {name} object exists already, and cannot be sent to a server. Pass its class, or "
            "serve it yourself with create_fastapi_app()."
        )
    env_id, given = spec.id, dict(kwargs)
    if not isinstance(spec.factory, str) or env_id.startswith(LOCAL):
        # Its ID is known in this process only.
        env_id, given = f"pkg://{import_path(spec.factory, spec.id)}", {**spec.kwargs, **kwargs}
    transform = spec.transform
    return {
        "id": env_id,
        "kwargs": _plain(given, spec.id),
        "max_episode_steps": spec.max_episode_steps,
        "transform": None if transform is None else import_path(transform, repr(transform)),
    }


def import_path(value: Callable[..., Any] | str, name: str) -> str:
    """Return the import path by which another process finds the same object.

    Raises:
        DefinitionError: It has none.
    """
    if isinstance(value, str):
        return value
    module = getattr(value, "__module__", None)
    attribute = getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(attribute, str):
        raise DefinitionError(
            f"{name!r} is made by a {type(value).__name__} object, which has no name in a module. "
            f"{_REMEDY}"
        )
    if module == "__main__":
        raise DefinitionError(f"{name!r} is defined in the program itself. {_REMEDY}")
    path = f"{module}:{attribute}"
    try:
        is_there = "<" not in attribute and _is_found(module) and load_path(path) is value
    except PluginError:
        is_there = False
    if not is_there:
        raise DefinitionError(f"{name!r} cannot be imported as {path!r}. {_REMEDY}")
    return path


def _is_found(name: str) -> bool:
    """Whether another process with the same `sys.path` imports the same module."""
    module = sys.modules.get(name)
    if module is None or getattr(module, "__file__", None) is None:
        return True
    parent = name.rpartition(".")[0]
    path: Any = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    if parent and (path is None or not _is_found(parent)):
        return False
    specs = (finder.find_spec(name, path) for finder in sys.meta_path)
    found = next((spec for spec in specs if spec is not None), None)
    return found is not None and found.origin == module.__file__


def _plain(kwargs: Mapping[str, Any], env_id: str) -> dict[str, Any]:
    for name, value in kwargs.items():
        try:
            is_json = json.loads(json.dumps(value, allow_nan=False)) == value
        except (TypeError, ValueError, RecursionError):
            is_json = False
        if not is_json:
            raise OptionError(
                f"{name}={value!r} of {env_id!r} cannot be sent to a server: it is not a plain "
                "JSON value. Pass strings, numbers, lists and dicts, or use backend='process'."
            )
    return dict(kwargs)
