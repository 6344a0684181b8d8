"""What an `Env` needs of whatever carries its calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from envweave.environment import Interface
from envweave.types import ResetResult, State, StepResult, Task, Tasks


class Described(Protocol):
    """What is known of the environment at the other end."""

    interface: Interface

    @property
    def tasks(self) -> Tasks | None:
        """What episodes can be about, without what is private."""
        ...

    @property
    def agents(self) -> list[str]:
        """Who takes part now."""
        ...


class Transport(Described, Protocol):
    """Carries the calls of one `Env` to its session."""

    def reset(
        self,
        *,
        seed: int | None = None,
        task: Task | str | None = None,
        options: Mapping[str, Any] | None = None,
        episode_id: str | None = None,
    ) -> ResetResult[Any]:
        """Begin an episode."""
        ...

    def step(self, action: Any) -> StepResult[Any]:
        """Take one step."""
        ...

    def state(self) -> State:
        """Return the environment's state."""
        ...

    def close(self) -> None:
        """Leave nothing behind. May be called twice."""
        ...


class AsyncTransport(Described, Protocol):
    """Carries the calls of one `AsyncEnv` to its session."""

    async def reset(
        self,
        *,
        seed: int | None = None,
        task: Task | str | None = None,
        options: Mapping[str, Any] | None = None,
        episode_id: str | None = None,
    ) -> ResetResult[Any]:
        """Begin an episode."""
        ...

    async def step(self, action: Any) -> StepResult[Any]:
        """Take one step."""
        ...

    async def state(self) -> State:
        """Return the environment's state."""
        ...

    async def close(self) -> None:
        """Leave nothing behind. May be called twice."""
        ...
