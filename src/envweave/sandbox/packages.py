"""Which installed packages a session sees, found by import names and distribution names.

By default these are numpy and what `preload` and `packages` name, each with the distributions that
it requires. A distribution that is *private* is never among them: envweave itself, and what defines
the environment, whose wheel may hold the tasks and their answers.
"""

from __future__ import annotations

import functools
import glob
import logging
import os
import re
import site
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from envweave.errors import OptionError, suggest

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from importlib.metadata import Distribution
    from types import FrameType

AnyPackages = Iterable[str] | Literal["all"] | None
Packages = tuple[str, ...] | Literal["all"] | None
"""`AnyPackages` once it has been read."""

ALWAYS_PRIVATE = "envweave"
_DEFAULT = "numpy"
_MOST_NAME = 100
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PackageView:
    """The packages that a session sees.

    Attributes:
        shown: Files and folders that sessions may read.
        hidden: Files and folders that they may not, though they lie in folders that they may.
        folders: Where modules are looked for, after the standard library.
        names: The distributions, or modules of no distribution, that are shown.
        private: The modules and distributions that are never shown.
        is_all: Whether all but the private ones are.
    """

    shown: tuple[str, ...]
    hidden: tuple[str, ...]
    folders: tuple[str, ...]
    names: tuple[str, ...]
    private: tuple[str, ...]
    is_all: bool

    def describe(self) -> str:
        """Return in words what sessions can import."""
        if self.is_all:
            private = ", ".join(self.private)
            return f"the standard library and all installed packages but {private}"
        return " and ".join(["the standard library", *filter(None, [", ".join(self.names)])])

    def explain(self, module: str) -> str | None:
        """Say why a session could not import a module that this process could.

        Returns:
            `None` if this process has no such module either, or sessions do see it.
        """
        name = module.split(".")[0]
        if not name.isidentifier() or len(name) > _MOST_NAME or is_standard(name):
            return None
        found = _find(name)
        if found is None or not found.is_regular or any(map(self._shows, found.paths)):
            return None
        return _explanation(self, name, found)

    def _shows(self, path: str) -> bool:
        if self.is_all and any(_is_below(path, one) for one in self.folders):
            return not any(_is_below(path, one) for one in self.hidden)
        return any(_is_below(path, one) for one in self.shown)


@functools.lru_cache(maxsize=256)  # an agent may try a hundred times
def _explanation(view: PackageView, name: str, found: _Found) -> str:
    text = f"import of {name!r} failed in a session"
    own = [path for one in _private_packages(view.private, briefly=False) for path in one.paths]
    if any(_is_below(path, one) for path in found.paths for one in own):
        return (
            f"{text}: it belongs to what defines the environment, which sessions never see. "
            "Code for agents goes into a folder of its own, named by visible=[…]."
        )
    return f"{text} because only {view.describe()} are visible; pass packages=[{name!r}]."


_told: set[str] = set()
_told_lock = threading.Lock()  # protects `_told`
_MOST_TOLD = 1000


def warn_once(text: str) -> None:
    """Log a warning that was not logged before. What names it holds may be an agent's choice."""
    with _told_lock:
        if text in _told or len(_told) >= _MOST_TOLD:
            return
        _told.add(text)
    _log.warning("%s", text)


def read_packages(given: Any) -> Packages:
    """Return the option `packages`.

    Raises:
        OptionError: It is none.
    """
    if given is None or (isinstance(given, str) and given == "all"):
        return given  # type: ignore[return-value]
    names = None if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    if names is None or not all(isinstance(one, str) and one for one in names):
        raise OptionError(
            f"Sandbox(packages={given!r}): expected a list of import names or distribution names, "
            'or "all".'
        )
    return names


