"""What a server needs of wherever its environments run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from envweave.session import Position
from envweave.wire.description import Description


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a caller wants of a session when it is opened.

    Attributes:
        autoreset: Whether an end begins the next episode, in the same result.
        timeout_s: How long an environment's own call may take.
        position: Where the stream of episodes goes on, if another session had come so far.
    """

    autoreset: bool = False
    timeout_s: float | None = None
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """How a place fares.

    Attributes:
        stuck: How many calls past their deadline could not be stopped, and still run.
        workers: How many worker processes are alive; 0 where there are none.
        replaced: How many worker processes were lost and replaced.
    """

    stuck: int = 0
    workers: int = 0
    replaced: int = 0


class SessionRuntime(Protocol):
    """One session's environment, wherever it runs. One call at a time."""

    @property
    def is_live(self) -> bool:
        """Whether an episode is running."""
        ...

    async def call(self, method: str, params: Mapping[str, Any], timeout_s: float | None) -> Any:
        """Carry out `reset`, `check_reset`, `step` or `state`; return the result as it travels.

        An episode whose environment took longer than `timeout_s`, or was lost, ends in a result
        that says so, as on every backend.

        Raises:
            EnvWeaveError: The call was refused, or failed.
        """
        ...

    def stop_resetting(self) -> None:
        """Let no episode begin by itself any more: the server is stopping."""

    async def close(self) -> None:
        """Close the environment and free what it held. May be called twice."""


class Runtime(Protocol):
    """Where sessions run: this process, or workers."""

    @property
    def is_one_object(self) -> bool:
        """Whether all sessions, one after the other, have the same environment object."""
        ...

    @property
    def description(self) -> Description:
        """What is served; known once `start` has returned."""
        ...

    @property
    def health(self) -> Health:
        """How it fares."""
        ...

    async def start(self) -> None:
        """Make ready. Environments that cannot be made at all are found out here.

        Raises:
            EnvWeaveError: Why they cannot.
        """

    async def open(self, wishes: SessionOptions) -> SessionRuntime:
        """Make an environment, and return who runs it.

        Raises:
            EnvWeaveError: It could not be made.
        """
        ...

    async def tasks(self, split: str, start: int, count: int) -> list[Any]:
        """Return some of the tasks of a split, in order.

        Raises:
            TaskError: There is no such split.
        """
        ...

    async def task(self, task_id: str) -> Any:
        """Return one task.

        Raises:
            TaskError: There is no such task.
        """
        ...

    async def close(self) -> None:
        """Close every environment, and leave nothing behind. May be called twice."""
