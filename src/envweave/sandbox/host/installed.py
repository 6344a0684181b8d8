"""Installed modules and distributions: their files, and what they require."""

from __future__ import annotations

import glob
import os
import re
import site
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from importlib.metadata import Distribution


def is_standard(name: str) -> bool:
    """Whether a top-level module is part of the standard library."""
    return name in sys.stdlib_module_names


def site_folders() -> list[str]:
    """Return the folders of this interpreter in which packages are installed."""
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    folders += [one for one in sys.path if os.path.basename(one) in _SITE_NAMES]
    return [one for one in dict.fromkeys(map(os.path.abspath, folders)) if os.path.isdir(one)]


_SITE_NAMES = ("site-packages", "dist-packages")


def is_below(path: str, folder: str) -> bool:
    """Whether a path is this folder, or below it. Both are absolute and normalized."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


@dataclass(frozen=True, slots=True)
class FoundModule:
    """The location of a module.

    Attributes:
        paths: What it consists of. A namespace package may be several folders.
        folders: The entries of `sys.path` that it is imported from.
        is_regular: Whether it is more than a folder without `__init__`.
    """

    paths: tuple[str, ...]
    folders: tuple[str, ...]
    is_regular: bool


def find_module(name: str) -> FoundModule | None:
    """Look a module up without importing anything."""
    path: Sequence[str] | None = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        spec = _spec(".".join(parts[:depth]), path)
        if spec is None:
            return None
        locations = spec.submodule_search_locations
        if spec.origin is not None and spec.has_location:
            own = os.path.dirname(spec.origin) if locations is not None else spec.origin
            folder = own
            for _ in range(depth):
                folder = os.path.dirname(folder)
            return FoundModule((os.path.abspath(own),), (os.path.abspath(folder),), is_regular=True)
        if locations is None:
            return None  # built in, or frozen
        path = list(locations)
    paths = tuple(os.path.abspath(one) for one in path or () if os.path.isdir(one))
    folders = paths
    for _ in parts:
        folders = tuple(map(os.path.dirname, folders))
    return FoundModule(paths, folders, is_regular=False) if paths else None


def _spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return None


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """A distribution, or a module that belongs to none.

    Attributes:
        paths: The files and folders that it consists of.
        folders: Where its modules are searched.
        outside: What it has elsewhere: scripts, data.
    """

    name: str
    paths: tuple[str, ...]
    folders: tuple[str, ...]
    outside: tuple[str, ...] = ()
    distribution: Distribution | None = None

    def overlaps(self, other: InstalledPackage) -> bool:
        """Whether they have a file in common."""
        ours, theirs = (*self.paths, *self.outside), (*other.paths, *other.outside)
        return self.name == other.name or any(
            is_below(one, another) or is_below(another, one) for one in ours for another in theirs
        )

    def all_paths(self) -> list[str]:
        """Return all its paths, including bytecode in a shared `__pycache__`."""
        compiled = [
            f"{os.path.dirname(path)}/__pycache__/{os.path.basename(path)[:-3]}.*"
            for path in self.paths
            if path.endswith(".py")
        ]
        return [
            *self.paths,
            *self.outside,
            *(one for pattern in compiled for one in glob.glob(pattern)),
        ]


def numpy_package() -> list[InstalledPackage]:
    """Return numpy, which requires nothing. Faster than reading its list of files."""
    found = find_module("numpy")
    if found is None:
        return []
    folder = found.folders[0]
    siblings = [*glob.glob(f"{folder}/numpy.libs"), *glob.glob(f"{folder}/numpy-*-info")]
    return [InstalledPackage("numpy", (*found.paths, *siblings), found.folders)]


def look_up(name: str) -> list[InstalledPackage]:
    """Return the packages for an import name, or else for the name of a distribution."""
    is_module = all(part.isidentifier() for part in name.split("."))
    found = find_module(name) if is_module else None
    while is_module and found is None and "." in name:  # an attribute, such as `os.path`
        name = name.rpartition(".")[0]
        found = find_module(name)
    if found is not None:
        providers = _providers(name, found)
        if providers:
            return [_package_of(one, found) for one in providers]
        return [InstalledPackage(name, found.paths, found.folders)]
    distribution = _distribution(name)
    return [] if distribution is None else [_package_of(distribution)]


def _package_of(distribution: Distribution, module: FoundModule | None = None) -> InstalledPackage:
    """Return the package of a distribution, one of whose modules may be known."""
    name, files, root = _name(distribution), _files(distribution), _root(distribution)
    if files is not None and _project_of(distribution) is None:
        outside = [one for one in files if one.startswith(("../", "/"))]
        return InstalledPackage(
            name,
            tuple(_cover(root, [one for one in files if not one.startswith(("../", "/"))])),
            (root,),
            tuple(_cover("/", [os.path.normpath(f"{root}/{one}")[1:] for one in outside])),
            distribution,
        )
    modules = [one for one in map(find_module, _top_level(distribution)) if one is not None]
    modules += [] if module is None else [module]
    info = getattr(distribution, "_path", None)  # its folder `*.dist-info`
    return InstalledPackage(
        name,
        (
            *(path for one in modules for path in one.paths),
            *(() if info is None else (os.path.abspath(info),)),
        ),
        (*(folder for one in modules for folder in one.folders), root),
        distribution=distribution,
    )


def _providers(module: str, found: FoundModule) -> list[Distribution]:
    """Return the distributions that a module is part of."""
    is_installed = any(is_below(found.paths[0], one) for one in site_folders())
    if not is_installed:
        projects = [(_project_of(one) or "", one) for one in _distributions()]
        around = [one for one in projects if one[0] and is_below(found.paths[0], one[0])]
        return [max(around, key=lambda one: len(one[0]))[1]] if around else []
    same = _distribution(module.split(".")[0])
    if same is not None and found.is_regular and _provides(same, module):
        return [same]
    return [one for one in _distributions() if _provides(one, module)]


def _provides(distribution: Distribution, module: str) -> bool:
    if distribution.read_text("RECORD") is None:
        return module.split(".")[0] in _top_level(distribution)
    return _files_hold(distribution, module)


def _files_hold(distribution: Distribution, module: str) -> bool:
    path = re.escape(module.replace(".", "/"))
    pattern = rf'^"?{path}(?:/|\.pyc?[,"]|\.[^/,]*so[,"])'
    return re.search(pattern, distribution.read_text("RECORD") or "", re.MULTILINE) is not None


def _distribution(name: str) -> Distribution | None:
    from importlib import metadata

    try:
        return metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        return None


def _distributions() -> Iterator[Distribution]:
    from importlib import metadata  # importing it takes as long as the rest of this package

    yield from metadata.distributions()


def _name(distribution: Distribution) -> str:
    return str(distribution.metadata["Name"])


def _root(distribution: Distribution) -> str:
    return os.path.abspath(str(distribution.locate_file("")))


def _files(distribution: Distribution) -> list[str] | None:
    """Return its files, relative to where it is installed; `None` if they are not recorded."""
    import csv

    text = distribution.read_text("RECORD")
    if text is None:
        return None
    return [row[0] for row in csv.reader(text.splitlines()) if row]


def _project_of(distribution: Distribution) -> str | None:
    """Return the folder that a distribution is installed from in editable mode."""
    text = distribution.read_text("direct_url.json")
    if text is None:
        return None
    import json
    import urllib.parse

    direct_url = json.loads(text)
    if not direct_url.get("dir_info", {}).get("editable"):
        return None
    return os.path.normpath(urllib.parse.unquote(urllib.parse.urlsplit(direct_url["url"]).path))


def editable_packages() -> list[InstalledPackage]:
    """Return what is installed in editable mode."""
    every = _distributions()
    return [_package_of(one) for one in every if _project_of(one) is not None]


def _top_level(distribution: Distribution) -> list[str]:
    """Return its top-level modules, as recorded or as its name suggests."""
    names = (distribution.read_text("top_level.txt") or "").split()
    return names or [re.sub(r"[-.]+", "_", _name(distribution)).lower()]


def _cover(folder: str, names: Iterable[str]) -> list[str]:
    """Return the fewest paths that contain these files, and none of another distribution.

    A package is one path. A folder without `__init__` may be shared by several distributions.
    """
    children: dict[str, list[str]] = {}
    for name in names:
        first, _, rest = name.partition("/")
        children.setdefault(first, []).append(rest)
    covered: list[str] = []
    for first, rests in children.items():
        path = os.path.join(folder, first)
        if first == "__pycache__" or not os.path.lexists(path):
            continue
        is_package = any(rest.startswith("__init__.") for rest in rests)
        if rests == [""] or is_package or first.endswith(".dist-info") or os.path.islink(path):
            covered.append(path)
            continue
        inner = _cover(path, rests)
        on_disk = {os.path.join(path, one) for one in os.listdir(path) if one != "__pycache__"}
        covered += [path] if set(inner) == on_disk else inner
    return covered


def with_requirements(
    packages: Iterable[InstalledPackage], private: Sequence[InstalledPackage]
) -> list[InstalledPackage]:
    """Return packages with their requirements, as far as those are installed and not private."""
    found: dict[str, InstalledPackage] = {}
    seen: set[tuple[str, str]] = set()
    pending = [(one, "") for one in packages]
    while pending:
        package, extra = pending.pop()
        if (package.name, extra) in seen:
            continue
        seen.add((package.name, extra))
        if any(map(package.overlaps, private)):
            continue
        found.setdefault(package.name, package)
        if package.distribution is not None:
            for name, extras in _requirements(package.distribution, extra):
                required = _distribution(name)
                if required is not None:
                    one = _package_of(required)
                    pending += [(one, each) for each in ("", *extras)]
    return list(found.values())


def _requirements(distribution: Distribution, extra: str) -> Iterator[tuple[str, set[str]]]:
    lines = distribution.requires
    if not lines:
        return
    from packaging.requirements import InvalidRequirement, Requirement

    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:  # older than the standard
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement.name, requirement.extras


def distribution_names() -> set[str]:
    """Return the names of all distributions."""
    return {_name(one) for one in _distributions()}
