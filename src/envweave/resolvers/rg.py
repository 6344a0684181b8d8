"""`rg://chain_sum`: the datasets of reasoning-gym."""

from __future__ import annotations

from typing import Any

from envweave.adapters.reasoning_gym import ReasoningGymEnv, find_dataset, reasoning_gym_module
from envweave.environment import Environment
from envweave.registry import EnvSpec, Registry


def resolve(rest: str, registry: Registry) -> EnvSpec:  # noqa: ARG001 - a resolver's signature
    """`rg://chain_sum`: a dataset of reasoning-gym: generated questions, and their scorer.

    Raises:
        MissingExtraError: reasoning-gym is not installed.
        EnvNotFoundError: It has no such dataset.
    """
    find_dataset(rest)
    return EnvSpec(
        f"rg://{rest}",
        f"{__name__}:make_environment",
        kwargs={"dataset": rest},
        description=f"reasoning-gym's {rest}",
    )


def make_environment(dataset: str, **keywords: Any) -> Environment:
    """Make an environment, with the keywords of `ReasoningGymEnv` and of the dataset."""
    return ReasoningGymEnv(dataset, **keywords)


def available() -> list[str]:
    """Return the names of all datasets."""
    return sorted(reasoning_gym_module().factory.DATASETS)
