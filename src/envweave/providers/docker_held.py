"""A container in somebody's use, which ends with it."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import final

from envweave.providers.docker_container import Container


@final
class Held:
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
        self._unstopped = weakref.finalize(self, _dropped, container, then)

    def stop(self) -> None:
        """End the container in order if it can be, and remove it."""
        try:
            self.container.stop()
        finally:
            self._unstopped.detach()
            self._then()


def _dropped(container: Container, then: Callable[[], None]) -> None:
    container.remove()
    then()
    warnings.warn(
        f"The container {container.name} was dropped without stop_container(). Close what it was "
        "started for.",
        ResourceWarning,
        stacklevel=1,
    )
