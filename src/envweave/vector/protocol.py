"""What a `VectorEnv` needs of whatever steps its environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from envweave.environment import Interface
from envweave.types import ResetResult, State, Tasks
from envweave.vector.arguments import ResetKwargs
from envweave.vector.batch import RowStatus, StepBatch
from envweave.vector.columns import Columns, Layout


class BatchTransport(Protocol):
    """What a `VectorEnv` needs of whatever steps its environments."""

    interface: Interface

    @property
    def tasks(self) -> Tasks | None:
        """What episodes can be about, without what is private."""
        ...

    @property
    def columns(self) -> Columns:
        """What to act on next. Nobody writes to it."""

    @property
    def receivable(self) -> set[int]:
        """The environments whose step was sent for, and can still be received."""
        ...

    def fix(self, layout: Layout, observations: Sequence[Any]) -> None:
        """Fix the columns, at the first reset of all."""

    def check_reset(self, resets: ResetKwargs) -> None:
        """Refuse what `reset` would refuse, naming the environment; nothing changes."""

    def reset(self, resets: ResetKwargs) -> dict[int, ResetResult[Any] | Exception]:
        """Begin an episode in each of these; a failure stands in its place."""
        ...

    def row_status(self, ids: Sequence[int]) -> list[RowStatus]:
        """Return where these environments stand."""
        ...

    def admit(self, ids: Sequence[int], actions: Sequence[Any]) -> list[Any]:
        """Return the actions as the authors' `step`s want them, or refuse; nothing changes.

        Raises:
            ActionError: One is refused; the message begins with its place.
        """
        ...

    def step(self, actions: Sequence[Any]) -> StepBatch:
        """Step each environment once, with actions that were admitted."""
        ...

    def send(self, ids: Sequence[int], actions: Sequence[Any]) -> None:
        """Let these environments take a step each, with actions that were admitted."""

    def recv(self, min_ready: int, timeout_s: float | None) -> StepBatch:
        """Wait for the first `min_ready` steps; return all that are done, the oldest first."""
        ...

    def state(self) -> list[State]:
        """Return the state of each environment."""
        ...

    def close(self) -> None:
        """Leave nothing behind. May be called twice."""


@runtime_checkable
class TakesArrays(Protocol):
    """A transport whose environments take the actions of all of them as one array."""

    def admit_array(self, actions: NDArray[Any]) -> list[Any] | None:
        """Return the actions as `step` wants them; `None` where each must be looked at."""
        ...
