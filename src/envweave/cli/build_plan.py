"""What an image is to be: of which environment, on what base, with which packages."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envweave.cli.build_sources import Project, Source, project_at, sources_of
from envweave.errors import EnvIdError, OptionError, suggest
from envweave.providers.docker_image import image_of
from envweave.registry.plugins import ENVS, plugin_names
from envweave.registry.registry import LOCAL

BASE = "envweave-base:latest"

_HOST = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::[0-9]+)?/)?"
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_IMAGE = re.compile(rf"{_HOST}{_PART}(?:/{_PART})*(?P<tag>:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?")


@dataclass(frozen=True, slots=True)
class Plan:
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
) -> Plan:
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
    return Plan(
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
