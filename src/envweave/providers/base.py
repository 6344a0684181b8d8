"""`ContainerProvider`: the interface for starting a server for a client."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any


class ContainerProvider(ABC):
    """Starts, watches and stops one server: a process, a container or a pod.

    A client calls its methods in this order, and always stops:

    ```python
    provider = SubprocessProvider()
    base_url = provider.start_container("echo-v0")
    provider.wait_for_ready(base_url)
    provider.stop_container()
    ```

    One provider has one server at a time.
    """

    @abstractmethod
    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> str:
        """Start a server, and return its base URL. It need not answer yet.

        Args:
            image: The image to run.
            port: The local port to reach it at; by default, a free one.
            env_vars: Added to the server's environment variables.
            **kwargs: Options of this provider.

        Raises:
            StartupError: It could not be started. Nothing is left running.
        """

    @abstractmethod
    def stop_container(self) -> None:
        """Stop the server, and clean up. May be called twice."""

    @abstractmethod
    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Block until the server at `base_url` answers `/health`.

        Raises:
            StartupError: The container exited, or `timeout_s` seconds passed.
                The message ends with the container's last log lines.
        """


def bind_wait_for_ready(provider: ContainerProvider) -> Callable[[str, float], None]:
    """Return a provider's `wait_for_ready`, to be called with a base URL and a time limit.

    A `wait_for_ready` without the parameter `timeout_s` is called with the base URL alone, and
    decides itself how long to wait.
    """
    wait: Any = provider.wait_for_ready
    if "timeout_s" in inspect.signature(wait).parameters:
        return lambda base_url, timeout_s: wait(base_url, timeout_s=timeout_s)
    return lambda base_url, _: wait(base_url)


class WatchedProvider(ContainerProvider):
    """A provider that knows whether its server is alive, and whose server has a token.

    A client that has lost its connection calls `why_gone`: so it does not wait for a server that
    is gone, and can report why.
    """

    @property
    @abstractmethod
    def token(self) -> str | None:
        """The access token of the server that was started; `None` if it needs none."""

    @abstractmethod
    def why_gone(self) -> str | None:
        """Return why the server is gone for good; `None` if it may still answer."""

    @abstractmethod
    def another(self) -> WatchedProvider:
        """Return another provider with the same options, without a server yet."""
