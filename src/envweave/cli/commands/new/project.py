"""A new project: its name, and its files from templates.

The templates are a project called `my-env` with a module `my_env` and classes such as `MyEnv`,
which are replaced by those of the new project, as are a few words between `@`. Files of a kind are
added to those that all kinds share. Each is named as in the project, with `.in` after it.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

from envweave import __version__
from envweave.errors import OptionError, format_error

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_RESERVED = frozenset(
    {"app", "client", "conftest", "environment", "models", "src", "test", "tests"}
)
_SUFFIX = ".in"
_IGNORED = frozenset({".git"})
"""What may be in the folder of a new project."""


class ProjectKind(StrEnum):
    """What kind of environment a new project begins with."""

    single = "single"
    multi_agent = "multi-agent"
    code = "code"
    chat = "chat"


_SUMMARIES = {
    ProjectKind.single: "An environment for one agent: find a hidden number.",
    ProjectKind.multi_agent: "An environment for two agents in turn: take the last stone.",
    ProjectKind.code: "An environment for agents that write code: answer questions about orders.",
    ProjectKind.chat: "An environment for chat models: answer questions in a conversation.",
}
_FACTORIES = {ProjectKind.code: "make_env", ProjectKind.chat: "make_env"}


@dataclass(frozen=True, slots=True)
class ProjectName:
    """The names in a project.

    Attributes:
        name: The name of its distribution, such as `"coin-flip"`.
    """

    name: str

    @property
    def module(self) -> str:
        """The package that is imported, such as `"coin_flip"`."""
        return self.name.replace("-", "_")

    @property
    def prefix(self) -> str:
        """What the names of its classes begin with, such as `"CoinFlip"`."""
        return "".join(word.capitalize() for word in self.name.removesuffix("-env").split("-"))

    @property
    def env_id(self) -> str:
        """The ID of its environment, such as `"coin-flip-v0"`."""
        return f"{self.name}-v0"


def read_name(name: str) -> ProjectName:
    """Return the names in a project of this name.

    Raises:
        OptionError: It is not a name for a project, or it is taken in this Python.
    """
    if not _NAME.fullmatch(name):
        near = re.sub(r"[^a-z0-9]+", "-", re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower())
        near = near.strip("-")
        hint = f" Did you mean {near!r}?" if _NAME.fullmatch(near) else ""
        raise OptionError(
            f"{name!r} is not a name for a project. Use lower-case letters and digits in words "
            f"with '-' between them, such as my-env.{hint}"
        )
    read = ProjectName(name)
    if keyword.iskeyword(read.module) or read.module in _RESERVED:
        raise OptionError(f"{name!r} cannot be imported or means something else. Use {name}-env.")
    if read.module in sys.stdlib_module_names:
        raise OptionError(
            f"{name!r} is a module of Python's standard library, which the project would hide. "
            f"Use another name, such as {name}-env."
        )
    owners = metadata.packages_distributions().get(read.module) or []
    if not owners and _is_installed(name):
        owners = [name]
    if owners:
        raise OptionError(
            f"{name!r} is the name of an installed package ({owners[0]} "
            f"{metadata.version(owners[0])}). Use another name, or uninstall it: pip uninstall "
            f"{owners[0]}"
        )
    from envweave.registry.plugins import ENVS, plugin_names, plugin_target

    if read.env_id in plugin_names(ENVS):
        raise OptionError(
            f"The ID {read.env_id!r} is taken by {plugin_target(ENVS, read.env_id)}. Use another "
            "name. See `envweave list`."
        )
    return read


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def create_project(name: ProjectName, kind: ProjectKind, folder: Path) -> list[Path]:
    """Write a project into a new or empty folder, and return its files.

    Raises:
        OptionError: The folder has files already, or it cannot be written to.
    """
    files = render(name, kind)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = sorted(one.name for one in folder.iterdir() if one.name not in _IGNORED)
        if there:
            raise OptionError(
                f"The folder {str(folder)!r} is not empty (it has {there[0]!r}), and nothing is "
                "ever overwritten. Choose another with --dir."
            )
        for path, text in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("x", encoding="utf-8") as file:
                file.write(text)
            written.append(target)
    except OSError as error:
        raise OptionError(
            f"The project cannot be written to {str(folder)!r}: {format_error(error)}"
        ) from error
    return written


def render(name: ProjectName, kind: ProjectKind) -> dict[PurePosixPath, str]:
    """Return the files of a project."""
    templates = resources.files("envweave.cli.commands.new") / "templates"
    found = {
        **dict(_templates(templates / "shared", PurePosixPath())),
        **dict(_templates(templates / kind.value, PurePosixPath())),
    }
    words = {
        "summary": _SUMMARIES[kind],
        "factory": _FACTORIES.get(kind, "MyEnv"),
        "envweave": __version__,
        "pad": " " * len(name.name),  # where a command without the name is beside others with it
        "usage": found.pop(PurePosixPath("usage.md")).strip() + "\n",
        "files": found.pop(PurePosixPath("files.md")).strip(),
    }
    return {
        PurePosixPath(str(path).replace("my_env", name.module)): _fill(text, words, name)
        for path, text in sorted(found.items())
    }


def _templates(folder: Traversable, path: PurePosixPath) -> Iterator[tuple[PurePosixPath, str]]:
    for one in folder.iterdir():
        if one.is_dir():
            yield from _templates(one, path / one.name)
        elif one.name.endswith(_SUFFIX):
            yield path / one.name.removesuffix(_SUFFIX), one.read_text(encoding="utf-8")


def _fill(text: str, words: dict[str, str], name: ProjectName) -> str:
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    text = text.replace("my_env", name.module).replace("my-env", name.name)
    return re.sub(r"\bMy(?=[A-Z])", name.prefix, text)
