"""A container that runs code: its start, its messages and its removal."""

from __future__ import annotations

import dataclasses
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any, final, get_args

from envweave.codeact.executors.docker.messages import (
    MODULE,
    PROTOCOL,
    Failed,
    FromContainer,
    Make,
    Open,
    Opened,
    RelayInfo,
    SessionMade,
)
from envweave.codeact.executors.docker.mux import ContainerHandle, StdioMux
from envweave.codeact.executors.sandbox import SandboxOptions
from envweave.errors import (
    EnvWeaveError,
    IsolationError,
    OptionError,
    SandboxError,
    SessionLostError,
    StartupError,
)
from envweave.lifetime import AtExit, CloseGuard, OwnerProcess
from envweave.providers.cleanup import Owner, remove_leftovers
from envweave.providers.docker.engine import (
    Engine,
    EngineError,
    EngineRefusedError,
    NoSuchContainerError,
)
from envweave.providers.docker.options import DockerOptions, check_image_name, format_size
from envweave.providers.health import log_tail
from envweave.sandbox.config import Profile, WantedIsolation
from envweave.sandbox.execution import MEGABYTE
from envweave.sandbox.processes.process import ExitReason
from envweave.sandbox.protocol.messages import ToolSignature
from envweave.sandbox.protocol.orders import Isolation

logger = logging.getLogger("envweave.providers")

DEFAULT_IMAGE = "envweave-base:latest"
"""The default image in which code runs."""

START_S = 120.0
"""How long a container may take to start its program and the sandbox in it."""

MAKE_S = 60.0
"""How long a session may take to start."""

_SETTLE_S = 3.0
_POLL_EVERY_S = 0.05
_SPARE_BYTES = 256 * MEGABYTE
_SPARE_FOLDER_BYTES = 16 * MEGABYTE
_SPARE_PIDS = 64
_USERS = range(20_000, 60_000)
_OUT_OF_MEMORY = 137  # SIGKILL by the kernel
_ERRORS: dict[str, type[EnvWeaveError]] = {
    "OptionError": OptionError,
    "IsolationError": IsolationError,
    "SandboxError": SandboxError,
}


@dataclass(frozen=True, slots=True)
class ContainerOptions:
    """The options of a container that runs code.

    Attributes:
        sandbox: The options of the sandbox inside.
        image: The image.
        cpus: CPU limit, in cores.
        docker_host: The address of the engine; default: as the `docker` command.
    """

    sandbox: SandboxOptions
    image: str
    cpus: float
    docker_host: str | None

    def __post_init__(self) -> None:
        """Refuse invalid options."""
        check_image_name(self.image)
        for option, value, kind in (
            ("profile", self.sandbox.profile, Profile),
            ("isolation", self.sandbox.isolation, WantedIsolation),
        ):
            if value not in get_args(kind):
                known = ", ".join(map(repr, get_args(kind)))
                raise OptionError(f"{option} must be one of {known}, got {value!r}.")
        self.container()

    def container(self) -> DockerOptions:
        """Return the limits of the container: those of a session, and some headroom."""
        limits = self.sandbox.limits
        folder = limits.disk_bytes + _SPARE_FOLDER_BYTES
        messages = 4 * limits.message_bytes  # on their way, in the program and in the session
        return DockerOptions(
            memory=limits.memory_bytes + folder + messages + _SPARE_BYTES,
            cpus=self.cpus,
            pids=limits.processes + _SPARE_PIDS,
            tmp_size=folder,
            network="none",
            init=False,  # its program is PID 1, which no process inside can signal
            docker_host=self.docker_host,
        )


class _ContainerLease:
    """Inspects and removes a container. Thread-safe."""

    def __init__(self, engine: Engine, options: ContainerOptions) -> None:
        self._engine = engine
        self._memory = options.container().memory
        self._owner = OwnerProcess()
        self.name = f"envweave-code-{secrets.token_hex(6)}"
        self.which = f"its container {self.name} of {options.image!r}"

    def why_gone(self) -> ExitReason:
        """Return why the container no longer answers."""
        ends_s = time.monotonic() + _SETTLE_S
        while True:
            try:
                state = self._engine.inspect(self.name)["State"]
            except NoSuchContainerError:
                return ExitReason("lost", why=f"{self.which} was removed by another process")
            except EngineError as error:
                return ExitReason(
                    "lost", why=f"{self.which} cannot be reached. {error}".rstrip(".")
                )
            except StartupError as error:
                return ExitReason("lost", why=f"{self.which} is gone: {error}")
            if state["Status"] in ("exited", "dead"):
                return self._describe_exit(state)
            if time.monotonic() >= ends_s:
                return ExitReason("lost", why=f"the connection to {self.which} was lost")
            time.sleep(_POLL_EVERY_S)  # the engine reports an exit with a delay

    def _describe_exit(self, state: dict[str, Any]) -> ExitReason:
        code = state.get("ExitCode")
        if state.get("OOMKilled") and code == _OUT_OF_MEMORY:
            # Except for the headroom, all memory in there is the code's.
            limit = format_size(int(self._memory))
            return ExitReason("memory", why=f"{self.which} exceeded its memory limit of {limit}")
        error = f": {state['Error']}" if state.get("Error") else ""
        return ExitReason("lost", why=f"{self.which} exited with code {code}{error}")

    def remove(self) -> None:
        """Remove it, in whatever state. Does nothing in a forked process."""
        if not self._owner.is_current:
            return
        try:
            self._engine.remove(self.name)
        except StartupError as error:
            # After this process ends, the next start of a container removes it.
            logger.warning("%s could not be removed: %s", self.name, error)
        finally:
            self._engine.close()


