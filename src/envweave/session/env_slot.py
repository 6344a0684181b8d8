"""The environment under a session's rules, and its replacement after a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from envweave.environment import Environment
from envweave.types import EpisodeEnd, LogEvent, ToolCallRequest


@final
class EnvSlot:
    """Holds one environment at a time.

    A failed environment is not trusted with another episode. Before its next `reset` a driver
    takes it out (`release`), closes it, and puts a new one in (`install`), so that two never hold
    the same port or file. Without a `factory`, the failed one stays.

    Attributes:
        environment: The current environment, or the last one.
        tasks: The tasks that it offers.
        factory: Makes a new one; `None` for an environment that was passed ready-made. With an
            async driver it may be a coroutine function.
        failed: Whether the environment failed.
        empty: Whether it was released, and no new one was installed yet.
    """

    def __init__(
        self,
        environment: Environment,
        outbox: list[LogEvent | ToolCallRequest | EpisodeEnd],
    ) -> None:
        self.environment = environment
        self.tasks = environment.tasks
        self.factory: Callable[[], Any] | None = None
        self.failed = False
        self.empty = False
        self._queue = outbox
        environment.connect(outbox)

    def release(self) -> Environment | None:
        """Take out the failed environment; return it to be closed, or `None` if it was before."""
        if self.empty:
            return None
        self.empty = self.failed = True
        self.environment.connect([])  # drop the events of whatever of it still runs
        return self.environment

    def install(self, environment: Environment) -> None:
        """Put in a new environment, and receive its events."""
        self.environment, self.tasks = environment, environment.tasks
        self.failed = self.empty = False
        environment.connect(self._queue)

    def to_act(self) -> Any:
        """Return the agents that must act now, in a multi-agent environment."""
        return self.environment.to_act()  # type: ignore[attr-defined] # only multi-agent ones have it
