"""Which installed packages a session sees, by import names and distribution names.

By default these are numpy and what `preload` and `packages` name, each with the distributions that
it requires. A *private* distribution is never among them: envweave itself, and the one that defines
the environment, whose wheel may contain the tasks and their answers.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from envweave.errors import OptionError, suggest
from envweave.sandbox.host.installed import (
    FoundModule,
    InstalledPackage,
    distribution_names,
    editable_packages,
    find_module,
    is_below,
    is_standard,
    look_up,
    numpy_package,
    site_folders,
    with_requirements,
)

if TYPE_CHECKING:
    from types import FrameType

    from envweave.sandbox.protocol.messages import Failure

AnyPackages = Iterable[str] | Literal["all"] | None
Packages = tuple[str, ...] | Literal["all"] | None
"""`AnyPackages`, parsed."""

ALWAYS_PRIVATE = "envweave"
_DEFAULT = "numpy"
_MAX_NAME_LENGTH = 100
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PackageView:
    """The packages that a session sees.

    Attributes:
        shown: Files and folders that sessions may read.
        hidden: Files and folders inside `shown` that they may not read.
        folders: Where modules are searched, after the standard library.
        names: The visible distributions, and visible modules of no distribution.
        private: The modules and distributions that are never visible.
        is_all: Whether all but the private ones are visible.
    """

    shown: tuple[str, ...]
    hidden: tuple[str, ...]
    folders: tuple[str, ...]
    names: tuple[str, ...]
    private: tuple[str, ...]
    is_all: bool

    def describe(self) -> str:
        """Return a description of what sessions can import."""
        if self.is_all:
            private = ", ".join(self.private)
            return f"the standard library and all installed packages except {private}"
        return " and ".join(["the standard library", *filter(None, [", ".join(self.names)])])

    def explain(self, module: str) -> str | None:
        """Return why a session could not import a module that this process can.

        Returns:
            `None` if this process has no such module either, or sessions do see it.
        """
        name = module.split(".")[0]
        if not name.isidentifier() or len(name) > _MAX_NAME_LENGTH or is_standard(name):
            return None
        found = find_module(name)
        if found is None or not found.is_regular or any(map(self._shows, found.paths)):
            return None
        return _explanation(self, name, found)

    def _shows(self, path: str) -> bool:
        if self.is_all and any(is_below(path, one) for one in self.folders):
            return not any(is_below(path, one) for one in self.hidden)
        return any(is_below(path, one) for one in self.shown)


@functools.lru_cache(maxsize=256)  # an agent may try a hundred times
def _explanation(view: PackageView, name: str, found: FoundModule) -> str:
    text = f"import of {name!r} failed in a session"
    own = [path for one in _private_packages(view.private, briefly=False) for path in one.paths]
    if any(is_below(path, one) for path in found.paths for one in own):
        return (
            f"{text}: it belongs to the package that defines the environment, which sessions never "
            "see. Put code for agents into a separate folder, and pass visible=[…]."
        )
    return f"{text} because only {view.describe()} are visible; pass packages=[{name!r}]."


_NO_MODULE = re.compile(r"No module named '([^']{1,200})'")
_logged: set[str] = set()
_logged_lock = threading.Lock()  # protects `_logged`
_MAX_LOGGED = 1000


def warn_of_import(failure: Failure | None, explain: Callable[[str], str | None]) -> None:
    """Log why an import failed, for the author, once for each module.

    Args:
        failure: The failure of an agent's code. It is not trusted, nor is the module's name in it.
        explain: Returns why a module could not be imported, where the author should know.
    """
    if failure is None or failure.type != "ModuleNotFoundError":
        return
    named = _NO_MODULE.match(failure.message)
    text = None if named is None else explain(named[1])
    if text is None:
        return
    with _logged_lock:
        if text in _logged or len(_logged) >= _MAX_LOGGED:
            return
        _logged.add(text)
    _log.warning("%s", text)


def read_packages(given: Any) -> Packages:
    """Return the parsed option `packages`.

    Raises:
        OptionError: It is not valid.
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
    """Return the name of the module that called into envweave; empty if it has no name."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - what `inspect` uses too
    while frame is not None:
        known = frame.f_globals
        name = str(known.get("__name__", ""))
        if name.split(".")[0] != ALWAYS_PRIVATE:
            return _private_name(name, known.get("__spec__"))
        frame = frame.f_back
    return ()


def defining_modules(*things: Any) -> tuple[str, ...]:
    """Return the names of the modules that define these objects or their classes."""
    names: dict[str, None] = {}
    for thing in things:
        while isinstance(thing, functools.partial):
            thing = thing.func
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


def resolve_packages(
    preload: Sequence[str],
    packages: Packages,
    private: Iterable[str] = (),
    *,
    shell: bool = False,
) -> PackageView:
    """Return which installed packages a session sees.

    Args:
        preload: Modules.
        packages: Import names or distribution names, or `"all"`.
        private: Modules or distributions that are never visible. Those not installed are ignored.
        shell: Whether sessions see the folders of programs, which may contain data of packages.

    Raises:
        OptionError: A package is not installed, or is private.
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
    # Most sandboxes name no package: they need not wait for a scan of everything installed.
    secret = _private_packages(private, briefly=not (named or is_all or shell))
    private_names = {one.name for one in secret}
    requested = [one for option, name in named for one in _named(option, name, secret)]
    if is_all:
        requested += editable_packages()
    else:
        requested += numpy_package()
    found = with_requirements(requested, secret)
    folders = dict.fromkeys(folder for one in found for folder in one.folders)
    order = {os.path.abspath(path): at for at, path in enumerate(sys.path)}
    if is_all:
        folders.update(dict.fromkeys(one for one in site_folders() if one in order))
    return PackageView(
        shown=tuple(dict.fromkeys(path for one in found for path in (*one.paths, *one.outside))),
        hidden=tuple(dict.fromkeys(path for one in secret for path in one.all_paths())),
        folders=tuple(sorted(folders, key=lambda one: order.get(one, len(order)))),
        names=tuple(sorted(one.name for one in found)),
        private=tuple(sorted(private_names or {ALWAYS_PRIVATE, *private})),
        is_all=is_all,
    )