@final
class ExecutorContainer:
    """A container with a sandbox in it, which makes one session at a time.

    It is removed by `close`, when it is garbage-collected, and when the process ends. If the
    process was killed, its program exits, and the next start of a container removes it.

    Attributes:
        name: Its name in the engine.
        tier: The isolation inside.
        is_used: Whether a session was made in it.

    Raises:
        StartupError: The engine does not answer, there is no such image, or it cannot be used.
        EnvWeaveError: The sandbox inside cannot be started; the same errors as without Docker.
    """

    def __init__(self, options: ContainerOptions) -> None:
        engine = Engine(options.docker_host)
        self._lease = _ContainerLease(engine, options)
        self.name = self._lease.name
        self.is_used = False
        try:
            remove_leftovers(engine)
            look_up(engine, options.image)
            self._mux = _start(engine, self._lease, options)
        except BaseException:
            engine.close()
            raise
        self._unclosed = CloseGuard(
            self,
            partial(_end, self._lease, self._mux),
            f"The container {self._lease.name} was dropped without close(). Close the environment "
            "that uses it.",
            at_exit=AtExit.WARN,
        )
        try:
            self.tier = self._open(options)
        except BaseException:
            self.close()
            raise

    @property
    def is_gone(self) -> bool:
        """Whether it can no longer start sessions."""
        return self._mux.is_over

    def make(self, seed: int | None, tools: Sequence[ToolSignature]) -> ContainerHandle:
        """Return a new session. The one before is ended.

        Raises:
            SessionLostError: The container is gone.
            SandboxError: It cannot be made.
        """
        self.is_used = True
        session = ContainerHandle(self._mux.send)
        self._mux.adopt(session)
        try:
            answer = self._mux.request(Make(session.number, seed, list(tools)), MAKE_S)
            if not isinstance(answer, SessionMade) or answer.number != session.number:
                raise _make_error(answer)
            session.work = answer.work
        except BaseException:
            session.release()
            raise
        return session

    def close(self) -> None:
        """Remove it. Harmless twice, and in a forked process."""
        if self._unclosed.disarm():
            _end(self._lease, self._mux)

    def _open(self, options: ContainerOptions) -> Isolation:
        sandbox = options.sandbox
        try:
            info = self._mux.request(None, START_S)
            if not isinstance(info, RelayInfo):
                raise _make_error(info)
            _check_version(info, options.image)
            answer = self._mux.request(
                Open(
                    dataclasses.asdict(sandbox.limits),
                    list(sandbox.preload),
                    list(sandbox.packages)
                    if isinstance(sandbox.packages, tuple)
                    else sandbox.packages,
                    list(sandbox.private),
                    sandbox.profile,
                    sandbox.isolation,
                ),
                START_S,
            )
        except SessionLostError as error:
            raise StartupError(
                f"A container of {options.image!r} cannot run code: {error} The image must contain "
                f"envweave, as images built on {DEFAULT_IMAGE} do.{log_tail(self._mux.errors())}"
            ) from None
        if not isinstance(answer, Opened):
            raise _make_error(answer)
        if answer.tier == "none" != sandbox.isolation:
            why = " ".join(answer.reasons)[:1000]
            logger.warning("%s: only the container isolates the code. %s", self.name, why)
        return answer.tier


def look_up(engine: Engine, image: str) -> None:
    """Check that the engine has the image.

    Raises:
        StartupError: It has not; the message says how to get it.
    """
    try:
        engine.image(image)
    except StartupError as error:
        if image != DEFAULT_IMAGE or isinstance(error, EngineError):
            raise
        raise StartupError(
            f"{error} Or use another image with envweave: executor=DockerExecutor(image=…)."
        ) from None


def _start(engine: Engine, lease: _ContainerLease, options: ContainerOptions) -> StdioMux:
    """Start the container, and its program with it."""
    try:
        engine.create(lease.name, _config(options))
        attached = engine.attach(lease.name)
        try:
            engine.start(lease.name)
        except BaseException:
            attached.close()
            raise
        return StdioMux(attached, lease.why_gone, lease.remove)
    except BaseException as error:
        lease.remove()
        if isinstance(error, EngineRefusedError | NoSuchContainerError):
            raise StartupError(
                f"A container of {options.image!r} could not be started: {error}."
            ) from None
        raise


def _config(options: ContainerOptions) -> dict[str, Any]:
    # Some limits are counted by user, on the whole machine: containers must not share one.
    user = secrets.choice(_USERS)
    return {
        "Image": options.image,
        "Entrypoint": ["python", "-I", "-B", "-m", MODULE],
        "Cmd": [],
        "User": f"{user}:{user}",
        "WorkingDir": "/tmp",  # noqa: S108 - the container's own
        "Labels": {
            **Owner.here().labels(),
            "envweave.created": datetime.now(UTC).isoformat(timespec="seconds"),
        },
        "Healthcheck": {"Test": ["NONE"]},
        "OpenStdin": True,
        "StdinOnce": True,  # stdin closes with this process, which ends the program
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        # Its output is for this host only, and would fill the engine's disk.
        "HostConfig": {**options.container().host_config(), "LogConfig": {"Type": "none"}},
    }


def _check_version(info: RelayInfo, image: str) -> None:
    here = version("envweave")
    if (info.version, info.protocol) != (here, PROTOCOL):
        raise StartupError(
            f"The image {image!r} has envweave {info.version[:40]!r}, but this is {here!r}; the "
            "versions must be equal. Rebuild the image."
        )


def _make_error(answer: FromContainer) -> EnvWeaveError:
    if isinstance(answer, Failed):
        return _ERRORS[answer.kind](answer.text)
    return SessionLostError("The program in the container sent an unexpected answer.")


def _end(lease: _ContainerLease, mux: StdioMux) -> None:
    mux.close()
    lease.remove()
