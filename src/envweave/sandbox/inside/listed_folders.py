"""Imports from folders that a session may not list.

Landlock grants the right to list a folder together with everything below it. Folders with hidden
content therefore cannot be listed, which the interpreter's own finder would do at the first import:
here the names are known in advance.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ModuleSpec,
)
from importlib.util import spec_from_file_location
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from importlib.metadata import PathDistribution

_SUFFIXES = (
    *EXTENSION_SUFFIXES,
    *SOURCE_SUFFIXES,
    *BYTECODE_SUFFIXES,
)  # in the interpreter's order
_ABOUT = (".dist-info", ".egg-info")


def use_listings(listings: Mapping[str, Iterable[str]]) -> None:
    """Search these folders, given with the names in them, by `ListedFolder`."""
    folders = {path: ListedFolder(path, names) for path, names in listings.items()}

    def hook(path: str) -> ListedFolder:
        if path not in folders:
            raise ImportError(path)
        return folders[path]

    sys.path_hooks.insert(0, hook)
    sys.meta_path.append(_Distributions(folders))


@final
class ListedFolder:
    """Finds the modules of one folder. See `importlib.abc.PathEntryFinder`."""

    def __init__(self, path: str, names: Iterable[str]) -> None:
        self.path = path
        self.names = frozenset(names)

    def find_spec(self, fullname: str, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        """Return the package, the module or the namespace portion of this name."""
        name = fullname.rpartition(".")[2]
        folder = f"{self.path}/{name}"
        is_folder = name in self.names and os.path.isdir(folder)
        if is_folder:
            for suffix in _SUFFIXES:
                location = f"{folder}/__init__{suffix}"
                if os.path.isfile(location):
                    return spec_from_file_location(
                        fullname, location, submodule_search_locations=[folder]
                    )
        for suffix in _SUFFIXES:
            if name + suffix in self.names:
                return spec_from_file_location(fullname, f"{self.path}/{name}{suffix}")
        if not is_folder:
            return None
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [folder]
        return spec


@final
class _Distributions:
    """Finds the metadata of distributions. See `importlib.metadata.DistributionFinder`."""

    def __init__(self, folders: Mapping[str, ListedFolder]) -> None:
        self._folders = folders

    def find_spec(self, *_: object) -> None:
        """Find no module."""

    def find_distributions(self, context: Any) -> Iterable[PathDistribution]:
        """Return all distributions, or those with the name in `context`."""
        from importlib.metadata import PathDistribution
        from pathlib import Path

        requested = None if context.name is None else _normal(context.name)
        for path in context.path:
            folder = self._folders.get(path)
            for name in () if folder is None else folder.names:
                about, suffix = os.path.splitext(name)
                if suffix in _ABOUT and requested in (None, _normal(about.partition("-")[0])):
                    yield PathDistribution(Path(path, name))


def _normal(name: str) -> str:
    return name.replace("-", "_").replace(".", "_").lower()