def calling_module() -> tuple[str, ...]:
    """Return the name of the module that called into envweave; none if it has no name."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - what `inspect` uses too
    while frame is not None:
        known = frame.f_globals
        name = str(known.get("__name__", ""))
        if name.split(".")[0] != ALWAYS_PRIVATE:
            return _private_name(name, known.get("__spec__"))
        frame = frame.f_back
    return ()


def defining_modules(*things: Any) -> tuple[str, ...]:
    """Return the names of the modules in which these objects, or their classes, are defined."""
    names: dict[str, None] = {}
    for thing in things:
        for one in (*type(thing).__mro__, thing):
            module = sys.modules.get(str(getattr(one, "__module__", "")))
            if module is not None:
                spec = getattr(module, "__spec__", None)
                names.update(dict.fromkeys(_private_name(module.__name__, spec)))
    return tuple(names)


def _private_name(name: str, spec: Any) -> tuple[str, ...]:
    if name == "__main__":  # `python -m package.module`, or a script
        name = "" if spec is None else str(spec.name)
    top = name.split(".")[0]
    return (name,) if top and top != ALWAYS_PRIVATE and not is_standard(top) else ()


def is_standard(name: str) -> bool:
    """Whether a top-level module is one of the standard library."""
    return name in sys.stdlib_module_names


def resolve_packages(
    preload: Sequence[str],
    packages: Packages,
    private: Iterable[str] = (),
    *,
    shell: bool = False,
) -> PackageView:
    """Return what a session sees of what is installed.

    Args:
        preload: Modules.
        packages: Import names or distribution names, or `"all"`.
        private: Modules or distributions that are never shown. What is not installed is left out.
        shell: Whether sessions see the folders of programs, which may hold data of distributions.

    Raises:
        OptionError: Something is not installed, or private.
    """
    return _resolve(tuple(preload), packages, tuple(sorted(set(private))), shell, tuple(sys.path))


@functools.lru_cache(maxsize=64)
def _resolve(
    preload: tuple[str, ...],
    packages: Packages,
    private: tuple[str, ...],
    shell: bool,  # noqa: FBT001 - a part of the cache's key
    _path: tuple[str, ...],
) -> PackageView:
    is_all = packages == "all"
    named = _names(preload, packages)
    # Most sandboxes name no package: they need not wait until all that is installed is looked at.
    secret = _private_packages(private, briefly=not (named or is_all or shell))
    kept = {one.name for one in secret}
    wanted = [one for option, name in named for one in _named(option, name, kept)]
    if is_all:
        wanted += _editable()
    else:
        wanted += _numpy()
    found = _with_requirements(wanted, kept)
    folders = dict.fromkeys(folder for one in found for folder in one.folders)
    order = {os.path.abspath(path): at for at, path in enumerate(sys.path)}
    if is_all:
        folders.update(dict.fromkeys(one for one in site_folders() if one in order))
    return PackageView(
        shown=tuple(dict.fromkeys(path for one in found for path in (*one.paths, *one.outside))),
        hidden=tuple(dict.fromkeys(path for one in secret for path in (*one.paths, *one.outside))),
        folders=tuple(sorted(folders, key=lambda one: order.get(one, len(order)))),
        names=tuple(sorted(one.name for one in found)),
        private=tuple(sorted(kept or {ALWAYS_PRIVATE, *private})),
        is_all=is_all,
    )


def _names(preload: Sequence[str], packages: Packages) -> list[tuple[str, str]]:
    """Return the names that say something, each after the option that it was given by."""
    names = [("packages", one) for one in (() if packages in (None, "all") else packages or ())]
    # Modules of envweave are imported before the walls stand, and no file of them is shown.
    names += [("preload", one) for one in preload if one.split(".")[0] != ALWAYS_PRIVATE]
    return [one for one in names if not is_standard(one[1].split(".")[0]) and one[1] != _DEFAULT]


def relevant_private(
    preload: Sequence[str], packages: Packages, private: Iterable[str], *, shell: bool
) -> tuple[str, ...]:
    """Return those of the private modules that change what sessions see.

    Sandboxes that differ in others can be shared.
    """
    if packages != "all" and not _names(preload, packages):
        if not shell:
            return ()
        folders = site_folders()
        found = ((name, _find(name)) for name in private)
        private = [
            name
            for name, one in found
            if one is not None and any(_is_below(one.paths[0], folder) for folder in folders)
        ]
    return tuple(sorted(set(private)))


def _named(option: str, name: str, private: set[str]) -> list[_Package]:
    """Return what a name that a caller gave stands for.

    Raises:
        OptionError: Nothing, or something private.
    """
    packages = _look_up(name)
    if not packages:
        raise OptionError(_unknown(option, name))
    if any(one.name in private for one in packages):
        raise OptionError(
            f"Sandbox({option}=…): {name!r} belongs to what defines the environment, which "
            "sessions never see: it may hold tasks and answers. Put the code that agents may read "
            "into a folder of its own, and name that by visible=[…]."
        )
    return packages


def _private_packages(names: Iterable[str], *, briefly: bool) -> list[_Package]:
    """Return what is never shown.

    Args:
        names: As for `resolve_packages`.
        briefly: Whether what lies in the folders for packages may be left out.
    """
    if not briefly:
        every = (_look_up(name) for name in (ALWAYS_PRIVATE, *names))
        return [one for packages in every for one in packages]
    folders = site_folders()
    packages = []
    for name in names:
        found = _find(name)
        if found is not None and not any(_is_below(found.paths[0], one) for one in folders):
            packages.append(_Package(name, found.paths, found.folders))
    return packages


def site_folders() -> list[str]:
    """Return the folders of this interpreter in which packages are installed."""
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    folders += [one for one in sys.path if os.path.basename(one) in _SITE_NAMES]
    return [one for one in dict.fromkeys(map(os.path.abspath, folders)) if os.path.isdir(one)]


_SITE_NAMES = ("site-packages", "dist-packages")


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


@dataclass(frozen=True, slots=True)
class _Found:
    """A module, where it was found.

    Attributes:
        paths: What it consists of. A namespace package may be several folders.
        folders: Where an import of it begins.
        is_regular: Whether it is more than a folder without `__init__`.
    """

    paths: tuple[str, ...]
    folders: tuple[str, ...]
    is_regular: bool


def _find(name: str) -> _Found | None:
    """Look a module up without importing anything."""
    path: Sequence[str] | None = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        spec = _spec(".".join(parts[:depth]), path)
        if spec is None:
            return None
        where = spec.submodule_search_locations
        if spec.origin is not None and spec.has_location:
            own = os.path.dirname(spec.origin) if where is not None else spec.origin
            folder = own
            for _ in range(depth):
                folder = os.path.dirname(folder)
            return _Found((os.path.abspath(own),), (os.path.abspath(folder),), is_regular=True)
        if where is None:
            return None  # built in, or frozen
        path = list(where)
    paths = tuple(os.path.abspath(one) for one in path or () if os.path.isdir(one))
    folders = paths
    for _ in parts:
        folders = tuple(map(os.path.dirname, folders))
    return _Found(paths, folders, is_regular=False) if paths else None


def _spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return None


@dataclass(frozen=True, slots=True)
class _Package:
    """A distribution, or a module that none provides.

    Attributes:
        paths: The files and folders that it consists of.
        folders: Where its modules are looked for.
        outside: What it has elsewhere: scripts, data.
    """

    name: str
    paths: tuple[str, ...]
    folders: tuple[str, ...]
    outside: tuple[str, ...] = ()
    distribution: Distribution | None = None


def _numpy() -> list[_Package]:
    """Return numpy, which requires nothing. This is quicker than to read its list of files."""
    found = _find(_DEFAULT)
    if found is None:
        return []
    folder = found.folders[0]
    beside = [*glob.glob(f"{folder}/numpy.libs"), *glob.glob(f"{folder}/numpy-*-info")]
    return [_Package(_DEFAULT, (*found.paths, *beside), found.folders)]


def _look_up(name: str) -> list[_Package]:
    """Return what an import name, or else a distribution's name, stands for."""
    is_module = all(part.isidentifier() for part in name.split("."))
    found = _find(name) if is_module else None
    while is_module and found is None and "." in name:  # an attribute, such as `os.path`
        name = name.rpartition(".")[0]
        found = _find(name)
    if found is not None:
        providers = _providers(name, found)
        if providers:
            return [_package_of(one, found) for one in providers]
        return [_Package(name, found.paths, found.folders)]
    distribution = _distribution(name)
    return [] if distribution is None else [_package_of(distribution)]


