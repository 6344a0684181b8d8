"""`LocalDockerProvider`: a server in a container of this machine's Docker engine."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, final

from envweave.errors import CallOrderError
from envweave.lifetime import AtExit, CloseGuard
from envweave.providers.base import WatchedProvider
from envweave.providers.cleanup import remove_leftovers
from envweave.providers.docker.container import Container
from envweave.providers.docker.engine import Engine
from envweave.providers.docker.options import (
    CONFIG,
    DockerOptions,
    check_image_name,
    check_names,
    variables,
)


@final
class ContainerLease:
    """A container that is removed when it is stopped, or dropped, or the process ends.

    Args:
        container: The container.
        token: The access token of its server; `None` if it needs none.
        then: Called after it is removed.

    Attributes:
        container: The container.
        token: The access token of its server.
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
        """Stop the container gracefully if possible, and remove it."""
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
"""The default configuration: a client that stops the server no longer needs its episodes."""


@final
class LocalDockerProvider(WatchedProvider):
    """Starts a server in a container with few privileges.

    By default the container's root file system is read-only, it has no capabilities and cannot
    gain any, its memory, processes and CPU time are limited, and its port can be reached from this
    machine only, with the token. `network="none"` gives it no network at all.

    `make("echo-v0", provider=LocalDockerProvider(memory="512m"))` makes an environment in one, as
    does `EchoEnv.from_docker_image("echo-env:latest")`.

    A container is removed by `stop_container` and when the process ends. If the process was
    killed, the next process that starts a container removes it.

    Args:
        **options: The fields of `DockerOptions`, such as `memory="512m"`, `cpus=1.0`, `pids=256`
            or `network="none"`.

    Raises:
        OptionError: There is no such option, or its value is invalid.
    """

    def __init__(self, **options: Any) -> None:
        self._options = DockerOptions(**check_names(options))
        self._lease: ContainerLease | None = None

    @property
    def token(self) -> str | None:
        """The access token of the server that was started."""
        return None if self._lease is None else self._lease.token

    @property
    def container(self) -> str | None:
        """The name of the container; `None` while there is none."""
        return None if self._lease is None else self._lease.container.name

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> str:
        """Start a container, and return its base URL. Its server need not answer yet.

        Args:
            image: Its name, such as `"echo-env:latest"`. It must be on this machine.
            port: The local port to reach it at; by default, a free one.
            env_vars: The server's environment variables. `ENVWEAVE_TOKEN` is a random one,
                unless given.
            **kwargs: Options for this container alone.

        Raises:
            StartupError: The engine does not answer, there is no such image, or it does not
                start. Nothing is left running.
            OptionError: There is no such option, or its value is invalid.
            CallOrderError: A container is running already.
        """
        if self._lease is not None:
            raise CallOrderError(
                "The provider has started a container already. Stop it first, or use a separate "
                "provider for each."
            )
        check_image_name(image)
        options = self._options.changed(kwargs)
        server_env = server_variables(options, env_vars)
        engine = Engine(options.docker_host)
        try:
            remove_leftovers(engine)
            container = Container(engine, image, options, port, server_env)
        except BaseException:
            engine.close()
            raise
        self._lease = ContainerLease(container, server_env[TOKEN] or None, engine.close)
        return container.base_url

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Block until the server at `base_url` answers `/health`.

        Raises:
            EnvWeaveError: The environment cannot be made.
            StartupError: The container exited, or `timeout_s` seconds passed. The message ends
                with the container's last log lines.
        """
        if self._lease is None:
            raise CallOrderError(f"No container was started for {base_url!r}.")
        self._lease.container.wait_until_ready(timeout_s)

    def why_gone(self) -> str | None:
        """Return why the server is gone for good; `None` if it may still answer."""
        return None if self._lease is None else self._lease.container.why_gone()

    def another(self) -> LocalDockerProvider:
        """Return another provider with the same options, without a container yet."""
        provider = LocalDockerProvider()
        provider._options = self._options
        return provider

    def stop_container(self) -> None:
        """Stop the container and remove it. May be called twice."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.stop()


def server_variables(options: DockerOptions, more: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment variables of a server, with a random token.

    Raises:
        OptionError: One of those given is invalid.
    """
    return {
        CONFIG: _CONFIG,
        TOKEN: secrets.token_urlsafe(24),
        **options.env_vars,
        **variables(more),
    }
