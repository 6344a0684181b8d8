"""What to build: the environment of an image, its base and its packages."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from envweave.errors import EnvIdError, OptionError, format_error, suggest
from envweave.providers.docker.options import image_of
from envweave.registry.plugins import ENVS, plugin_names
from envweave.registry.registry import LOCAL

if TYPE_CHECKING:
    from envweave.registry import EnvSpec


_OURS = "envweave"
_SCHEMES = {"gym": ["gymnasium"], "pettingzoo": ["pettingzoo", "gymnasium"]}
"""The packages that provide the environments of a scheme."""


@dataclass(frozen=True, slots=True)
class Project:
    """A folder that pip builds a wheel from."""

    folder: Path

    def __str__(self) -> str:
        return f"the wheel of {self.folder}"


@dataclass(frozen=True, slots=True)
class PublishedPackage:
    """An installed package that pip can fetch again.

    Attributes:
        name: Name of the distribution.
        version: The version installed here.
        url: Where it was installed from, if not from an index.
    """

    name: str
    version: str
    url: str | None = None

    def __str__(self) -> str:
        return f"{self.name}=={self.version}" + (f" from {self.url}" if self.url else "")


@dataclass(frozen=True, slots=True)
class LooseModule:
    """Modules that belong to no distribution: files and folders in one folder.

    Attributes:
        folder: The folder they are in.
        names: Their names.
    """

    folder: Path
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.names)} of {self.folder}"


Source = Project | PublishedPackage | LooseModule


def sources_of(spec: EnvSpec) -> list[Source]:
    """Return what must be installed besides envweave for an ID. The environment is imported here.

    Raises:
        PluginError: It cannot be imported.
        OptionError: A module is not a file or folder that can be copied.
    """
    spec.load()
    scheme, _, rest = spec.id.rpartition("://")
    announced = [one for one in metadata.entry_points(group=ENVS, name=spec.id) if one.dist]
    if announced:
        found = [_find_distribution_source(announced[0].dist)]
    elif scheme in _SCHEMES:
        packages = [
            _find_distribution_source(metadata.distribution(one)) for one in _SCHEMES[scheme]
        ]
        found = [*packages, *_find_module_sources(_list_modules(scheme, rest))]
    else:
        assert isinstance(spec.factory, str)  # only an import path has an ID in another process
        found = list(_find_module_sources([spec.factory.partition(":")[0]]))
    return [one for one in dict.fromkeys(found) if one is not None]


def project_at(folder: Path) -> dict[str, Any]:
    """Return the `[project]` table of the `pyproject.toml` in a folder.

    Raises:
        OptionError: There is none.
    """
    file = folder / "pyproject.toml"
    if not folder.is_dir():
        raise OptionError(f"There is no folder {str(folder)!r}.")
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8")).get("project")
    except FileNotFoundError:
        raise OptionError(
            f"The folder {str(folder)!r} has no pyproject.toml. Add one, or name a module by its "
            "ID, as in pkg://my_module:MyEnv."
        ) from None
    except (OSError, ValueError) as error:
        raise OptionError(f"{str(file)!r} cannot be read: {format_error(error)}") from None
    if not isinstance(table, dict):
        raise OptionError(
            f"{str(file)!r} has no [project] table, so it cannot be installed. Add one with the "
            "name and the version of the project."
        )
    return table


def _list_modules(scheme: str, rest: str) -> Iterator[str]:
    """Return the modules that an ID of another library imports."""
    if scheme == "gym":
        import gymnasium

        module, _, name = rest.rpartition(":")
        entry = gymnasium.spec(name).entry_point
        yield from (one for one in (module, str(entry).partition(":")[0]) if one)


def _find_module_sources(modules: Iterable[str]) -> Iterator[Source | None]:
    known = metadata.packages_distributions()
    for module in modules:
        top = module.partition(".")[0]
        if top == _OURS or top in sys.stdlib_module_names:
            continue
        if top in known:
            yield from (_find_distribution_source(metadata.distribution(one)) for one in known[top])
        else:
            yield _find_folder_source(_find_folder(top), top)


def _find_distribution_source(distribution: metadata.Distribution | None) -> Source | None:
    assert distribution is not None
    if distribution.name == _OURS:
        return None
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    url = origin.get("url", "")
    if "dir_info" in origin:
        folder = Path(url2pathname(urlsplit(url).path))
        if folder.is_dir():
            return Project(folder)
        url = ""  # the folder it was installed from is gone; an index may have it
    if "vcs_info" in origin:
        about = origin["vcs_info"]
        url = f"{about['vcs']}+{url}@{about['commit_id']}"
    return PublishedPackage(distribution.name, distribution.version, url or None)


def _find_folder(top: str) -> Path:
    """Return the folder that a module was found in."""
    found = importlib.util.find_spec(top)
    locations = list(found.submodule_search_locations or []) if found is not None else []
    if not locations and found is not None and found.has_location and found.origin:
        locations = [found.origin]
    if len(locations) != 1 or not Path(locations[0]).exists():
        raise OptionError(
            f"The module {top!r} is neither a file nor a folder that can be copied into an image. "
            "Make it a project with a pyproject.toml, and build its folder."
        )
    return Path(locations[0]).resolve().parent


def _find_folder_source(folder: Path, top: str) -> Source:
    """Return the project that contains a module; the loose module if there is none."""
    for place in (folder, folder.parent) if folder.name == "src" else (folder,):
        try:
            project_at(place)
        except OptionError:
            continue
        return Project(place)
    return LooseModule(folder, (top, *sorted({*_beside(folder)} - {top})))


def _beside(folder: Path) -> Iterator[str]:
    """Return the modules of a folder that this process has imported."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." in name or name in ("__main__", _OURS) or not isinstance(file, str):
            continue
        path = Path(file).resolve()
        home = path.parent.parent if path.stem == "__init__" else path.parent
        if home == folder:
            yield name


