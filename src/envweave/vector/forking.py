"""Forks: how an `Env` or a `VectorEnv` opens others like itself, and what a `Snapshot` holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

from envweave.errors import ForkError, OptionError
from envweave.registry import EnvSpec, ReadyMade
from envweave.types import Snapshot
from envweave.vector.columns import Layout

EnvT = TypeVar("EnvT")
TransportT = TypeVar("TransportT")


@final
@dataclass(frozen=True, slots=True)
class Siblings(Generic[EnvT]):
    """Opens environments that are made in the same way.

    Attributes:
        open: Makes another one; for a vector, given the number of its environments.
        is_logged: Whether actions are kept, with `forkable=True`.
    """

    open: Callable[..., EnvT]
    is_logged: bool

    def advise(self, error: ForkError) -> ForkError:
        """Return an error that also says what to do."""
        if self.is_logged:
            return error
        reason = str(error).removesuffix(".")
        return ForkError(
            f"{reason}. Pass forkable=True when you make it, so that its actions are kept and can "
            "be played again; or give the class a snapshot() and a restore()."
        )


def again(spec: EnvSpec, connect: Callable[[], TransportT]) -> TransportT:
    """Connect once more.

    Raises:
        ForkError: The environment is an object, of which there is one.
    """
    if isinstance(spec.factory, ReadyMade):
        raise ForkError(
            f"{spec.id} was made of an object, of which there is only one. Pass make() the class, "
            "or a function that makes it; or use restore(), which needs no second one."
        )
    return connect()


@final
@dataclass(frozen=True, slots=True)
class RowSnapshot:
    """A point of the episode in one row, with what a vector that has no columns yet needs of it.

    Attributes:
        point: What the transport returned.
        layout: How the vector's observations are laid out in columns.
        shown: The row's last observation.
        acted: The agents that have acted in the episode, if there are several.
    """

    point: Any
    layout: Layout
    shown: Any
    acted: frozenset[str]

    @property
    def episode_id(self) -> str | None:
        """The episode."""
        episode_id: str | None = self.point.episode_id
        return episode_id

    @property
    def step_index(self) -> int:
        """How many steps it had taken."""
        step_index: int = self.point.step_index
        return step_index


def snapshot_of(env_id: str, point: Any) -> Snapshot:
    """Return a caller's snapshot of what a transport returned."""
    return Snapshot(env_id=env_id, episode_id=point.episode_id, step=point.step_index, state=point)


def state_of(snapshot: Any, env_id: str) -> Any:
    """Return what a transport restores.

    Raises:
        OptionError: It is not a snapshot of such an environment.
    """
    if not isinstance(snapshot, Snapshot):
        raise OptionError(
            f"restore() takes what snapshot() returned, got a {type(snapshot).__name__}."
        )
    if snapshot.env_id != env_id:
        raise OptionError(
            f"The snapshot is of {snapshot.env_id!r} and cannot be restored in {env_id!r}."
        )
    state = snapshot.state
    return state.point if isinstance(state, RowSnapshot) else state
