"""Where an image has an environment's package from: a project, an index, or loose modules."""

from __future__ import annotations

import importlib.util
import json
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from envweave.errors import OptionError, in_words
from envweave.registry.plugins import ENVS

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
class Published:
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
class Loose:
    """Modules that belong to no package: files and folders beside each other.

    Attributes:
        folder: Where they are.
        names: What they are called.
    """

    folder: Path
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.names)} of {self.folder}"


Source = Project | Published | Loose


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
        raise OptionError(f"{str(file)!r} cannot be read: {in_words(error)}") from None
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
    return Published(distribution.name, distribution.version, url or None)


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
    return Loose(folder, (top, *sorted({*_beside(folder)} - {top})))


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