BASE = "envweave-base:latest"

_HOST = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::[0-9]+)?/)?"
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_IMAGE = re.compile(rf"{_HOST}{_PART}(?:/{_PART})*(?P<tag>:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?")


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """A Docker image to build.

    Attributes:
        image: Name of the image, with its tag.
        env_id: The environment that its server serves.
        base: The base image.
        sources: Where the environment's package comes from; empty if it is part of envweave.
        more: Additional requirements for pip.
        online: Whether dependencies are fetched inside the build rather than on this machine.
    """

    image: str
    env_id: str
    base: str
    sources: tuple[Source, ...]
    more: tuple[str, ...] = ()
    online: bool = False

    @property
    def is_sealed(self) -> bool:
        """Whether the build needs no network."""
        return not self.online or not (self.sources or self.more)


def plan_for(
    target: str,
    tag: str | None,
    *,
    env: str | None = None,
    base: str | None = None,
    more: Sequence[str] = (),
    online: bool = False,
) -> BuildPlan:
    """Return the plan for an ID or the folder of a project.

    Raises:
        EnvWeaveError: There is no such environment or folder, it cannot be put into an image, or
            the name of the image is invalid.
    """
    sources: list[Source]
    if _is_folder(target):
        folder = Path(target).expanduser().resolve()
        env_id, sources = _resolve_project(folder, env), [Project(folder)]
    else:
        if env is not None:
            raise OptionError(
                f"--env selects an environment of a folder, but {target!r} is not a folder. "
                "Omit it, or name the folder, as in ./my_env."
            )
        env_id, sources = _resolve_id(target)
    image = tag or image_of(env_id)
    if image is None:
        raise OptionError(f"No image name given for {env_id!r}. Pass -t NAME:TAG.")
    return BuildPlan(
        image=image_name(image, "-t"),
        env_id=env_id,
        base=image_name(base or BASE, "--base"),
        sources=tuple(sources),
        more=tuple(more),
        online=online,
    )


def image_name(name: str, option: str) -> str:
    """Return the name of an image with its tag; the default is `latest`.

    Raises:
        OptionError: The name is invalid.
    """
    found = _IMAGE.fullmatch(name)
    if found is None:
        raise OptionError(
            f"{option} {name!r} is not a valid image name. Use lower-case letters and digits, with "
            "'.', '_' or '-' between them, and a tag after ':', as in my-env:latest."
        )
    return name if found["tag"] else f"{name}:latest"


def _is_folder(target: str) -> bool:
    """Whether the target is a folder. A name that a package registers takes precedence."""
    if "://" in target or target in plugin_names(ENVS):
        return False
    return target.startswith((".", "~")) or os.sep in target or Path(target).is_dir()


def _resolve_id(env_id: str) -> tuple[str, list[Source]]:
    """Return the ID of an environment in an image, and what must be installed there."""
    import envweave as ew

    if env_id != "".join(env_id.split()):
        raise EnvIdError(
            f"{env_id!r} is not a valid ID: it contains whitespace. See `envweave list`."
        )
    spec = ew.spec(env_id)
    if spec.id.startswith(LOCAL):
        raise OptionError(
            f"{env_id!r} is registered only in this process, so a server in an image cannot find "
            "it. Name its class or factory, as in pkg://my_module:MyEnv."
        )
    if spec.backend is not None or spec.takes_token:
        raise OptionError(
            f"{env_id!r} already runs elsewhere, so there is nothing to build. Name the "
            "environment itself, as in pkg://my_module:MyEnv."
        )
    return spec.id, sources_of(spec)


def _resolve_project(folder: Path, env: str | None) -> str:
    """Return the ID of the environment of a project."""
    table = project_at(folder)
    announced: dict[str, Any] = (table.get("entry-points") or {}).get(ENVS) or {}
    if env is not None:
        if "://" not in env and env not in announced:
            known = f" It registers: {', '.join(announced)}." if announced else ""
            raise OptionError(
                f"The project in {str(folder)!r} registers no environment {env!r}."
                f"{suggest(env, announced) or known} Or name it as pkg://my_module:MyEnv."
            )
        if env.startswith(LOCAL):
            raise OptionError(
                f"--env {env!r} would be registered in one process only. Name its class or "
                "factory, as in pkg://my_module:MyEnv."
            )
        return env
    if len(announced) == 1:
        return next(iter(announced))
    if announced:
        raise OptionError(
            f"The project in {str(folder)!r} registers {len(announced)} environments: "
            f"{', '.join(announced)}. Choose one, as in --env {next(iter(announced))}."
        )
    raise OptionError(
        f"The project in {str(folder)!r} registers no environment. Pass --env "
        f"pkg://my_module:MyEnv; or register it in pyproject.toml: "
        f"[project.entry-points.\"{ENVS}\"] my-env-v0 = 'my_module:MyEnv'."
    )
