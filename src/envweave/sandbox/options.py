"""How a sandbox is to be, checked once."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from envweave.errors import OptionError
from envweave.sandbox.limits import Limits
from envweave.sandbox.packages import AnyPackages, Packages, read_packages, resolve_packages

Profile = Literal["python", "shell"]
WantedIsolation = Literal["auto", "namespace", "landlock", "none"]
UseCgroups = Literal["auto", "never", "always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `Sandbox` and `AsyncSandbox` take, but for the tools."""

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
) -> Options:
    """Return the options, all of them sound.

    Raises:
        OptionError: One is not; the message names it and says what it may be.
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
    most = len(os.sched_getaffinity(0))
    for name, number, least in (("shards", shards, 1), ("warm", warm, 0)):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise OptionError(f"Sandbox({name}={number!r}): expected at least {least}.")
    if shards > most:
        raise OptionError(
            f"Sandbox(shards={shards}): a shard keeps to one core, and there are {most}."
        )
    modules, wanted, secret = _modules(preload), read_packages(packages), tuple(private)
    resolve_packages(modules, wanted, secret, shell=profile == "shell")
    return Options(
        limits=limits or Limits(),
        preload=modules,
        packages=wanted,
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
            raise OptionError(f"Sandbox(preload=…): {name!r} is no module's name.")
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
            raise OptionError(f"Sandbox(visible=…): {given!r} is no path.")
        path = Path(os.path.normpath(Path(given).absolute()))
        if not path.exists():
            raise OptionError(f"Sandbox(visible=…): {str(given)!r} does not exist.")
        if str(path) == "/" or path.parts[1] in ("proc", "sys", "dev"):
            raise OptionError(
                f"Sandbox(visible=…): {str(path)!r} would tear a hole into the walls. Name the "
                "folder that the code needs."
            )
        paths.append(str(path))
    return tuple(paths)
