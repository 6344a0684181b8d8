"""The first line of a recording: which environment it is of, and how to make it again."""

from __future__ import annotations

import math
import os
import platform
import re
import secrets
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
import numpy as np

from envweave.codec import AnySpec
from envweave.codec.digest import digest
from envweave.environment import Interface
from envweave.recording.events import SCHEMA
from envweave.registry import EnvSpec, ReadyMade
from envweave.registry.plugins import ENVS, plugin_target
from envweave.types import Tasks
from envweave.wire.description import Description, describe

_SECRET = re.compile(r"token|secret|passw|credential|api_?key|(^|_)key$", re.IGNORECASE)


def description_of(env_id: str, interface: Interface, tasks: Tasks | None) -> Description:
    """Return the description of an environment that its caller records."""
    return describe(interface, AnySpec(), tasks, env_id, _version("envweave") or "")


def header_of(
    spec: EnvSpec,
    kwargs: Mapping[str, Any],
    description: Description,
    *,
    backend: str,
    transform: Any = None,
) -> dict[str, Any]:
    """Return the fields of the line `run`.

    Args:
        spec: The recipe that it was made from.
        kwargs: The caller's keywords for its constructor.
        description: What it takes and shows.
        backend: Where it runs.
        transform: The caller's transform.
    """
    shown = msgspec.to_builtins(description)
    shown["env_id"] = without_password(shown["env_id"])
    return {
        "schema": SCHEMA,
        "run": secrets.token_hex(8),
        "env_id": without_password(spec.id),
        "backend": backend,
        "description": shown,
        "spec_digest": digest([description.action, description.observation]),
        **definition_of(spec, kwargs, transform),
        "versions": {
            "envweave": _version("envweave"),
            "python": platform.python_version(),
            "numpy": np.__version__,
            **_package_version(spec),
        },
        "pid": os.getpid(),
    }


def definition_of(
    spec: EnvSpec, kwargs: Mapping[str, Any], transform: Any = None
) -> dict[str, Any]:
    """Return `definition`, how to make the environment again, or `null` and `undefined`, why not.

    Keywords whose names suggest a secret are left out, and named in `withheld`.
    """
    factory = spec.factory
    path = _import_path(factory)
    plain: dict[str, Any] = {}
    withheld = []
    for name, value in kwargs.items():
        if _SECRET.search(name):
            withheld.append(name)
        elif not _is_plain(value):
            return _undefined(f"its keyword {name!r} is a {type(value).__name__}, not plain data")
        else:
            plain[name] = value
    env_id = without_password(spec.id)
    if env_id != spec.id:
        return _undefined("its ID has a password, which is not recorded")
    if isinstance(factory, ReadyMade):
        return _undefined(f"it was made of an existing {spec.id} object")
    if "://" not in env_id and plugin_target(ENVS, env_id) is None:
        if path is None:
            return _undefined(f"{spec.id} cannot be imported from a module")
        env_id = f"pkg://{path}"
    if transform is not None:
        return _undefined("it was made with transform=, which a recording cannot hold")
    definition: dict[str, Any] = {"id": env_id, "kwargs": plain}
    if path is not None:
        definition["path"] = path
    if withheld:
        definition["withheld"] = withheld
    if spec.max_episode_steps is not None:
        definition["max_episode_steps"] = spec.max_episode_steps
    return {"definition": definition}


def _undefined(why: str) -> dict[str, Any]:
    return {"definition": None, "undefined": why}


def _import_path(factory: Callable[..., Any] | str) -> str | None:
    """Return `module:name` of what can be imported."""
    if isinstance(factory, str):
        return factory
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is factory else None


def _is_plain(value: Any) -> bool:
    """Whether a value is the same after JSON."""
    kind = type(value)
    if kind is float:
        return math.isfinite(value)
    if kind in (str, bool, int) or value is None:
        return True
    if kind is list:
        return all(map(_is_plain, value))
    if kind is dict:
        return all(type(key) is str for key in value) and all(map(_is_plain, value.values()))
    return False


def without_password(env_id: str) -> str:
    """Return an ID without the user and password that its URL may have."""
    if "://" not in env_id or "@" not in env_id:
        return env_id
    parts = urlsplit(env_id)
    if parts.scheme not in ("http", "https") or parts.password is None:
        return env_id
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _package_version(spec: EnvSpec) -> dict[str, str]:
    """Return the version of the package that the environment comes from, if it is known."""
    if spec.package is not None:
        return {spec.package.name: spec.package.version}
    path = _import_path(spec.factory)
    if path is None:
        return {}
    name = path.partition(".")[0].partition(":")[0]
    version = _version(name)
    if version is None:
        found = getattr(sys.modules.get(name), "__version__", None)
        version = found if isinstance(found, str) else None
    return {} if version is None or name == "envweave" else {name: version}
