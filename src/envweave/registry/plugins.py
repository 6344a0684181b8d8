"""Plug-ins: environments, resolvers and backends of installed packages.

They are entry points, found by name and imported only when that name is used.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

from envweave.errors import EnvWeaveError, PluginError, format_error, suggest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENVS, RESOLVERS, BACKENDS = "envweave.envs", "envweave.resolvers", "envweave.backends"


@functools.cache
def _find_entry_points(group: str) -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    # If two packages have the same name, the first on the path wins, as with imports.
    return {point.name: point for point in reversed(tuple(entry_points(group=group)))}


def plugin_names(group: str) -> list[str]:
    """Return the entry point names of a group, sorted."""
    return sorted(_find_entry_points(group))


def plugin_target(group: str, name: str) -> str | None:
    """Return the target of a plug-in, as `"module:attribute"`, without importing it."""
    point = _find_entry_points(group).get(name)
    return None if point is None else point.value


def load_plugin(group: str, name: str) -> Any:
    """Import and return a plug-in.

    Raises:
        LookupError: No package has it.
        PluginError: Importing it failed; the message names the plug-in, its package and why.
    """
    point = _find_entry_points(group)[name]
    try:
        return load_path(point.value)
    except PluginError as error:
        # Only here: finding a package's name reads and parses its metadata again.
        package = point.dist.name if point.dist is not None else "an unknown package"
        raise PluginError(
            f"The plug-in {name!r} ({group}) of {package} is broken. {error}"
        ) from error.__cause__


def load_path(path: str) -> Any:
    """Import `"module:attribute"`, or a module, and return it.

    Raises:
        PluginError: The module cannot be imported, or has no such attribute.
    """
    module_name, _, attribute = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split(".") if attribute else []:
            if not hasattr(found, part):
                hint = suggest(part, [name for name in dir(found) if not name.startswith("_")])
                raise PluginError(f"{module_name!r} has no attribute {part!r}.{hint}")
            found = getattr(found, part)
    except EnvWeaveError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise PluginError(
                f"{module_name!r} cannot be imported: there is no module {error.name!r}."
            ) from error
        raise PluginError(f"{module_name!r} cannot be imported: {format_error(error)}") from error
    except (Exception, SystemExit) as error:
        # A script that was written to be run may exit when it is imported.
        raise PluginError(f"{module_name!r} cannot be imported: {format_error(error)}") from error
    return found