def _names(preload: Sequence[str], packages: Packages) -> list[tuple[str, str]]:
    """Return the names that have an effect, each with the option that it was passed by."""
    names = [("packages", one) for one in (() if packages in (None, "all") else packages or ())]
    # Modules of envweave are imported before the walls are set up, and their files stay hidden.
    names += [("preload", one) for one in preload if one.split(".")[0] != ALWAYS_PRIVATE]
    return [one for one in names if not is_standard(one[1].split(".")[0]) and one[1] != _DEFAULT]


def relevant_private(
    preload: Sequence[str], packages: Packages, private: Iterable[str], *, shell: bool
) -> tuple[str, ...]:
    """Return the private modules that affect what sessions see.

    Sandboxes that differ only in others can be shared.
    """
    if packages != "all" and not _names(preload, packages):
        if not shell:
            return ()
        folders = site_folders()
        found = ((name, find_module(name)) for name in private)
        private = [
            name
            for name, one in found
            if one is not None and any(is_below(one.paths[0], folder) for folder in folders)
        ]
    return tuple(sorted(set(private)))


def _named(option: str, name: str, private: Sequence[InstalledPackage]) -> list[InstalledPackage]:
    """Return the packages for a name that the caller passed.

    Raises:
        OptionError: There are none, or one is private.
    """
    packages = look_up(name)
    if not packages:
        raise OptionError(_unknown(option, name))
    if any(one.overlaps(another) for one in packages for another in private):
        raise OptionError(
            f"Sandbox({option}=…): {name!r} belongs to the package that defines the environment, "
            "which sessions never see: it may contain tasks and answers. Put the code that agents "
            "may read into a separate folder, and pass visible=[…]."
        )
    return packages


def _private_packages(names: Iterable[str], *, briefly: bool) -> list[InstalledPackage]:
    """Return the packages that are never visible.

    Args:
        names: As for `resolve_packages`.
        briefly: Whether packages in site folders may be omitted.
    """
    if not briefly:
        every = (look_up(name) for name in (ALWAYS_PRIVATE, *names))
        return [_whole(one) for packages in every for one in packages]
    folders = site_folders()
    packages = []
    for name in names:
        found = find_module(name)
        if found is not None and not any(is_below(found.paths[0], one) for one in folders):
            packages.append(_whole(InstalledPackage(name, found.paths, found.folders)))
    return packages


def _whole(package: InstalledPackage) -> InstalledPackage:
    """Return a module of no distribution together with all of its top-level package."""
    if package.distribution is not None or "." not in package.name:
        return package
    top = package.name.split(".")[0]
    tops = (os.path.join(folder, top) for folder in package.folders)
    folders = [one for one in tops if os.path.isdir(one)]
    installed = site_folders()  # others may have a part in a package without `__init__`
    if any(is_below(one, folder) for one in folders for folder in installed):
        return package
    return replace(package, paths=tuple(dict.fromkeys((*folders, *package.paths))))


def _unknown(option: str, name: str) -> str:
    known = distribution_names()
    known.update(one for one in sys.modules if "." not in one and not is_standard(one))
    return (
        f"Sandbox({option}=…): no package {name!r} is installed here.{suggest(name, known)} "
        f"Install it where envweave is: pip install {name}"
    )
