"""Runs code in a container, for machines whose kernel cannot put up the sandbox's walls."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Iterable
from typing import final

from envweave.codeact.executors.base import Functions
from envweave.codeact.executors.docker.container import (
    DEFAULT_IMAGE,
    ContainerOptions,
    ExecutorContainer,
    look_up,
)
from envweave.codeact.executors.docker.mux import ContainerHandle
from envweave.codeact.executors.sandbox import (
    SandboxOptions,
    SessionExecutor,
    SessionSource,
    with_modules,
)
from envweave.errors import OptionError, SessionLostError
from envweave.providers.docker.engine import Engine
from envweave.sandbox.async_session import AsyncSession
from envweave.sandbox.config import Profile, WantedIsolation
from envweave.sandbox.host.installed import is_standard
from envweave.sandbox.host.packages import AnyPackages, calling_module, read_packages
from envweave.sandbox.limits import Limits
from envweave.sandbox.processes.async_bridge import make_in_thread
from envweave.sandbox.tools import SandboxTools


@final
class DockerSessions(SessionSource):
    """Sessions, one at a time, in a container that is started for the first.

    A container that is gone is replaced by the next session. Where no walls stand in it, each
    session has a container of its own: nothing else would end what the one before left running.

    Raises:
        StartupError: The engine does not answer, or has no such image.
        MissingExtraError: The library for it is not installed.
    """

    def __init__(self, options: ContainerOptions) -> None:
        engine = Engine(options.docker_host)
        try:
            look_up(engine, options.image)
        finally:
            engine.close()
        self._options = options
        # Held while a container is started, or a session made: a caller who no longer waits for it
        # may have come back, or close all.
        self._lock = threading.Lock()
        self._box: ExecutorContainer | None = None
        self._is_closed = False

    @property
    def isolation(self) -> str:
        """`"docker"`, and the walls inside: `"docker+landlock"` for one."""
        return "docker" if self._box is None else f"docker+{self._box.tier}"

    @property
    def container(self) -> str | None:
        """What the engine calls the container; `None` while there is none."""
        return None if self._box is None else self._box.name

    async def session(self, *, seed: int | None, tools: Functions) -> AsyncSession:
        """Return a session that nobody used before."""
        chosen = SandboxTools(tools)
        body = await make_in_thread(lambda: self._body(seed, chosen), ContainerHandle.release)
        limits = self._options.sandbox.limits
        return AsyncSession(
            body,
            limits,
            chosen,
            work=body.work,
            explain=self._explain,
            on_close=chosen.close,
        )

    def _explain(self, module: str) -> str | None:
        name = module.split(".")[0]
        if is_standard(name):
            return None
        return (
            f"import of {name!r} failed in a session: the image {self._options.image!r} has no "
            f"such package, or it is not visible; pass packages=[{name!r}]."
        )

    def _body(self, seed: int | None, tools: SandboxTools) -> ContainerHandle:
        faces = tools.signatures()
        with self._lock:
            box = self._ready_box()
            try:
                return box.make(seed, faces)
            except SessionLostError:
                box.close()
            return self._ready_box().make(seed, faces)  # it was lost while nobody looked

    def _ready_box(self) -> ExecutorContainer:
        box = self._box
        if box is not None and (box.is_gone or (box.tier == "none" and box.is_used)):
            self._box = None
            box.close()
            box = None
        if box is None:
            if self._is_closed:
                raise SessionLostError("The container was closed.")
            box = self._box = ExecutorContainer(self._options)
        return box

    def keep_private(self, modules: tuple[str, ...]) -> None:
        """Have the sandboxes of containers to come show none of these."""
        sandbox = self._options.sandbox
        private = tuple(sorted({*sandbox.private, *modules}))
        sandbox = dataclasses.replace(sandbox, private=private)
        self._options = dataclasses.replace(self._options, sandbox=sandbox)

    async def close(self) -> None:
        """Remove the container."""
        self._is_closed = True
        await asyncio.to_thread(self._leave_box)

    def _leave_box(self) -> None:
        with self._lock:
            box, self._box = self._box, None
            if box is not None:
                box.close()

    def hold(self) -> Callable[[], None]:
        """Keep nothing: no two share a container."""
        return lambda: None


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
        options = ContainerOptions(with_modules(sandbox), image, cpus, docker_host)
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
    return DockerSessions(ContainerOptions(options, DEFAULT_IMAGE, CPUS, None))


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
