"""How well a policy does: whole episodes, each with its own seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import envweave as ew

Policy: TypeAlias = Callable[[Any], NDArray[Any]]
"""Maps the columns of a batch's `current` to one action per environment."""

FIRST_SEED = 2**32
"""The first seed of evaluations; a session's own stream stays below 2**31."""


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        success: The share of episodes that succeeded, from 0 to 1.
        mean_return: The mean of the episodes' returns, not discounted.
        episodes: How many there were.
    """

    success: float
    mean_return: float
    episodes: int

    def logged(self) -> dict[str, float]:
        """Return the fields of its line in a run's log."""
        return {
            "episodes": self.episodes,
            "success": self.success,
            "return": self.mean_return,
        }


def evaluate(
    venv: ew.VectorEnv, policy: Policy, episodes: int, *, split: str | None = None
) -> Evaluation:
    """Run `episodes` episodes, each to its end and with its own seed.

    The vector must reset itself (`autoreset=True`). Of each environment only the first episode
    after a reset counts: counting whichever ends first would favor short ones.

    Args:
        venv: The environments.
        policy: The policy to evaluate.
        episodes: How many episodes.
        split: Play the first tasks of this endless split instead, each once. If every episode is
            one step, the vector need not reset itself.

    Raises:
        EnvironmentFailure: An episode failed, so it says nothing about the policy.
    """
    returns: list[float] = []
    successes: list[float] = []
    while len(returns) < episodes:
        batch: ew.ResetBatch | ew.StepBatch
        if split is None:
            batch = venv.reset(seed=FIRST_SEED + len(returns))
        else:
            batch = venv.reset(task=[f"{split}-{len(returns) + i}" for i in range(venv.num_envs)])
        earned = np.zeros(venv.num_envs)
        ends: dict[int, ew.StepResult[Any]] = {}
        while len(ends) < venv.num_envs:
            batch = venv.step(policy(batch.current))
            running = [i for i in range(venv.num_envs) if i not in ends]
            earned[running] += batch.reward[running]
            ends |= {i: _usable(batch[i]) for i in running if batch[i].done}
        counted = range(min(venv.num_envs, episodes - len(returns)))
        returns += [float(earned[i]) for i in counted]
        successes += [float(ends[i].metrics["success"]) for i in counted]
    return Evaluation(float(np.mean(successes)), float(np.mean(returns)), episodes)


def _usable(result: ew.StepResult[Any]) -> ew.StepResult[Any]:
    if result.end is not None and not result.end.valid:
        raise ew.errors.EnvironmentFailure(f"An evaluation episode failed: {result.end.cause}")
    return result
