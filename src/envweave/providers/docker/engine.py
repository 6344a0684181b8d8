"""The Docker engine of this machine: containers are started and looked at, and images built."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import socket
from collections.abc import Iterator, Mapping
from typing import IO, Any, final
from urllib.parse import urlsplit

from envweave.errors import MissingExtraError, OptionError, StartupError
from envweave.providers.docker.options import missing_image_message

CALL_S = 60.0
"""How long the engine may take for one answer, before it counts as hung."""

LOOK_S = 5.0
"""The same where somebody only wants to know what became of a container."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

_HOW_TO_START = (
    "Start it: `sudo systemctl start docker` on Linux, or Docker Desktop. `docker info` tells "
    "whether it runs."
)


class EngineError(StartupError):
    """The engine does not answer."""


class NoSuchContainerError(StartupError):
    """The engine has no such container, or not any more."""


class EngineRefusedError(StartupError):
    """The engine answered, and will not do it."""


@final
class Engine:
    """A connection to the engine, which any thread may use.

    Args:
        docker_host: Where it is; left out, `$DOCKER_HOST`, or where the current context of
            `docker` says.

    Raises:
        MissingExtraError: The library for it is not installed.
        OptionError: It is the engine of another machine.
        EngineError: It does not answer.
    """

    def __init__(self, docker_host: str | None = None) -> None:
        docker = _sdk()
        self._errors = docker.errors
        self.url = docker_host or os.environ.get("DOCKER_HOST") or _of_context(docker)
        _refuse_far(self.url)
        settings = docker.utils.kwargs_from_env() if docker_host is None else {}
        settings["base_url"] = self.url
        with self._told():
            self._api = docker.APIClient(**settings, version="auto", timeout=CALL_S)
        version = self._api.api_version
        self._impatient = docker.APIClient(**settings, version=version, timeout=LOOK_S)

    def close(self) -> None:
        """Hang up. May be called twice, and whoever calls later connects anew."""
        self._api.close()
        self._impatient.close()

    # Images

    def image(self, name: str) -> dict[str, Any]:
        """Return what the engine knows of an image.

        Raises:
            StartupError: There is none; the message says how to have it.
        """
        try:
            with self._told():
                found: dict[str, Any] = self._api.inspect_image(name)
                return found
        except NoSuchContainerError:
            with self._told():
                present = self._api.images()
            tags = [tag for one in present for tag in one.get("RepoTags") or ()]
            raise StartupError(missing_image_message(name, tags)) from None

    def build(
        self, context: IO[bytes], image: str, arguments: Mapping[str, str], network: str | None
    ) -> Iterator[str]:
        """Build an image, without BuildKit, and yield the lines of its log as they come.

        Args:
            context: A tar file with the `Dockerfile`.
            image: What to call it.
            arguments: The build's arguments.
            network: What the build's commands can reach; the engine's own choice if `None`.

        Raises:
            RefusedError: A step of it failed.
        """
        with self._told():
            said = self._api.build(
                fileobj=context,
                custom_context=True,
                tag=image,
                buildargs=dict(arguments),
                network_mode=network,
                rm=True,
                forcerm=True,
                decode=True,
            )
            for one in said:
                if "error" in one:
                    raise EngineRefusedError(" ".join(str(one["error"]).split()))
                lines = _COLOUR.sub("", one.get("stream", "")).splitlines()
                yield from (line.rstrip() for line in lines if line.strip())

    def remove_images(self, label: str) -> None:
        """Remove the images that have this label, as `"name=value"`, and no name."""
        with self._told():
            unnamed = self._api.images(filters={"label": label, "dangling": True}, quiet=True)
        for image in unnamed:
            # One that is used after all stays.
            with contextlib.suppress(NoSuchContainerError, EngineRefusedError), self._told():
                self._api.remove_image(image)

    def info(self) -> dict[str, Any]:
        """Return what the engine says of itself."""
        with self._told():
            told: dict[str, Any] = self._api.info()
            return told

    # Containers

    def create(self, name: str, config: Mapping[str, Any]) -> str:
        """Make a container, which does not run yet, and return its id."""
        with self._told():
            made = self._api.create_container_from_config(dict(config), name)
            identity: str = made["Id"]
            return identity

    def attach(self, container: str) -> socket.socket:
        """Return the input and output of a container that has no terminal, before it runs.

        What is sent is its input. What comes is its output and its errors, in the engine's frames.

        Raises:
            OptionError: The engine is reached by TLS.
        """
        if self._api.base_url.startswith("https:"):
            raise OptionError(
                f"The Docker engine at {self.url} is reached by TLS, by which a container cannot "
                "be spoken to here. Use its unix socket."
            )
        wanted = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        with self._told():
            found = self._api.attach_socket(container, params=wanted)
            with found, found._response:  # noqa: SLF001 - else the library never closes its own end
                return socket.socket(fileno=os.dup(found.fileno()))

    def start(self, container: str) -> None:
        """Let it run."""
        with self._told():
            self._api.start(container)

    def wait(self, container: str) -> int:
        """Block until it has ended, for `CALL_S` at most, and return its exit code."""
        with self._told():
            code: int = self._api.wait(container)["StatusCode"]
            return code

    def inspect(self, container: str) -> dict[str, Any]:
        """Return what the engine knows of a container. It may take `LOOK_S` at most.

        Raises:
            NoSuchContainerError: There is none.
            EngineError: The engine does not answer, or not in time.
        """
        with self._told():
            found: dict[str, Any] = self._impatient.inspect_container(container)
            return found

    def last_lines(self, container: str, count: int) -> list[str]:
        """Return the last lines that a container printed. It may take `LOOK_S` at most."""
        with self._told():
            raw: bytes = self._impatient.logs(container, tail=count)
        lines = raw.decode(errors="replace").splitlines()
        return [line.rstrip() for line in lines if line.strip()][-count:]

    def stop(self, container: str, grace_s: int) -> None:
        """End it in order, and after so long by force. One that is gone is no failure."""
        with contextlib.suppress(NoSuchContainerError), self._told():
            self._api.stop(container, timeout=grace_s)

    def pause(self, container: str) -> None:
        """Hold it up, wherever it stands."""
        with self._told():
            self._api.pause(container)

    def unpause(self, container: str) -> None:
        """Let it go on."""
        with self._told():
            self._api.unpause(container)

    def remove(self, container: str) -> None:
        """Remove a container, whatever it does. One that is gone is no failure."""
        with contextlib.suppress(NoSuchContainerError), self._told():
            try:
                self._api.remove_container(container, force=True, v=True)
            except self._errors.APIError as error:
                if error.status_code != 409:  # somebody else is removing it
                    raise

    def labels(self, label: str) -> dict[str, Mapping[str, str]]:
        """Return the labels of every container that has one of this name, by its id."""
        with self._told():
            found = self._api.containers(all=True, filters={"label": label})
        return {one["Id"]: one["Labels"] for one in found}

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Make one call, and tell in our own words why it failed."""
        try:
            self._knock()
            yield
        except self._errors.NotFound as error:
            raise NoSuchContainerError(_explained(error)) from None
        except self._errors.APIError as error:
            raise EngineRefusedError(_explained(error)) from None
        except (self._errors.DockerException, OSError) as error:
            raise self._silent(error) from None

    def _knock(self) -> None:
        """Try whether anybody listens: where nobody does, the library loses a socket each time."""
        parts = urlsplit(self.url)
        if parts.scheme in ("unix", "http+unix"):
            with socket.socket(socket.AF_UNIX) as knocking:
                knocking.settimeout(LOOK_S)
                knocking.connect(parts.path)

    def _silent(self, error: Exception) -> EngineError:
        why = " ".join(str(error).split())
        if "Permission denied" in why:
            return EngineError(
                f"The Docker engine at {self.url} may not be used by this user. Ask for that: "
                "`sudo usermod -aG docker $USER`, and log in again."
            )
        for known in ("No such file or directory", "Connection refused", "timed out"):
            if known in why:
                why = known.lower()
        return EngineError(
            f"The Docker engine at {self.url} does not answer ({why}). {_HOW_TO_START}"
        )


def _sdk() -> Any:
    try:
        # A folder called docker, where Python looks first, can be imported too; this cannot.
        importlib.import_module("docker.errors")
    except ImportError:
        raise MissingExtraError.for_extra(
            "Starting containers needs the Docker SDK.", "docker"
        ) from None
    return importlib.import_module("docker")


def _of_context(docker: Any) -> str:
    """Return where `docker` itself looks for the engine."""
    try:
        found = docker.ContextAPI.get_current_context()
        host = found.Host if found is not None else None
    except Exception:  # noqa: BLE001 - whatever the library makes of a broken file
        host = None
    return str(host) if host else "unix:///var/run/docker.sock"


def _refuse_far(url: str) -> None:
    """Refuse an engine whose containers cannot be reached from here."""
    parts = urlsplit(url)
    is_here = parts.scheme in ("unix", "npipe", "http+unix", "") or parts.hostname in (
        "localhost",
        "127.0.0.1",
        "::1",
    )
    if not is_here:
        raise OptionError(
            f"The Docker engine at {url!r} is another machine's, and its containers cannot be "
            "reached from here. Serve the environment there, and connect to it by its URL; or use "
            "the engine of this machine, with docker_host='unix:///var/run/docker.sock'."
        )


def _explained(error: Any) -> str:
    return " ".join(str(error.explanation or error).split()) or "it does not say why"
