"""Train LineWorld with RLlib's PPO: `python -m envweave.examples.train_lineworld_rllib`.

RLlib's EnvRunners make the environments, through `to_gymnasium`. It needs `ray[rllib]` and torch,
and uses the Ray cluster at `$RAY_ADDRESS` or on this machine; without one it starts one.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.registry import register_env

import envweave as ew
from envweave.examples.training.program import positive_int

__all__ = ["Iteration", "RLlibConfig", "main", "train"]

NAME = "envweave-lineworld"


@dataclass(frozen=True, kw_only=True)
class RLlibConfig:
    """How to train.

    Attributes:
        iterations: How often to collect steps and learn from them.
        env_runners: How many of RLlib's actors step environments.
        envs_per_runner: How many environments each of them has.
        steps: How many steps an iteration collects.
        seed: The random seed.
        record: The directory to record every episode into; `None` for none.
    """

    iterations: int = 12
    env_runners: int = 1
    envs_per_runner: int = 8
    steps: int = 1024
    seed: int = 0
    record: Path | None = None


@dataclass(frozen=True)
class Iteration:
    """The outcome of one iteration.

    Attributes:
        number: Its number, from 1. The steps of the first are those of the untrained policy.
        steps: How many steps were taken so far.
        mean_return: The mean return of the last episodes.
    """

    number: int
    steps: int
    mean_return: float


def make_env(options: Mapping[str, Any]) -> Any:
    """Make an environment for RLlib: its observations are vectors, its actions are numbered."""
    return ew.to_gymnasium("lineworld-v0", flatten=True, **options)


def train(config: RLlibConfig) -> Iterator[Iteration]:
    """Train, and yield each iteration."""
    register_env(NAME, make_env)
    # The EnvRunners are other processes, with other working directories.
    record = None if config.record is None else str(config.record.resolve())
    algorithm = (
        PPOConfig()
        .environment(NAME, env_config={"size": 15, "record": record})
        .env_runners(
            num_env_runners=config.env_runners,
            num_envs_per_env_runner=config.envs_per_runner,
        )
        .training(
            lr=3e-3,
            train_batch_size_per_learner=config.steps,
            minibatch_size=config.steps // 4,
            num_epochs=6,
            entropy_coeff=0.01,
        )
        .rl_module(model_config={"fcnet_hiddens": [32, 32]})
        .fault_tolerance(restart_failed_sub_environments=True)
        .debugging(seed=config.seed, log_level="ERROR")
        .build_algo()
    )
    try:
        for number in range(1, config.iterations + 1):
            result = algorithm.train()
            steps = int(result["num_env_steps_sampled_lifetime"])
            yield Iteration(number, steps, result["env_runners"]["episode_return_mean"])
    finally:
        algorithm.stop()


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code.

    Raises:
        SystemExit: An option is wrong (2), or help was requested (0).
    """
    default = RLlibConfig()
    parser = argparse.ArgumentParser(
        prog="python -m envweave.examples.train_lineworld_rllib",
        description="Train LineWorld with RLlib's PPO, and print the mean return.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--iterations", type=positive_int, default=default.iterations, metavar="N",
                        help="how often to collect steps and learn from them")  # fmt: skip
    parser.add_argument("--env-runners", type=positive_int, default=default.env_runners,
                        metavar="N", help="actors that step environments")  # fmt: skip
    parser.add_argument("--envs-per-runner", type=positive_int, default=default.envs_per_runner,
                        metavar="N", help="environments of each of them")  # fmt: skip
    parser.add_argument("--seed", type=int, default=default.seed, metavar="N", help="random seed")
    parser.add_argument("--record", type=Path, metavar="DIR",
                        help="record every episode into DIR, for `ew.load`")  # fmt: skip
    config = RLlibConfig(**vars(parser.parse_args(argv)))
    ray.init(logging_level=logging.ERROR, log_to_driver=False)
    try:
        sys.stdout.write("iteration   steps  mean return\n")
        for one in train(config):
            sys.stdout.write(f"{one.number:9}  {one.steps:6}  {one.mean_return:+11.3f}\n")
            sys.stdout.flush()
    finally:
        ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
