"""Vectors to measure: every way to run one here, and Gymnasium's own vectors."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

import envweave as ew
from envweave.bench.solo import Candidate, MakeChooser, refuse_failed
from envweave.registry import EnvSpec, build
from envweave.registry.plugins import BACKENDS, plugin_names

_BATCHES = 32
"""Number of batches of actions that are drawn ahead and used in turn."""


@dataclass(frozen=True, slots=True)
class VectorVariant:
    """A way to run a vector.

    Attributes:
        backend: As `make_vector` takes it, or `gymnasium`.
        mode: As `make_vector` takes it; for Gymnasium, `sync` or `async`.
    """

    backend: str
    mode: str | None = None

    @property
    def name(self) -> str:
        """Its name in the results."""
        return self.backend if self.mode is None else f"{self.backend} {self.mode}"

    @property
    def is_ours(self) -> bool:
        """Whether it is a vector of envweave."""
        return self.backend != "gymnasium"


def list_variants(
    env_id: str, *, is_async: bool, backend: str | None, mode: str | None
) -> list[VectorVariant]:
    """Return the ways to run a vector that make sense, or the one that the arguments name."""
    if backend is not None or mode is not None:
        return [VectorVariant(backend or "inproc", mode)]
    ways = [VectorVariant("inproc", "async")] if is_async else [VectorVariant("inproc", "serial")]
    if not is_async:
        ways.append(VectorVariant("inproc", "threads"))
    if "process" in plugin_names(BACKENDS):
        ways.append(VectorVariant("process"))
    if env_id.startswith("gym://"):
        ways += [VectorVariant("gymnasium", "sync"), VectorVariant("gymnasium", "async")]
    return ways


@final
class OurVector:
    """A vector of envweave, whose episodes have begun."""

    def __init__(
        self,
        spec: EnvSpec,
        kwargs: Mapping[str, Any],
        way: VectorVariant,
        num_envs: int,
        *,
        seed: int | None,
    ) -> None:
        self._id = spec.id
        self._venv = ew.make_vector(
            spec.id,
            num_envs=num_envs,
            backend=way.backend,
            mode=way.mode,
            autoreset=True,
            kwargs=kwargs,
        )
        try:
            self._batch: Any = self._venv.reset(seed=seed)
        except BaseException:
            self._venv.close()
            raise
        self._actions: Iterator[Any] = iter(())

    def candidate(self, name: str, make_chooser: MakeChooser, *, by_step: bool) -> Candidate:
        """Return a candidate that steps all environments once per call and reads the results.

        Args:
            name: Its name in the results.
            make_chooser: Makes choosers of actions.
            by_step: Whether to choose at each step rather than ahead.
        """
        choose = make_chooser(self._venv.action_spec)

        def draw() -> Any:
            actions = [choose(result) for result in self._batch]
            return np.array(actions, np.int64) if all(map(_is_whole, actions)) else actions

        def prepare() -> None:
            self._actions = iter([draw()])

        if not by_step:
            self._actions = itertools.cycle([draw() for _ in range(_BATCHES)])
        return Candidate(name, self._step, prepare=prepare if by_step else None, check=self._check)

    def _step(self) -> int:
        batch = self._batch = self._venv.step(next(self._actions))
        batch.current  # noqa: B018 - columns are created when read
        batch.successor  # noqa: B018
        batch.reward  # noqa: B018
        batch.terminated  # noqa: B018
        batch.truncated  # noqa: B018
        return len(batch)

    def _check(self) -> None:
        for i in np.flatnonzero(~self._batch.valid):
            refuse_failed(self._id, self._batch[int(i)])

    def close(self) -> None:
        """Close the vector."""
        self._venv.close()


def _is_whole(action: Any) -> bool:
    return isinstance(action, int | np.integer) and not isinstance(action, bool)


@final
class GymnasiumVector:
    """Gymnasium's own vector of the same environments."""

    def __init__(
        self,
        spec: EnvSpec,
        kwargs: Mapping[str, Any],
        way: VectorVariant,
        num_envs: int,
        *,
        seed: int | None,
    ) -> None:
        import gymnasium

        makers = [functools.partial(build, spec, dict(kwargs))] * num_envs
        if way.mode == "sync":
            self._venv: Any = gymnasium.vector.SyncVectorEnv(makers)
        else:
            self._venv = gymnasium.vector.AsyncVectorEnv(makers)
        self._venv.reset(seed=seed)
        self._venv.action_space.seed(seed)
        drawn = [self._venv.action_space.sample() for _ in range(_BATCHES)]
        self._actions = itertools.cycle(drawn)
        self._over = np.zeros(num_envs, np.bool_)

    def candidate(self, name: str, make_chooser: MakeChooser, *, by_step: bool) -> Candidate:  # noqa: ARG002 - the signature of OurVector
        """Return a candidate that steps all environments, with actions drawn by Gymnasium."""
        return Candidate(name, self._step)

    def _step(self) -> int:
        _, _, terminated, truncated, _ = self._venv.step(next(self._actions))
        # If an episode was over, this call reset it and took no step.
        taken = len(self._over) - int(np.count_nonzero(self._over))
        self._over = terminated | truncated
        return taken

    def close(self) -> None:
        """Close the vector and end its processes."""
        self._venv.close()


def open_vector(
    spec: EnvSpec, kwargs: Mapping[str, Any], way: VectorVariant, num_envs: int, *, seed: int | None
) -> OurVector | GymnasiumVector:
    """Return a vector of the environment, whose episodes have begun.

    Raises:
        EnvWeaveError: It cannot be made this way.
    """
    kind = OurVector if way.is_ours else GymnasiumVector
    return kind(spec, kwargs, way, num_envs, seed=seed)
