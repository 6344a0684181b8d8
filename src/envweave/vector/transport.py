"""Transports: what `Env`, `AsyncEnv` and `VectorEnv` need to reach their environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from envweave.environment import Interface
from envweave.types import ResetResult, State, StepResult, Task, Tasks
from envweave.vector.arguments import ResetKwargs
from envweave.vector.batch import RowStatus, StepBatch
from envweave.vector.columns import Columns, Layout


class Described(Protocol):
    """What is known of the environment at the other end."""

    interface: Interface

    @property
    def tasks(self) -> Tasks | None:
        """The tasks of its episodes, without their private parts."""
        ...

    @property
    def agents(self) -> list[str]:
        """The agents that take part now."""
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

    def snapshot(self) -> Any:
        """Return a point of the running episode, with its `episode_id` and `step_index`.

        Raises:
            ForkError: The state of the environment cannot be copied.
        """
        ...

    def restore(self, point: Any) -> ResetResult[Any]:
        """Continue from what `snapshot` of this transport or of a sibling returned.

        Raises:
            ForkError: The point is not kept any more, or of another place.
        """
        ...

    def close(self) -> None:
        """Release everything. May be called twice."""
        ...


@runtime_checkable
class HasSiblings(Protocol):
    """A transport that can open another session at the place where its own is.

    Without this, the backend connects anew, which may start another process or server.
    """

    def sibling(self) -> Any:
        """Return a transport of the same kind, to a session of its own at the same place."""
        ...


@runtime_checkable
class HasSiblingVectors(Protocol):
    """A transport of a vector that can open others at the place where its own sessions are."""

    def sibling_vector(self, num_envs: int) -> BatchTransport | None:
        """Return a transport to `num_envs` sessions of its own at the same place.

        `None` where each environment has a place of its own, so that the backend connects anew.
        """
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

    async def snapshot(self) -> Any:
        """Return a point of the running episode. See `Transport.snapshot`."""
        ...

    async def restore(self, point: Any) -> ResetResult[Any]:
        """Continue from a point. See `Transport.restore`."""
        ...

    async def close(self) -> None:
        """Release everything. May be called twice."""
        ...


class BatchTransport(Protocol):
    """Carries the calls of a `VectorEnv` to its environments."""

    interface: Interface

    @property
    def tasks(self) -> Tasks | None:
        """The tasks of its episodes, without their private parts."""
        ...

    @property
    def columns(self) -> Columns:
        """What to act on next. Must not be written to."""

    @property
    def receivable(self) -> set[int]:
        """The environments with a step that was sent and can still be received."""
        ...

    def fix(self, layout: Layout, observations: Sequence[Any]) -> None:
        """Fix the columns, at the first reset of all."""

    def check_reset(self, resets: ResetKwargs) -> None:
        """Refuse what `reset` would refuse, naming the environment; nothing changes."""

    def reset(self, resets: ResetKwargs) -> dict[int, ResetResult[Any] | Exception]:
        """Begin an episode in each of these; a failure takes the place of its result."""
        ...

    def row_status(self, ids: Sequence[int]) -> list[RowStatus]:
        """Return the status of these environments."""
        ...

    def admit(self, ids: Sequence[int], actions: Sequence[Any]) -> Sequence[Any]:
        """Return the actions in the form for the authors' `step`, or refuse; nothing changes.

        Raises:
            ActionError: One is refused; the message begins with its index.
        """
        ...

    def step(self, actions: Sequence[Any]) -> StepBatch:
        """Step each environment once, with actions that were admitted."""
        ...

    def send(self, ids: Sequence[int], actions: Sequence[Any]) -> None:
        """Have these environments take a step each, with actions that were admitted."""

    def recv(self, min_ready: int, timeout_s: float | None) -> StepBatch:
        """Wait for the first `min_ready` steps; return all that are done, the oldest first."""
        ...

    def state(self) -> list[State]:
        """Return the state of each environment."""
        ...

    def snapshot(self, row: int) -> Any:
        """Return a point of the episode running in a row. See `Transport.snapshot`.

        Raises:
            ForkError: The state of the environment cannot be copied.
        """
        ...

    def restore(self, points: Mapping[int, Any]) -> dict[int, ResetResult[Any] | Exception]:
        """Continue from a point in each of these rows; a failure takes the place of its result."""
        ...

    def close(self) -> None:
        """Release everything. May be called twice."""


@runtime_checkable
class TakesArrays(Protocol):
    """A transport whose environments take the actions of all of them as one array."""

    def admit_array(self, actions: NDArray[Any]) -> list[Any] | None:
        """Return the actions in the form for `step`; `None` if each must be checked."""
        ...
