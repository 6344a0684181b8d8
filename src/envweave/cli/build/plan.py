"""What an image is to be: of which environment, on what base, with which packages."""

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
"""The packages whose own environments a scheme names."""


@dataclass(frozen=True, slots=True)
class Project:
    """A folder that pip builds a wheel from."""

    folder: Path

    def __str__(self) -> str:
        return f"the wheel of {self.folder}"


@dataclass(frozen=True, slots=True)
class PublishedPackage:
    """An installed package, which pip can have again.

    Attributes:
        name: What it is called.
        version: Which one is installed here.
        url: Where it came from, if that was no index.
    """

    name: str
    version: str
    url: str | None = None

    def __str__(self) -> str:
        return f"{self.name}=={self.version}" + (f" from {self.url}" if self.url else "")


@dataclass(frozen=True, slots=True)
class LooseModule:
    """Modules that belong to no package: files and folders beside each other.

    Attributes:
        folder: Where they are.
        names: What they are called.
    """

    folder: Path
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.names)} of {self.folder}"


Source = Project | PublishedPackage | LooseModule


def sources_of(spec: EnvSpec) -> list[Source]:
    """Return what must be installed beside envweave so that an ID is found. It is imported here.

    Raises:
        PluginError: It cannot be imported.
        OptionError: A module is found in a way that cannot be repeated elsewhere.
    """
    spec.load()
    scheme, _, rest = spec.id.rpartition("://")
    announced = [one for one in metadata.entry_points(group=ENVS, name=spec.id) if one.dist]
    if announced:
        found = [_of_distribution(announced[0].dist)]
    elif scheme in _SCHEMES:
        packages = [_of_distribution(metadata.distribution(one)) for one in _SCHEMES[scheme]]
        found = [*packages, *_of_modules(_modules_of(scheme, rest))]
    else:
        assert isinstance(spec.factory, str)  # nothing else has an ID in another process
        found = list(_of_modules([spec.factory.partition(":")[0]]))
    return [one for one in dict.fromkeys(found) if one is not None]


def project_at(folder: Path) -> dict[str, Any]:
    """Return the table `project` of the `pyproject.toml` in a folder.

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
            f"The folder {str(folder)!r} is no project: it has no pyproject.toml. Give it one, or "
            "name a module by its ID, as in pkg://my_module:MyEnv."
        ) from None
    except (OSError, ValueError) as error:
        raise OptionError(f"{str(file)!r} cannot be read: {format_error(error)}") from None
    if not isinstance(table, dict):
        raise OptionError(
            f"{str(file)!r} has no table [project], so that nothing can be installed from it. "
            "Give it one with the project's name and version."
        )
    return table


def _modules_of(scheme: str, rest: str) -> Iterator[str]:
    """Return the modules that an ID of another library leads to."""
    if scheme == "gym":
        import gymnasium

        module, _, name = rest.rpartition(":")
        entry = gymnasium.spec(name).entry_point
        yield from (one for one in (module, str(entry).partition(":")[0]) if one)


def _of_modules(modules: Iterable[str]) -> Iterator[Source | None]:
    known = metadata.packages_distributions()
    for module in modules:
        top = module.partition(".")[0]
        if top == _OURS or top in sys.stdlib_module_names:
            continue
        if top in known:
            yield from (_of_distribution(metadata.distribution(one)) for one in known[top])
        else:
            yield _of_folder(_folder_of(top), top)


def _of_distribution(distribution: metadata.Distribution | None) -> Source | None:
    assert distribution is not None
    if distribution.name == _OURS:
        return None
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    url = origin.get("url", "")
    if "dir_info" in origin:
        folder = Path(url2pathname(urlsplit(url).path))
        if folder.is_dir():
            return Project(folder)
        url = ""  # what it was installed from is gone; an index may have it
    if "vcs_info" in origin:
        about = origin["vcs_info"]
        url = f"{about['vcs']}+{url}@{about['commit_id']}"
    return PublishedPackage(distribution.name, distribution.version, url or None)


def _folder_of(top: str) -> Path:
    """Return the folder that a module was found in."""
    found = importlib.util.find_spec(top)
    places = list(found.submodule_search_locations or []) if found is not None else []
    if not places and found is not None and found.has_location and found.origin:
        places = [found.origin]
    if len(places) != 1 or not Path(places[0]).exists():
        raise OptionError(
            f"The module {top!r} is no file, nor a folder, that could be copied into an image. "
            "Make it a package with a pyproject.toml, and build its folder."
        )
    return Path(places[0]).resolve().parent


def _of_folder(folder: Path, top: str) -> Source:
    """Return the project that a module is developed in; the module itself if there is none."""
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
    """What to build.

    Attributes:
        image: What the image will be called, with its tag.
        env_id: What its server serves.
        base: The image that it is built on.
        sources: Where the environment's package comes from; none if envweave has it.
        more: Requirements beside what that needs, as pip reads them.
        online: Whether dependencies are fetched inside the build, rather than by this machine.
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
    """Return what is to be built of an ID, or of a project's folder.

    Raises:
        EnvWeaveError: There is no such environment or folder, no image could have it, or the
            image cannot be called so.
    """
    sources: list[Source]
    if _is_folder(target):
        folder = Path(target).expanduser().resolve()
        env_id, sources = _named_by(folder, env), [Project(folder)]
    else:
        if env is not None:
            raise OptionError(
                f"--env says which environment of a folder is meant, and {target!r} is no folder. "
                "Leave it out, or name the folder, as in ./my_env."
            )
        env_id, sources = _found(target)
    called = tag or image_of(env_id)
    if called is None:
        raise OptionError(f"What shall the image of {env_id!r} be called? Say -t NAME:TAG.")
    return BuildPlan(
        image=image_name(called, "-t"),
        env_id=env_id,
        base=image_name(base or BASE, "--base"),
        sources=tuple(sources),
        more=tuple(more),
        online=online,
    )


