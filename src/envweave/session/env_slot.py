"""The environment under a session's rules, and its replacement once it has failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from envweave.environment import Environment
from envweave.types import EpisodeEnd, LogEvent, ToolCallRequest


@final
class EnvSlot:
    """Holds one environment at a time.

    One that failed is not trusted with another episode. Before its next `reset` a driver takes
    it out (`release`), closes it, and puts another in (`install`), so that two never hold the same
    port or file. Where nobody can make another, it keeps its slot.

    Attributes:
        environment: Who sits here, or did last.
        tasks: What its episodes can be about.
        factory: Makes another; set by whoever can, so `None` for an environment given ready-made.
            Where a driver can await it, it may be a coroutine function.
        failed: Whether it failed.
        empty: Whether it was taken out already, and no other came yet.
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
        """Take out the environment that failed; return it to be closed, unless it was before."""
        if self.empty:
            return None
        self.empty = self.failed = True
        self.environment.connect([])  # whatever of it still runs has nobody to talk to
        return self.environment

    def install(self, environment: Environment) -> None:
        """Let another sit here, and listen to it."""
        self.environment, self.tasks = environment, environment.tasks
        self.failed = self.empty = False
        environment.connect(self._queue)

    def to_act(self) -> Any:
        """Ask who may act now, where there are several agents."""
        return self.environment.to_act()  # type: ignore[attr-defined] # several have it
