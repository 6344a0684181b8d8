"""Runs code in a container, for machines whose kernel cannot put up the sandbox's walls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from envweave.codeact.executors.docker_box import DEFAULT_IMAGE, BoxOptions
from envweave.codeact.executors.docker_sessions import DockerSessions
from envweave.codeact.executors.sessions import SessionExecutor
from envweave.codeact.executors.shared import SandboxOptions
from envweave.codeact.executors.walled import with_modules
from envweave.errors import OptionError
from envweave.sandbox.limits import Limits
from envweave.sandbox.options import Profile, WantedIsolation
from envweave.sandbox.packages import AnyPackages, calling_module, read_packages

CPUS = 2.0
"""How many cores' worth of time a container has, where nobody says."""


@final
class DockerExecutor(SessionExecutor):
    """Runs code in a container of this machine's Docker engine, in a sandbox inside it.

    It is for a Mac with Docker Desktop, and for every other machine with an engine where
    `executor="sandbox"` finds no walls. Code does the same in both: variables, tools, files,
    seeds, limits and what a step is told are one.

    Each executor has one container, started for its first episode: no network, a file system that
    cannot be written to, a user without rights, and memory, processes and time by `limits`. Inside
    it a sandbox puts up the walls that the engine's kernel allows, by default Landlock and
    seccomp, and each episode has a session of its own there. Where that kernel allows none, the
    container alone is the wall; then each episode has a container of its own, and `isolation` says
    `"docker+none"`.

    The tools run here, and this process takes every byte from the container for hostile. Code that
    fills the container's memory, or ends its session otherwise, has ended its episode. A container
    that is lost to no fault of the code's ends the episode as lost, and the next one has another.

    Args:
        image: From which image; it must have this very envweave, as those built on
            `envweave-base` have.
        limits: What a session may use.
        preload: Modules of the image that every session finds imported.
        packages: Packages of the image that sessions see; see `Sandbox`.
        profile: `"shell"` lets code also run programs of the image.
        isolation: The walls inside the container; by name, it is these or an error.
        cpus: How many cores' worth of time the container has.
        docker_host: Where the engine is; left out, where `docker` itself looks.

    Raises:
        StartupError: The engine does not answer, or has no such image; the message says what to
            do.
        MissingExtraError: The library for it is not installed.
        OptionError: An option is not sound.
    """

    name = "docker"

    def __init__(
        self,
        *,
        image: str = DEFAULT_IMAGE,
        limits: Limits | None = None,
        preload: Iterable[str] = (),
        packages: AnyPackages = None,
        profile: Profile = "python",
        isolation: WantedIsolation = "auto",
        cpus: float = CPUS,
        docker_host: str | None = None,
    ) -> None:
        sandbox = SandboxOptions(
            limits=limits or Limits(),
            preload=tuple(preload),
            packages=read_packages(packages),
            private=calling_module(),
            profile=profile,
            isolation=isolation,
        )
        options = BoxOptions(with_modules(sandbox), image, cpus, docker_host)
        self._boxed = DockerSessions(options)
        super().__init__(self._boxed)

    @property
    def container(self) -> str | None:
        """What the engine calls the container; `None` while there is none."""
        return self._boxed.container


def default_sessions(options: SandboxOptions) -> DockerSessions:
    """Return where sessions in containers come from, for whoever has no other wishes.

    Raises:
        OptionError: Some files of this host are to be seen.
    """
    refuse_visible(options.visible)
    return DockerSessions(BoxOptions(options, DEFAULT_IMAGE, CPUS, None))


def refuse_visible(visible: tuple[str, ...]) -> None:
    """Refuse to show code files of this host.

    Raises:
        OptionError: Some are to be seen.
    """
    if visible:
        raise OptionError(
            f"visible={list(visible)!r} is for executor='sandbox': a container sees no files of "
            "this machine. Leave it out, and put what code needs into the image, with "
            "executor=DockerExecutor(image=…); or hand it in by a tool."
        )
