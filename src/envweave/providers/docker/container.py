"""One container with a server: starting, watching and removing it."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from envweave.errors import EnvWeaveError, OptionError, StartupError
from envweave.lifetime import OwnerProcess
from envweave.providers.cleanup import Owner
from envweave.providers.docker.engine import (
    Engine,
    EngineError,
    EngineRefusedError,
    NoSuchContainerError,
)
from envweave.providers.docker.options import DockerOptions, Image, format_size, parse_size
from envweave.providers.health import LINES_READ, answers_health, error_in, log_tail

logger = logging.getLogger("envweave.providers")

SOCKET_FOLDER = "/run/envweave"
"""The folder of the unix socket inside a container."""

STOP_S = 5
"""How long a server may take to close its environments before it is killed."""

_POLL_S = 0.01
_LOOK_EVERY_S = 0.2
_OUT_OF_MEMORY = 137  # killed by SIGKILL, as the OOM killer does


@final
class Container:
    """A container with a server in it. Only `stop` and `remove` remove it.

    Args:
        engine: The engine that runs it.
        image: The image to run.
        options: The options of the container.
        port: The local port to reach it at; `None` for a free one.
        env_vars: The server's environment variables.

    Attributes:
        name: The name of the container.
        base_url: The URL of its server.

    Raises:
        StartupError: It could not be started. Nothing is left running.
        OptionError: An option is not supported here.
    """

    def __init__(
        self,
        engine: Engine,
        image: str,
        options: DockerOptions,
        port: int | None,
        env_vars: Mapping[str, str],
    ) -> None:
        self._engine = engine
        self._image = image
        self._options = options
        self._owner = OwnerProcess()
        self._folder: Path | None = None
        self._was_reached = False
        self.name = f"envweave-{secrets.token_hex(6)}"
        about = Image(image, engine.image(image))
        about.check_supported(options, env_vars)
        about.warn_about_root(options.user)
        inside = options.container_port or about.port or 8000
        try:
            if not options.has_network:
                self._folder = _socket_folder(engine, port)
            engine.create(self.name, self._config(env_vars, inside, port))
            engine.start(self.name)
            self.base_url = self._find_base_url(inside)
        except BaseException as error:
            self.remove()
            if isinstance(error, EngineRefusedError | NoSuchContainerError):
                raise self._start_error(error, port) from None
            raise

    def _config(self, env_vars: Mapping[str, str], inside: int, port: int | None) -> dict[str, Any]:
        options = self._options
        host = options.host_config()
        labels = {
            **Owner.here().labels(),
            "envweave.created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        given = dict(env_vars)
        if self._folder is not None:
            host["Binds"].append(f"{self._folder / 'socket'}:{SOCKET_FOLDER}:rw")
            given["ENVWEAVE_UDS"] = f"{SOCKET_FOLDER}/server.sock"
        else:
            bound = {"HostIp": "127.0.0.1", "HostPort": "" if port is None else str(port)}
            host["PortBindings"] = {f"{inside}/tcp": [bound]}
        return {
            "Image": self._image,
            "Env": [f"{name}={value}" for name, value in given.items()],
            "Labels": labels,
            "ExposedPorts": {f"{inside}/tcp": {}},
            "HostConfig": host,
            **({"User": options.user} if options.user is not None else {}),
            **({"Cmd": list(options.command)} if options.command is not None else {}),
        }

    def _find_base_url(self, inside: int) -> str:
        """Return the URL of the server; the engine chose its port."""
        if self._folder is not None:
            return f"unix://{self._folder / 'socket' / 'server.sock'}"
        ports = self._engine.inspect(self.name)["NetworkSettings"]["Ports"] or {}
        bound = ports.get(f"{inside}/tcp")
        if not bound:  # it has exited already
            raise self._gone() or EngineRefusedError("it has no port")
        return f"http://127.0.0.1:{bound[0]['HostPort']}"

    def _start_error(self, error: StartupError, port: int | None) -> StartupError:
        """Return the error for a container that the engine did not start."""
        why = str(error)
        if port is not None and ("already allocated" in why or "already in use" in why):
            return StartupError(
                f"Port {port} of this machine is in use. Stop what listens there, or leave port "
                "out to use a free one."
            )
        if "no such file or directory" in why and "init" in why and self._options.init:
            why += " (an engine without docker-init needs init=False)"
        return StartupError(f"The container of {self._image!r} could not be started: {why}.")

    # Health

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until its server answers.

        Raises:
            EnvWeaveError: The environment cannot be made.
            StartupError: The container exited, or `timeout_s` seconds passed.
        """
        ends_s = time.monotonic() + timeout_s
        look_s = time.monotonic() + _LOOK_EVERY_S
        while not answers_health(self.base_url, max(0.1, ends_s - time.monotonic())):
            now_s = time.monotonic()
            if now_s >= look_s or now_s >= ends_s:
                gone = self._gone()
                if gone is not None:
                    raise gone
                look_s = time.monotonic() + _LOOK_EVERY_S
            if now_s >= ends_s:
                raise StartupError(
                    f"The container {self.name} of {self._image!r} runs, but its server did not "
                    f"answer within {timeout_s:g} s.{log_tail(self._last_lines())}"
                )
            time.sleep(_POLL_S)
        self._was_reached = True
        if self._folder is not None:
            # From now on the container cannot write to this machine's disk any more.
            (self._folder / "socket").chmod(0o755)

    def why_gone(self) -> str | None:
        """Return why its server will never answer again; `None` if it may."""
        gone = self._gone()
        return None if gone is None else str(gone)

    def _gone(self) -> EnvWeaveError | None:
        which = f"The container {self.name} of {self._image!r}"
        try:
            state = self._engine.inspect(self.name)["State"]
        except NoSuchContainerError:
            return StartupError(f"{which} was removed by another program.")
        except EngineError as error:
            return StartupError(f"{which} cannot be reached. {error}")
        if state["Status"] not in ("exited", "dead"):
            return None
        lines = self._last_lines()
        fault = None if self._was_reached else error_in(lines, self._image)
        return fault or StartupError(f"{which} {self._exit_status(state)}.{log_tail(lines)}")

    def _exit_status(self, state: Mapping[str, Any]) -> str:
        code = state.get("ExitCode")
        if state.get("OOMKilled") and code == _OUT_OF_MEMORY:
            limit = format_size(parse_size("memory", self._options.memory))
            return (
                f"ran out of memory: it needed more than {limit}, and was killed (exit code "
                f"{code}). Give it more, with LocalDockerProvider(memory=…)"
            )
        error = f": {state['Error']}" if state.get("Error") else ""
        return f"exited with code {code}{error}"

    def _last_lines(self) -> list[str]:
        try:
            return self._engine.last_lines(self.name, LINES_READ)
        except StartupError:
            return []

    # Stopping

    def pause(self) -> None:
        """Freeze its processes."""
        self._engine.pause(self.name)

    def unpause(self) -> None:
        """Let its processes continue."""
        self._engine.unpause(self.name)

    def stop(self) -> None:
        """Stop it gracefully if possible, and remove it. May be called twice."""
        if not self._owner.is_current:
            return
        try:
            if self._folder is not None:
                with contextlib.suppress(OSError):
                    (self._folder / "socket").chmod(0o777)  # the server removes its socket
            self._engine.stop(self.name, STOP_S)
        except StartupError as error:
            logger.warning("stopping %s failed: %s", self.name, error)
        finally:
            self.remove()

    def remove(self) -> None:
        """Remove it by force. May be called twice.

        Does nothing in a forked copy of the process that started it.
        """
        if not self._owner.is_current:
            return
        try:
            self._engine.remove(self.name)
        except StartupError as error:
            # The next process that starts a container removes it, when this one has ended.
            logger.warning("%s could not be removed: %s", self.name, error)
        finally:
            folder, self._folder = self._folder, None
            if folder is not None:
                from envweave.sandbox.host.work_dirs import remove_tree

                remove_tree(folder)


def _socket_folder(engine: Engine, port: int | None) -> Path:
    """Make a folder for a container's socket that only this user can reach.

    Raises:
        OptionError: A socket cannot be shared with containers here.
    """
    if port is not None:
        raise OptionError(
            f"port={port} and network='none' exclude each other: without a network the server "
            "listens on a unix socket. Leave one of them out."
        )
    system = str(engine.info().get("OperatingSystem", ""))
    if os.uname().sysname != "Linux" or "Docker Desktop" in system:
        raise OptionError(
            "network='none' needs containers that share this machine's sockets, and here they run "
            "in a virtual machine. Leave it out: the server then listens on a local port."
        )
    from envweave.sandbox.host.cleanup import new_folder, sweep_folders

    try:
        sweep_folders()
        folder = new_folder("socket")
        inside = folder / "socket"
        inside.mkdir()
        # For any user of the container; the folder around it is closed to other users here.
        inside.chmod(0o777)
    except OSError as error:
        raise StartupError(
            f"No folder could be made for the socket of a container: {error}. Free some space, or "
            "set $TMPDIR to a writable folder."
        ) from error
    return folder
