"""`ContainerProvider`: who starts a server for a caller."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any


class ContainerProvider(ABC):
    """Starts, watches and stops the place where one server runs.

    A client asks for the three in this order, and stops in any case:

    ```python
    provider = SubprocessProvider()
    base_url = provider.start_container("echo-v0")
    provider.wait_for_ready(base_url)
    provider.stop_container()
    ```

    One provider has one place at a time.
    """

    @abstractmethod
    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> str:
        """Start a server, and return its base URL, where nobody need answer yet.

        Args:
            image: What to run.
            port: Where callers will find it; left out, one that is free.
            env_vars: Added to the server's environment variables.
            **kwargs: What only this provider knows.

        Raises:
            StartupError: It could not be started. Nothing is left behind.
        """

    @abstractmethod
    def stop_container(self) -> None:
        """Stop what was started, and leave nothing behind. May be called twice."""

    @abstractmethod
    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Block until the server at `base_url` answers `/health`.

        Raises:
            StartupError: The container exited, or `timeout_s` seconds passed.
                The message ends with the container's last log lines.
        """


def bind_wait_for_ready(provider: ContainerProvider) -> Callable[[str, float], None]:
    """Return a provider's `wait_for_ready`, to be called with a base URL and a time limit.

    One that has no parameter `timeout_s` is called with the base URL alone, and decides itself how
    long to wait.
    """
    wait: Any = provider.wait_for_ready
    if "timeout_s" in inspect.signature(wait).parameters:
        return lambda base_url, timeout_s: wait(base_url, timeout_s=timeout_s)
    return lambda base_url, _: wait(base_url)


class WatchedProvider(ContainerProvider):
    """A provider whose place can be looked at from outside, and whose server asks for a token.

    A client that has lost its connection asks `why_gone`, and so neither waits for a server that
    will never answer again, nor has to guess why.
    """

    @property
    @abstractmethod
    def token(self) -> str | None:
        """What to show the server that was started; `None` if it asks for nothing."""

    @abstractmethod
    def why_gone(self) -> str | None:
        """Return why nobody will ever answer there again; `None` if somebody may."""

    @abstractmethod
    def another(self) -> WatchedProvider:
        """Return one more of this kind, with the same options and no place yet."""