def _package_of(distribution: Distribution, module: _Found | None = None) -> _Package:
    """Return the package that a distribution is, one of whose modules may be known."""
    name, files, root = _name(distribution), _files(distribution), _root(distribution)
    if files is not None and _project_of(distribution) is None:
        outside = [one for one in files if one.startswith(("../", "/"))]
        return _Package(
            name,
            tuple(_cover(root, [one for one in files if not one.startswith(("../", "/"))])),
            (root,),
            tuple(_cover("/", [os.path.normpath(f"{root}/{one}")[1:] for one in outside])),
            distribution,
        )
    modules = [one for one in map(_find, _top_level(distribution)) if one is not None]
    modules += [] if module is None else [module]
    about = getattr(distribution, "_path", None)  # its folder `*.dist-info`
    return _Package(
        name,
        (
            *(path for one in modules for path in one.paths),
            *(() if about is None else (os.path.abspath(about),)),
        ),
        (*(folder for one in modules for folder in one.folders), root),
        distribution=distribution,
    )


def _providers(module: str, found: _Found) -> list[Distribution]:
    """Return the distributions that a module is part of."""
    is_installed = any(_is_below(found.paths[0], one) for one in site_folders())
    if not is_installed:
        projects = [(_project_of(one) or "", one) for one in _distributions()]
        around = [one for one in projects if one[0] and _is_below(found.paths[0], one[0])]
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
    from importlib import metadata  # it takes as long to import as all else of this package

    yield from metadata.distributions()


