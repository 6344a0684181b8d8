"""The Docker engine of this machine: its containers and images."""

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
"""How long the engine may take for one call, before it counts as hung."""

LOOK_S = 5.0
"""The same for calls that only inspect a container."""

_COLOR = re.compile(r"\x1b\[[0-9;]*m")

_HOW_TO_START = (
    "Start it: `sudo systemctl start docker` on Linux, or Docker Desktop. `docker info` shows "
    "whether it runs."
)


class EngineError(StartupError):
    """The engine does not answer."""


class NoSuchContainerError(StartupError):
    """The engine has no such container, image or other object."""


class EngineRefusedError(StartupError):
    """The engine refused a call."""


@final
class Engine:
    """A connection to the engine, which any thread may use.

    Args:
        docker_host: Its URL; by default `$DOCKER_HOST`, or that of the current context of
            `docker`.

    Raises:
        MissingExtraError: The Docker SDK is not installed.
        OptionError: It is the engine of another machine.
        EngineError: It does not answer.
    """

    def __init__(self, docker_host: str | None = None) -> None:
        docker = _sdk()
        self._errors = docker.errors
        self.url = docker_host or os.environ.get("DOCKER_HOST") or _get_context_url(docker)
        _check_local(self.url)
        settings = docker.utils.kwargs_from_env() if docker_host is None else {}
        settings["base_url"] = self.url
        with self._translate_errors():
            self._api = docker.APIClient(**settings, version="auto", timeout=CALL_S)
        version = self._api.api_version
        self._quick_api = docker.APIClient(**settings, version=version, timeout=LOOK_S)

    def close(self) -> None:
        """Disconnect. May be called twice; a later call connects again."""
        self._api.close()
        self._quick_api.close()

    # Images

    def image(self, name: str) -> dict[str, Any]:
        """Return the engine's description of an image.

        Raises:
            StartupError: There is no such image; the message says how to get it.
        """
        try:
            with self._translate_errors():
                found: dict[str, Any] = self._api.inspect_image(name)
                return found
        except NoSuchContainerError:
            with self._translate_errors():
                present = self._api.images()
            tags = [tag for one in present for tag in one.get("RepoTags") or ()]
            raise StartupError(missing_image_message(name, tags)) from None

    def build(
        self, context: IO[bytes], image: str, arguments: Mapping[str, str], network: str | None
    ) -> Iterator[str]:
        """Build an image without BuildKit, and yield the lines of its log as they come.

        Args:
            context: A tar file with the `Dockerfile`.
            image: The name of the image.
            arguments: The build's arguments.
            network: The network of the build's commands; the engine's default if `None`.

        Raises:
            EngineRefusedError: A step of it failed.
        """
        with self._translate_errors():
            messages = self._api.build(
                fileobj=context,
                custom_context=True,
                tag=image,
                buildargs=dict(arguments),
                network_mode=network,
                rm=True,
                forcerm=True,
                decode=True,
            )
            for message in messages:
                if "error" in message:
                    raise EngineRefusedError(" ".join(str(message["error"]).split()))
                lines = _COLOR.sub("", message.get("stream", "")).splitlines()
                yield from (line.rstrip() for line in lines if line.strip())

    def remove_images(self, label: str) -> None:
        """Remove the images that have this label, as `"name=value"`, and no name."""
        with self._translate_errors():
            unnamed = self._api.images(filters={"label": label, "dangling": True}, quiet=True)
        for image in unnamed:
            # One that is still used stays.
            with (
                contextlib.suppress(NoSuchContainerError, EngineRefusedError),
                self._translate_errors(),
            ):
                self._api.remove_image(image)

    def info(self) -> dict[str, Any]:
        """Return the engine's description of itself."""
        with self._translate_errors():
            info: dict[str, Any] = self._api.info()
            return info

    # Containers

    def create(self, name: str, config: Mapping[str, Any]) -> str:
        """Create a container without starting it, and return its id."""
        with self._translate_errors():
            made = self._api.create_container_from_config(dict(config), name)
            identity: str = made["Id"]
            return identity

    def attach(self, container: str) -> socket.socket:
        """Return a socket to the input and output of a container without a terminal.

        Attach before it starts. Its stdout and stderr arrive in the engine's frames.

        Raises:
            OptionError: The engine is reached by TLS.
        """
        if self._api.base_url.startswith("https:"):
            raise OptionError(
                f"The Docker engine at {self.url} is reached by TLS, over which attaching to a "
                "container is not supported here. Use its unix socket."
            )
        params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        with self._translate_errors():
            found = self._api.attach_socket(container, params=params)
            with found, found._response:  # noqa: SLF001 - else the library never closes its own end
                return socket.socket(fileno=os.dup(found.fileno()))

    def start(self, container: str) -> None:
        """Start a container."""
        with self._translate_errors():
            self._api.start(container)

    def wait(self, container: str) -> int:
        """Block until a container has ended, for `CALL_S` at most; return its exit code."""
        with self._translate_errors():
            code: int = self._api.wait(container)["StatusCode"]
            return code

    def inspect(self, container: str) -> dict[str, Any]:
        """Return the engine's description of a container, within `LOOK_S`.

        Raises:
            NoSuchContainerError: There is none.
            EngineError: The engine does not answer, or not in time.
        """
        with self._translate_errors():
            found: dict[str, Any] = self._quick_api.inspect_container(container)
            return found

    def last_lines(self, container: str, count: int) -> list[str]:
        """Return the last lines that a container printed, within `LOOK_S`."""
        with self._translate_errors():
            raw: bytes = self._quick_api.logs(container, tail=count)
        lines = raw.decode(errors="replace").splitlines()
        return [line.rstrip() for line in lines if line.strip()][-count:]

    def stop(self, container: str, grace_s: int) -> None:
        """Stop a container, by force after `grace_s`. One that is gone is not an error."""
        with contextlib.suppress(NoSuchContainerError), self._translate_errors():
            self._api.stop(container, timeout=grace_s)

    def pause(self, container: str) -> None:
        """Freeze a container's processes."""
        with self._translate_errors():
            self._api.pause(container)

    def unpause(self, container: str) -> None:
        """Let a container's processes continue."""
        with self._translate_errors():
            self._api.unpause(container)

    def remove(self, container: str) -> None:
        """Remove a container by force. One that is gone already is not an error."""
        with contextlib.suppress(NoSuchContainerError), self._translate_errors():
            try:
                self._api.remove_container(container, force=True, v=True)
            except self._errors.APIError as error:
                if error.status_code != 409:  # another process is removing it
                    raise

    def labels(self, label: str) -> dict[str, Mapping[str, str]]:
        """Return the labels of every container that has this label, by its id."""
        with self._translate_errors():
            found = self._api.containers(all=True, filters={"label": label})
        return {one["Id"]: one["Labels"] for one in found}

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translate the SDK's errors of one call into ours."""
        try:
            self._check_listening()
            yield
        except self._errors.NotFound as error:
            raise NoSuchContainerError(_explain(error)) from None
        except self._errors.APIError as error:
            raise EngineRefusedError(_explain(error)) from None
        except (self._errors.DockerException, OSError) as error:
            raise self._silent(error) from None

    def _check_listening(self) -> None:
        """Check that the engine listens: if it does not, the SDK leaks a socket per call."""
        parts = urlsplit(self.url)
        if parts.scheme in ("unix", "http+unix"):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(LOOK_S)
                probe.connect(parts.path)

    def _silent(self, error: Exception) -> EngineError:
        why = " ".join(str(error).split())
        if "Permission denied" in why:
            return EngineError(
                f"This user has no permission to use the Docker engine at {self.url}. Run `sudo "
                "usermod -aG docker $USER`, and log in again."
            )
        for known in ("No such file or directory", "Connection refused", "timed out"):
            if known in why:
                why = known.lower()
        return EngineError(
            f"The Docker engine at {self.url} does not answer ({why}). {_HOW_TO_START}"
        )


def _sdk() -> Any:
    try:
        # A folder called docker on the path could be imported as `docker`, but not as this.
        importlib.import_module("docker.errors")
    except ImportError:
        raise MissingExtraError.for_extra(
            "Starting containers needs the Docker SDK.", "docker"
        ) from None
    return importlib.import_module("docker")


def _get_context_url(docker: Any) -> str:
    """Return the engine's URL in the current context of `docker`."""
    try:
        found = docker.ContextAPI.get_current_context()
        host = found.Host if found is not None else None
    except Exception:  # noqa: BLE001 - any error of the SDK about a broken file
        host = None
    return str(host) if host else "unix:///var/run/docker.sock"


def _check_local(url: str) -> None:
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


def _explain(error: Any) -> str:
    return " ".join(str(error.explanation or error).split()) or "no reason given"
