"""`DockerExecutor`: runs code in a container, for machines whose kernel cannot run the sandbox."""

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
from envweave.sandbox.execution import Limits
from envweave.sandbox.host.installed import is_standard
from envweave.sandbox.host.packages import AnyPackages, calling_module, read_packages
from envweave.sandbox.processes.async_bridge import make_in_thread
from envweave.sandbox.tools import SandboxTools


@final
class DockerSessions(SessionSource):
    """Sessions, one at a time, in a container that is started for the first one.

    A container that is gone is replaced for the next session. Without isolation inside, each
    session gets a new container: nothing else would end what the one before left running.

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
        # Held while a container or a session is started: a caller that was cancelled meanwhile may
        # call again, or close.
        self._lock = threading.Lock()
        self._container: ExecutorContainer | None = None
        self._is_closed = False

    @property
    def isolation(self) -> str:
        """`"docker"` and the isolation inside, such as `"docker+landlock"`."""
        return "docker" if self._container is None else f"docker+{self._container.tier}"

    @property
    def container(self) -> str | None:
        """The name of the container in the engine; `None` while there is none."""
        return None if self._container is None else self._container.name

    async def session(self, *, seed: int | None, tools: Functions) -> AsyncSession:
        """Return a fresh session."""
        table = SandboxTools(tools)
        handle = await make_in_thread(lambda: self._make(seed, table), ContainerHandle.release)
        limits = self._options.sandbox.limits
        return AsyncSession(
            handle,
            limits,
            table,
            work=handle.work,
            explain=self._explain,
            on_close=table.close,
        )

    def _explain(self, module: str) -> str | None:
        name = module.split(".")[0]
        if is_standard(name):
            return None
        return (
            f"import of {name!r} failed in a session: the image {self._options.image!r} has no "
            f"such package, or it is not visible; pass packages=[{name!r}]."
        )

    def _make(self, seed: int | None, tools: SandboxTools) -> ContainerHandle:
        signatures = tools.signatures()
        with self._lock:
            container = self._get_container()
            try:
                return container.make(seed, signatures)
            except SessionLostError:
                container.close()
            # It was lost since the last session.
            return self._get_container().make(seed, signatures)

    def _get_container(self) -> ExecutorContainer:
        container = self._container
        if container is not None and (
            container.is_gone or (container.tier == "none" and container.is_used)
        ):
            self._container = None
            container.close()
            container = None
        if container is None:
            if self._is_closed:
                raise SessionLostError("The container was closed.")
            container = self._container = ExecutorContainer(self._options)
        return container

    def keep_private(self, modules: tuple[str, ...]) -> None:
        """Hide these modules in containers that are started later."""
        sandbox = self._options.sandbox
        private = tuple(sorted({*sandbox.private, *modules}))
        sandbox = dataclasses.replace(sandbox, private=private)
        self._options = dataclasses.replace(self._options, sandbox=sandbox)

    async def close(self) -> None:
        """Remove the container."""
        self._is_closed = True
        await asyncio.to_thread(self._remove_container)

    def _remove_container(self) -> None:
        with self._lock:
            container, self._container = self._container, None
            if container is not None:
                container.close()

    def hold(self) -> Callable[[], None]:
        """Do nothing: containers are not shared."""
        return lambda: None


CPUS = 2.0
"""The default CPU limit of a container, in cores."""


@final
class DockerExecutor(SessionExecutor):
    """Runs code in a container of this machine's Docker engine, in a sandbox inside it.

    It is for a Mac with Docker Desktop, and for any other machine with an engine whose own kernel
    cannot run `executor="sandbox"`. Code behaves the same in both: variables, tools, files, seeds,
    limits and results.

    Each executor has one container, started for its first episode: no network, a read-only file
    system, an unprivileged user, and memory, processes and time by `limits`. Inside it a sandbox
    uses the isolation that the engine's kernel supports, by default Landlock and seccomp, and each
    episode has a fresh session there. If that kernel supports none, the container alone isolates
    the code; then each episode has a fresh container, and `isolation` is `"docker+none"`.

    Tools run in this process, which treats every byte from the container as hostile. Code that
    fills the container's memory, or ends its session otherwise, ends its episode. A container that
    is lost through no fault of the code ends the episode as lost; the next one starts another.

    Args:
        image: The image; it must contain the same version of envweave, as images built on
            `envweave-base` do.
        limits: What a session may use.
        preload: Modules of the image that are imported before a session starts.
        packages: Packages of the image that sessions see; see `Sandbox`.
        profile: `"shell"` also lets code run programs of the image.
        isolation: The isolation inside the container; a named one is required, or an error.
        cpus: CPU limit of the container, in cores.
        docker_host: The address of the engine; default: as the `docker` command.

    Raises:
        StartupError: The engine does not answer, or has no such image; the message says what to
            do.
        MissingExtraError: The library for it is not installed.
        OptionError: An option is invalid.
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
        self._sessions = DockerSessions(options)
        super().__init__(self._sessions)

    @property
    def container(self) -> str | None:
        """The name of the container in the engine; `None` while there is none."""
        return self._sessions.container


def default_sessions(options: SandboxOptions) -> DockerSessions:
    """Return a source of sessions in containers, with default options.

    Raises:
        OptionError: `visible` is not empty.
    """
    refuse_visible(options.visible)
    return DockerSessions(ContainerOptions(options, DEFAULT_IMAGE, CPUS, None))


def refuse_visible(visible: tuple[str, ...]) -> None:
    """Refuse to show files of this host to code.

    Raises:
        OptionError: `visible` is not empty.
    """
    if visible:
        raise OptionError(
            f"visible={list(visible)!r} is only supported by executor='sandbox': a container sees "
            "no files of this machine. Put what code needs into the image, with "
            "executor=DockerExecutor(image=…), or provide it by a tool."
        )