def _name(distribution: Distribution) -> str:
    return str(distribution.metadata["Name"])


def _root(distribution: Distribution) -> str:
    return os.path.abspath(str(distribution.locate_file("")))


def _files(distribution: Distribution) -> list[str] | None:
    """Return its files, relative to where it is installed; `None` if it does not say."""
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

    told = json.loads(text)
    if not told.get("dir_info", {}).get("editable"):
        return None
    return os.path.normpath(urllib.parse.unquote(urllib.parse.urlsplit(told["url"]).path))


def _editable() -> list[_Package]:
    every = _distributions()
    return [_package_of(one) for one in every if _project_of(one) is not None]


def _top_level(distribution: Distribution) -> list[str]:
    """Return its modules, as it says or as its name suggests."""
    told = (distribution.read_text("top_level.txt") or "").split()
    return told or [re.sub(r"[-.]+", "_", _name(distribution)).lower()]


def _cover(folder: str, names: Iterable[str]) -> list[str]:
    """Return the fewest paths that hold these files, and none of another distribution's.

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


def _with_requirements(packages: Iterable[_Package], private: set[str]) -> list[_Package]:
    """Return packages, and what they require as far as it is installed."""
    found: dict[str, _Package] = {}
    asked: set[tuple[str, str]] = set()
    waiting = [(one, "") for one in packages]
    while waiting:
        package, extra = waiting.pop()
        if package.name in private or (package.name, extra) in asked:
            continue
        asked.add((package.name, extra))
        found.setdefault(package.name, package)
        if package.distribution is not None:
            for name, extras in _requirements(package.distribution, extra):
                required = _distribution(name)
                if required is not None and _name(required) not in private:
                    one = _package_of(required)
                    waiting += [(one, each) for each in ("", *extras)]
    return list(found.values())


def _requirements(distribution: Distribution, extra: str) -> Iterator[tuple[str, set[str]]]:
    lines = distribution.requires
    if not lines:
        return
    from packaging.requirements import InvalidRequirement, Requirement

    for line in lines:
        try:
            wanted = Requirement(line)
        except InvalidRequirement:  # of before there was a standard
            continue
        if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
            yield wanted.name, wanted.extras


def _unknown(option: str, name: str) -> str:
    known = {_name(one) for one in _distributions()}
    known.update(one for one in sys.modules if "." not in one and not is_standard(one))
    return (
        f"Sandbox({option}=…): no package {name!r} is installed here.{suggest(name, known)} "
        f"Install it where envweave is: pip install {name}"
    )
