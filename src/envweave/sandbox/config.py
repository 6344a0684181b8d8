"""The configuration of a sandbox: checking options, visible files, and the plan of a template."""

from __future__ import annotations

import functools
import glob
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from envweave.errors import OptionError
from envweave.sandbox.execution import Limits
from envweave.sandbox.host.cleanup import new_folder
from envweave.sandbox.host.installed import is_below, site_folders
from envweave.sandbox.host.packages import (
    AnyPackages,
    Packages,
    PackageView,
    read_packages,
    resolve_packages,
)
from envweave.sandbox.host.users import UserRange
from envweave.sandbox.protocol.orders import Isolation, TemplatePlan
from envweave.sandbox.walls.mounts import without_nested

Profile = Literal["python", "shell"]
WantedIsolation = Literal["auto", "namespace", "landlock", "none"]
UseCgroups = Literal["auto", "never", "always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """The options of `Sandbox` and `AsyncSandbox`, except the tools."""

    limits: Limits = field(default_factory=Limits)
    preload: tuple[str, ...] = ()
    packages: Packages = None
    private: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()
    profile: Profile = "python"
    isolation: WantedIsolation = "auto"
    shards: int = 1
    warm: int = 0
    cgroups: UseCgroups = "auto"
    native: bool = True


def read_options(
    *,
    limits: Limits | None,
    preload: Iterable[str],
    packages: AnyPackages,
    private: Iterable[str],
    visible: Iterable[str | os.PathLike[str]],
    profile: Any,
    isolation: Any,
    shards: Any,
    warm: Any,
    cgroups: Any,
    native: Any,
) -> SandboxConfig:
    """Return the checked options.

    Raises:
        OptionError: One is not valid; the message names it and what it may be.
    """
    for name, value, kind in (
        ("profile", profile, Profile),
        ("isolation", isolation, WantedIsolation),
        ("cgroups", cgroups, UseCgroups),
    ):
        if value not in get_args(kind):
            known = ", ".join(map(repr, get_args(kind)))
            raise OptionError(f"Sandbox({name}={value!r}): expected one of {known}.")
    if limits is not None and not isinstance(limits, Limits):
        raise OptionError(f"Sandbox(limits={limits!r}): expected a Limits.")
    cores = len(os.sched_getaffinity(0))
    for name, number, minimum in (("shards", shards, 1), ("warm", warm, 0)):
        if isinstance(number, bool) or not isinstance(number, int) or number < minimum:
            raise OptionError(f"Sandbox({name}={number!r}): expected an integer >= {minimum}.")
    if shards > cores:
        raise OptionError(
            f"Sandbox(shards={shards}): each shard is pinned to one core, and there are {cores}."
        )
    modules, requested, secret = _modules(preload), read_packages(packages), tuple(private)
    resolve_packages(modules, requested, secret, shell=profile == "shell")
    return SandboxConfig(
        limits=limits or Limits(),
        preload=modules,
        packages=requested,
        private=secret,
        visible=_paths(visible),
        profile=profile,
        isolation=isolation,
        shards=shards,
        warm=warm,
        cgroups=cgroups,
        native=bool(native),
    )


def _modules(preload: Iterable[str]) -> tuple[str, ...]:
    if isinstance(preload, str) or not isinstance(preload, Iterable):
        raise OptionError(f"Sandbox(preload={preload!r}): expected a list of module names.")
    names = tuple(preload)
    for name in names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise OptionError(f"Sandbox(preload=…): {name!r} is not a valid module name.")
        if importlib.util.find_spec(name.split(".")[0]) is None:
            raise OptionError(
                f"Sandbox(preload=…): there is no module {name!r}. Install it where envweave is."
            )
    return names


def _paths(visible: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    if isinstance(visible, str) or not isinstance(visible, Iterable):
        raise OptionError(f"Sandbox(visible={visible!r}): expected a list of paths.")
    paths = []
    for given in visible:
        if not isinstance(given, str | os.PathLike):
            raise OptionError(f"Sandbox(visible=…): {given!r} is not a path.")
        path = Path(os.path.normpath(Path(given).absolute()))
        if not path.exists():
            raise OptionError(f"Sandbox(visible=…): {str(given)!r} does not exist.")
        if str(path) == "/" or path.parts[1] in ("proc", "sys", "dev"):
            raise OptionError(
                f"Sandbox(visible=…): {str(path)!r} would defeat the isolation. Name the folder "
                "that the code needs."
            )
        paths.append(str(path))
    return tuple(paths)


_LIBRARIES = (
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/share/zoneinfo",
    "/etc/ld.so.cache",
    "/etc/localtime",
)
_PROGRAMS = ("/bin", "/sbin", "/usr", "/etc/alternatives", "/etc/ld.so.conf", "/etc/ld.so.conf.d")
_SYSTEM_PREFIXES = ("/", "/usr", "/usr/local")
_INTERPRETER_PATHS = ("bin", "lib", "lib32", "lib64", "libexec", "share/terminfo", "share/zoneinfo")
"""The parts of its prefix that an interpreter needs. Not all of `share` and `etc`, where
distributions put data."""

_VENV_PATHS = ("bin", "lib64", "pyvenv.cfg")
"""The same for a virtual environment; `lib64` is a link, and `lib` contains only packages."""


@dataclass(frozen=True, slots=True)
class VisibleFiles:
    """The files of the host that a session may read.

    Attributes:
        roots: Files and folders, at their own paths.
        hidden: Files and folders below these that it may not read.
        targets: The same with links resolved, including those outside the roots.
        shown: Files and folders that it may read, below `hidden` or outside the roots.
        path: The folders of `sys.path`, except those of the standard library.
    """

    roots: tuple[str, ...]
    hidden: tuple[str, ...]
    targets: tuple[str, ...]
    shown: tuple[str, ...]
    path: tuple[str, ...]


def packages_of(options: SandboxConfig) -> PackageView:
    """Return the packages that the sessions of a sandbox see."""
    shell = options.profile == "shell"
    return resolve_packages(options.preload, options.packages, options.private, shell=shell)


def visible_files(options: SandboxConfig) -> VisibleFiles:
    """Return the files that a session may read: interpreter, libraries, packages, `visible`."""
    view = packages_of(options)
    roots = [*_LIBRARIES, *(_PROGRAMS if options.profile == "shell" else ())]
    for prefix in _prefixes():
        is_virtual = os.path.isfile(f"{prefix}/pyvenv.cfg")
        names = _VENV_PATHS if is_virtual else _INTERPRETER_PATHS
        names = (*names, "include") if options.profile == "shell" else names
        roots.extend(f"{prefix}/{name}" for name in names)
    roots.append(sysconfig.get_path("stdlib"))
    folders = [] if view.is_all else _package_folders()
    if view.is_all:
        roots.extend(one for one in view.folders if one in site_folders())
    roots = _existing([*roots, *options.visible])
    seen = tuple(options.visible)
    hidden = [one for one in (*folders, *view.hidden) if not any(is_below(one, up) for up in seen)]
    revealed = [one for one in seen if any(is_below(one, up) for up in hidden)]
    linked = [os.path.realpath(one) for one in view.shown if os.path.islink(one)]
    targets = _existing(map(os.path.realpath, hidden))
    hidden = _existing(_as_seen(hidden, roots))
    shown = _existing(_as_seen([*view.shown, *linked, *revealed], roots, outside=True))
    return VisibleFiles(
        roots=tuple(roots),
        hidden=tuple(hidden),
        targets=tuple(targets),
        shown=tuple(
            one
            for one in shown
            if any(is_below(one, up) for up in hidden) or not any(is_below(one, up) for up in roots)
        ),
        path=(*view.folders, *(one for one in seen if os.path.isdir(one))),
    )


def make_plan(
    isolation: Isolation,
    options: SandboxConfig,
    *,
    cpu: int | None,
    users: UserRange | None,
    work: str,
    memory_counted: bool,
) -> TemplatePlan:
    """Return the plan of one template, and make an empty folder for its root.

    Args:
        isolation: The tier.
        options: The options of the sandbox.
        cpu: The core that it is pinned to.
        users: The user ids of its sessions.
        work: The folder in which work folders are made.
        memory_counted: Whether a cgroup counts the memory of a session.
    """
    limits = options.limits
    shell = options.profile == "shell"
    files = visible_files(options)
    visible, shown = [*files.roots], [*files.shown]
    listings: dict[str, list[str]] = {}
    path = [*_standard_library(), *files.path]
    if isolation == "landlock":
        granted = _granted(files)
        listings = _listings(path, granted)
        shown = [one for one in granted if not os.path.islink(one)]
        visible = _around(shown, os.path.realpath(work))
    return TemplatePlan(
        isolation=isolation,
        shell=shell,
        preload=list(options.preload),
        path=path,
        visible=visible,
        hidden=[*files.hidden],
        shown=shown,
        listings=listings,
        listed=[one for one in files.roots if os.path.isdir(one)] if shell else [],
        place=str(new_folder("root")) if isolation == "namespace" else "",
        work=work,
        cpu=cpu,
        host=os.getpid(),
        users=0 if users is None else users.count,
        first_user=0 if users is None else users.first,
        native=options.native,
        memory_counted=memory_counted,
        memory_bytes=limits.memory_bytes,
        disk_bytes=limits.disk_bytes,
        files=limits.files,
        open_files=limits.open_files,
        processes=limits.processes,
    )


def _prefixes() -> list[str]:
    prefixes = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    return sorted(prefixes.difference(_SYSTEM_PREFIXES))


def _standard_library() -> list[str]:
    folder = os.path.dirname(os.__file__)
    return [one for one in sys.path if one in (folder, f"{folder}/lib-dynload")]


def _package_folders() -> list[str]:
    """Return the site folders of this interpreter, and of others that may be visible."""
    folders = [*site_folders(), *_folders_around()]
    return [one for one in dict.fromkeys(folders) if glob.glob(f"{one}/*")]


@functools.cache
def _folders_around() -> list[str]:
    patterns = [
        f"{prefix}/{lib}/python*/{name}"
        for prefix in (*_prefixes(), "/usr", "/usr/local")
        for lib in ("lib", "lib64")
        for name in ("site-packages", "dist-packages")
    ]
    return [path for pattern in patterns for path in glob.glob(pattern)]


def _existing(paths: Iterable[str]) -> list[str]:
    return without_nested([os.path.normpath(path) for path in paths if os.path.lexists(path)])


def _as_seen(paths: Iterable[str], roots: Sequence[str], *, outside: bool = False) -> list[str]:
    """Return the paths as sessions see them below the roots, with links in them resolved.

    Args:
        paths: Paths of the host.
        roots: See `VisibleFiles`.
        outside: Whether to keep those that are below no root, unchanged.
    """
    real = [(root, os.path.realpath(root)) for root in roots if not os.path.islink(root)]
    seen = []
    for path in paths:
        target = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        found = [root + target[len(at) :] for root, at in real if is_below(target, at)]
        seen += found or ([path] if outside else [])
    return seen


def _granted(files: VisibleFiles) -> list[str]:
    """Return what to grant by rules without exceptions: the siblings of hidden paths, one by one.

    They include links below a root; the target of a link needs a grant of its own.
    """
    granted: dict[str, None] = {}
    hidden = set(files.targets)
    around = {folder for one in hidden for folder in _parents(one)}

    def grant(path: str) -> None:
        if path in around and os.path.isdir(path) and not os.path.islink(path):
            with os.scandir(path) as entries:
                for entry in entries:
                    grant(entry.path)
        elif path not in hidden:
            granted[path] = None

    for root in files.roots:
        grant(os.path.realpath(root))
    granted.update(dict.fromkeys(map(os.path.realpath, files.shown)))
    return list(granted)


def _around(paths: Iterable[str], apart: str) -> list[str]:
    """Return the fewest folders and files that contain these paths but not `apart`."""
    without = {apart, *_parents(apart)}
    around = set()
    for path in paths:
        for above in _parents(path):
            if above in without:
                break
            path = above
        around.add(path)
    return sorted(around)


def _parents(path: str) -> Iterator[str]:
    while path != "/":
        path = os.path.dirname(path)
        yield path


def _listings(path: Iterable[str], granted: Sequence[str]) -> dict[str, list[str]]:
    """Return the names in partly granted folders of `sys.path`, by folder."""
    listings: dict[str, list[str]] = {}
    for folder in path:
        real = os.path.realpath(folder)
        if any(is_below(real, one) for one in granted):
            continue
        listings[folder] = []
        for one in granted:
            if one.startswith(real + "/"):
                around = folder
                for name in one[len(real) + 1 :].split(
                    "/"
                ):  # several levels, where packages share a folder
                    listings.setdefault(around, []).append(name)
                    around = f"{around}/{name}"
    return listings
