"""`LocalDockerProvider`: a server in a container of this machine's Docker engine."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, final

from envweave.errors import CallOrderError, OptionError
from envweave.lifetime import AtExit, CloseGuard
from envweave.providers.base import WatchedProvider
from envweave.providers.cleanup import remove_leftovers
from envweave.providers.docker.container import Container
from envweave.providers.docker.engine import Engine
from envweave.providers.docker.options import CONFIG, DockerOptions, known, variables


@final
class ContainerLease:
    """A container that is removed when it is stopped, or dropped, or the process ends.

    Args:
        container: It.
        then: Called once it is removed.

    Attributes:
        container: The same.
        token: What to show its server; `None` if it asks for nothing.
    """

    def __init__(self, container: Container, token: str | None, then: Callable[[], None]) -> None:
        self.container = container
        self.token = token
        self._then = then
        self._unstopped = CloseGuard(
            self,
            partial(_remove, container, then),
            f"The container {container.name} was dropped without stop_container(). Close what it "
            "was started for.",
            at_exit=AtExit.WARN,
        )

    def stop(self) -> None:
        """End the container in order if it can be, and remove it."""
        try:
            self.container.stop()
        finally:
            self._unstopped.disarm()
            self._then()


def _remove(container: Container, then: Callable[[], None]) -> None:
    container.remove()
    then()


TOKEN = "ENVWEAVE_TOKEN"  # noqa: S105 - the name of a variable

_CONFIG = '{"options": {"drain_s": 0}}'
"""What a server is told where nobody says more: who stops it has no more use for its episodes."""


@final
class LocalDockerProvider(WatchedProvider):
    """Starts a server in a container, with as few rights as it can do with.

    By default the container's root file system is read-only, it has none of the rights of root and
    cannot gain any, its memory, processes and CPU time are limited, and its port can be reached
    from this machine alone, by those who have the token. `network="none"` leaves it no network at
    all.

    `make("echo-v0", provider=LocalDockerProvider(memory="512m"))` has an environment in one, and so
    has `EchoEnv.from_docker_image("echo-env:latest")`.

    A container is removed by `stop_container`, when the process ends, and, if that was killed,
    when the next one is started by anybody. Before it starts one, containers are removed whose
    owners are gone.

    Args:
        **options: The fields of `DockerOptions`, such as `memory="512m"`, `cpus=1.0`, `pids=256`
            or `network="none"`.

    Raises:
        OptionError: There is no such option, or it cannot have this value.
    """

    def __init__(self, **options: Any) -> None:
        self._options = DockerOptions(**known(options))
        self._held: ContainerLease | None = None

    @property
    def token(self) -> str | None:
        """What to show the server that was started."""
        return None if self._held is None else self._held.token

    @property
    def container(self) -> str | None:
        """What the engine calls the container; `None` while there is none."""
        return None if self._held is None else self._held.container.name

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> str:
        """Start a container, and return its base URL, where nobody need answer yet.

        Args:
            image: Its name, such as `"echo-env:latest"`. It must be on this machine.
            port: The port of loopback where callers will find it; left out, one that is free.
            env_vars: The server's environment variables. `ENVWEAVE_TOKEN` is one that nobody
                can guess, unless it is given.
            **kwargs: Options for this container alone.

        Raises:
            StartupError: The engine does not answer, there is no such image, or it will not
                start. Nothing is left behind.
            OptionError: There is no such option, or it cannot have this value.
            CallOrderError: One is running already.
        """
        if self._held is not None:
            raise CallOrderError(
                "The provider has started a container already. Stop it first, or use a provider "
                "of its own for each."
            )
        refuse_nameless(image)
        options = self._options.changed(kwargs)
        told = told_variables(options, env_vars)
        engine = Engine(options.docker_host)
        try:
            remove_leftovers(engine)
            container = Container(engine, image, options, port, told)
        except BaseException:
            engine.close()
            raise
        self._held = ContainerLease(container, told[TOKEN] or None, engine.close)
        return container.base_url

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Block until the server at `base_url` answers `/health`.

        Raises:
            EnvWeaveError: What it was to serve cannot be made.
            StartupError: The container exited, or `timeout_s` seconds passed. The message ends
                with the container's last log lines.
        """
        if self._held is None:
            raise CallOrderError(f"No container was started for {base_url!r}.")
        self._held.container.wait_until_ready(timeout_s)

    def why_gone(self) -> str | None:
        """Return why nobody will ever answer there again; `None` if somebody may."""
        return None if self._held is None else self._held.container.why_gone()

    def another(self) -> LocalDockerProvider:
        """Return one more of this kind, with the same options and no container yet."""
        one = LocalDockerProvider()
        one._options = self._options
        return one

    def stop_container(self) -> None:
        """Stop the container and remove it. May be called twice."""
        held, self._held = self._held, None
        if held is not None:
            held.stop()


def refuse_nameless(image: Any) -> None:
    """Refuse what cannot be an image's name.

    Raises:
        OptionError: It cannot.
    """
    if not isinstance(image, str) or not image.strip():
        raise OptionError(f"{image!r} is no image's name. Use one such as 'echo-env:latest'.")


def told_variables(options: DockerOptions, more: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment variables of a server, with a token that nobody can guess.

    Raises:
        OptionError: One of those given is none.
    """
    return {
        CONFIG: _CONFIG,
        TOKEN: secrets.token_urlsafe(24),
        **options.env_vars,
        **variables(more),
    }
