"""The interface between a server and where its environments run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from envweave.session import Position
from envweave.wire.description import Description


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The options of a session, from its `open` call.

    Attributes:
        autoreset: Whether the end of an episode begins the next one, in the same result.
        timeout_s: Time limit of one call of the environment.
        position: Where to continue the stream of episodes of an earlier session.
        snapshot: The token of a snapshot that the session is to be restored from.
    """

    autoreset: bool = False
    timeout_s: float | None = None
    position: Position | None = None
    snapshot: str | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """Health of a runtime.

    Attributes:
        stuck: Number of calls past their deadline that still run.
        workers: Number of live worker processes; 0 if the runtime uses none.
        replaced: Number of worker processes that were lost and replaced.
        moves: Number of calls that took so long that the event loop left their thread.
        delayed_s: How long slow calls have held the event loop up, in total.
    """

    stuck: int = 0
    workers: int = 0
    replaced: int = 0
    moves: int = 0
    delayed_s: float = 0.0


class SessionRuntime(Protocol):
    """The environment of one session, wherever it runs. Takes one call at a time."""

    @property
    def is_live(self) -> bool:
        """Whether an episode is running."""
        ...

    async def call(self, method: str, params: Mapping[str, Any], timeout_s: float | None) -> Any:
        """Carry out a call of an environment's method; return the encoded result.

        The methods are `reset`, `check_reset`, `step`, `state`, `snapshot` and `restore`. If the
        environment exceeds `timeout_s` or is lost in a step, the episode ends in a result with
        that reason, as on every backend. The value of `snapshot` is a `KeptSnapshot`.

        Raises:
            EnvWeaveError: The call was refused or failed.
        """
        ...

    def stop_resetting(self) -> None:
        """Turn autoreset off, because the server is stopping."""

    async def close(self) -> None:
        """Close the environment and release its resources. May be called twice."""


class Runtime(Protocol):
    """Where sessions run: this process, or workers."""

    @property
    def is_one_object(self) -> bool:
        """Whether all sessions share one environment object, one after the other."""
        ...

    @property
    def description(self) -> Description:
        """Description of the environment; available once `start` has returned."""
        ...

    @property
    def health(self) -> Health:
        """Current health."""
        ...

    async def start(self) -> None:
        """Start. An environment that cannot be made at all is detected here.

        Raises:
            EnvWeaveError: The environment cannot be made.
        """

    async def open(self, options: SessionOptions) -> SessionRuntime:
        """Make an environment, and return its runner.

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
        """Close every environment and leave nothing behind. May be called twice."""
