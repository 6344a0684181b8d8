"""Inspect registered plug-ins: a broken one is reported and does not affect the others."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envweave.errors import EnvWeaveError, format_error

if TYPE_CHECKING:
    from envweave.registry import EnvSpec


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """A registered environment, scheme or backend.

    Attributes:
        name: Its name.
        description: The first line of its docstring, if it could be loaded.
        defined_in: Where it is defined, as `"module:attribute"`.
        error: Why it cannot be loaded; `None` if it can.
    """

    name: str
    description: str
    defined_in: str
    error: str | None


def inspect_env(spec: EnvSpec) -> PluginStatus:
    """Load an environment's factory, for its description."""
    description, error = _attempt(spec.describe)
    return PluginStatus(spec.id, description, definition_of(spec.factory), error)


def inspect_plugin(group: str, name: str) -> PluginStatus:
    """Load a scheme or a backend, for the first line of its docstring, or of its module's."""
    from envweave.registry.plugins import load_plugin, plugin_target

    target = plugin_target(group, name) or ""

    def describe() -> str:
        plugin = load_plugin(group, name)
        module = sys.modules[target.partition(":")[0]]
        docstring = inspect.getdoc(plugin) or inspect.getdoc(module) or ""
        return docstring.partition("\n")[0].replace("`", "")

    description, error = _attempt(describe)
    return PluginStatus(name, description, target, error)


@dataclass(frozen=True, slots=True)
class SchemeContent:
    """What an ID scheme offers on this machine.

    Attributes:
        scheme: Its name.
        ids: The IDs, sorted.
        error: Why there are none, with how to install what is missing; `None` if it has them.
    """

    scheme: str
    ids: list[str]
    error: str | None


def inspect_content(scheme: str) -> SchemeContent | None:
    """List the IDs of a scheme, by the function `available` beside its resolver, if it has one."""
    from envweave.registry.plugins import RESOLVERS, load_plugin, plugin_target

    names: list[str] = []

    def read() -> str:
        load_plugin(RESOLVERS, scheme)
        module = sys.modules[(plugin_target(RESOLVERS, scheme) or "").partition(":")[0]]
        find = getattr(module, "available", None)
        names.extend([] if find is None else find())
        return "" if find is None else "listed"

    listed, error = _attempt(read)
    if not listed and error is None:
        return None
    return SchemeContent(scheme, [f"{scheme}://{name}" for name in names], error)


def definition_of(factory: Callable[..., Any] | str) -> str:
    """Return where a factory is defined, as `"module:attribute"`."""
    if isinstance(factory, str):
        return factory
    owner = factory if hasattr(factory, "__qualname__") else type(factory)
    return f"{owner.__module__}:{owner.__qualname__}"


def _attempt(describe: Callable[[], str]) -> tuple[str, str | None]:
    try:
        return describe(), None
    except EnvWeaveError as error:
        return "", str(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - importing runs a third party's code
        return "", format_error(error)