def image_name(given: str, option: str) -> str:
    """Return an image's name with its tag, which is `latest` unless it says another.

    Raises:
        OptionError: No image can be called so.
    """
    found = _IMAGE.fullmatch(given)
    if found is None:
        raise OptionError(
            f"{option} {given!r} is no image's name. Use small letters, digits, and '.', '_' or "
            "'-' between them, with a tag after ':', as in my-env:latest."
        )
    return given if found["tag"] else f"{given}:latest"


def _is_folder(target: str) -> bool:
    """Whether a folder is meant. A bare name that a package announces is an ID first."""
    if "://" in target or target in plugin_names(ENVS):
        return False
    return target.startswith((".", "~")) or os.sep in target or Path(target).is_dir()


def _found(env_id: str) -> tuple[str, list[Source]]:
    """Return the ID that an image's server finds an environment by, and what it needs for it."""
    import envweave as ew

    if env_id != "".join(env_id.split()):
        raise EnvIdError(f"{env_id!r} is no ID: there are blanks in it. See `envweave list`.")
    spec = ew.spec(env_id)
    if spec.id.startswith(LOCAL):
        raise OptionError(
            f"{env_id!r} is registered in this process alone, and an image's server would not know "
            "it. Name what it is made by, as in pkg://my_module:MyEnv."
        )
    if spec.backend is not None or spec.takes_token:
        raise OptionError(
            f"{env_id!r} runs elsewhere already: there is nothing to build. Name the environment "
            "itself, as in pkg://my_module:MyEnv."
        )
    return spec.id, sources_of(spec)


def _named_by(folder: Path, env: str | None) -> str:
    """Return which environment of a project is meant."""
    table = project_at(folder)
    announced: dict[str, Any] = (table.get("entry-points") or {}).get(ENVS) or {}
    if env is not None:
        if "://" not in env and env not in announced:
            known = f" It announces: {', '.join(announced)}." if announced else ""
            raise OptionError(
                f"The project in {str(folder)!r} announces no environment {env!r}."
                f"{suggest(env, announced) or known} Or name it as pkg://my_module:MyEnv."
            )
        if env.startswith(LOCAL):
            raise OptionError(
                f"--env {env!r} would be registered in one process alone. Name what it is made by, "
                "as in pkg://my_module:MyEnv."
            )
        return env
    if len(announced) == 1:
        return next(iter(announced))
    if announced:
        raise OptionError(
            f"The project in {str(folder)!r} announces {len(announced)} environments: "
            f"{', '.join(announced)}. Say which: --env {next(iter(announced))}."
        )
    raise OptionError(
        f"The project in {str(folder)!r} announces no environment. Say which it is: --env "
        f"pkg://my_module:MyEnv; or announce it in pyproject.toml: "
        f"[project.entry-points.\"{ENVS}\"] my-env-v0 = 'my_module:MyEnv'."
    )
