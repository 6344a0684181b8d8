"""Train LineWorld by policy gradient: `python -m envweave.examples.train_lineworld_pg`.

Writes `metrics.jsonl` and `metrics.png` into the run's directory, and shows the curve. To see
that the learning follows the reward, flip its sign (`--reward-sign -1`): success falls to
nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import envweave as ew
from envweave.examples.curves import blocks_for, moving_average, sparkline
from envweave.examples.lineworld_training import (
    RECENT,
    TrainingConfig,
    TrainingInterrupted,
    TrainingResult,
    train,
)
from envweave.examples.progress import show_progress

__all__ = ["TrainingConfig", "TrainingResult", "add_arguments", "main", "run", "train"]

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended."""


def main(argv: list[str] | None = None, *, prog: str | None = None) -> int:
    """Train as the options say, and return the exit code.

    Args:
        argv: The options, as on a command line; those of this process by default.
        prog: How the command is called, for its help.

    Raises:
        SystemExit: An option is wrong (2), or help was asked for (0).
    """
    parser = argparse.ArgumentParser(
        prog=prog or "python -m envweave.examples.train_lineworld_pg",
        description="Train LineWorld by policy gradient, and show the curve.",
    )
    add_arguments(parser)
    return run(parser.parse_args(argv))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of training, for `run` to read."""
    default = TrainingConfig()
    add = parser.add_argument
    add("--num-envs", type=_at_least_one, default=default.num_envs, metavar="N")
    add("--episodes", type=_at_least_one, default=default.episodes, metavar="N")
    add("--seed", type=_seed, default=default.seed, metavar="N", help="same seed, same run")
    add(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="a new or empty directory (default: a fresh one, runs/lineworld-seedN)",
    )
    add("--backend", default=default.backend, metavar="NAME", help="where the environments run")
    add("--learning-rate", type=_positive, default=default.learning_rate, metavar="X")
    add("--gamma", type=_discount, default=default.gamma, metavar="X", help="discount of a step")
    add(
        "--reward-sign",
        type=int,
        choices=(1, -1),
        default=default.reward_sign,
        help="-1 flips the reward: a sanity check, success must then fall to about 0",
    )
    add(
        "--evaluation-episodes",
        type=_at_least_one,
        default=default.evaluation_episodes,
        metavar="N",
        help="fresh episodes that measure the random and the trained policy",
    )
    add("--json", action="store_true", help="print the summary as JSON")


def run(options: argparse.Namespace) -> int:
    """Train as parsed options say, tell what came of it, and return the exit code."""
    settings = {name: value for name, value in vars(options).items() if name != "json"}
    try:
        with show_progress(options.episodes, sys.stderr) as show:
            result = train(TrainingConfig(**settings), show=show)
    except TrainingInterrupted as interruption:
        run_dir = interruption.run_dir
        sys.stderr.write(
            f"Interrupted after {interruption.episodes} episodes. The log is kept in {run_dir}; "
            f"draw it with: python -m envweave.examples.plots {run_dir}\n"
        )
        return INTERRUPTED
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        return INTERRUPTED
    except ew.EnvWeaveError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(
            f"Error: the run could not be written: {error.strerror}. What was written before is "
            "kept; make room, or choose another --run-dir.\n"
        )
        return 1
    if options.json:
        sys.stdout.write(json.dumps(as_plain(result)) + "\n")
    else:
        sys.stdout.write(as_text(result, blocks_for(sys.stdout.encoding)))
    return 0


def as_text(result: TrainingResult, blocks: str) -> str:
    """Return what a run reached for people, with its curves."""
    config, random, trained = result.config, result.random, result.trained
    window = max(1, min(RECENT, len(result.successes) // 4))
    success = moving_average(result.successes, window)
    earned = moving_average(result.returns, window)
    lines = [
        "",
        f"LineWorld, seed {config.seed}: {len(result.returns)} episodes, {result.steps:,} steps, "
        f"{result.updates} updates in {result.duration_s:.1f} s",
        "",
        f"  success  {sparkline(success, low=0, high=1, blocks=blocks)}  {success[-1]:.0%}",
        f"  return   {sparkline(earned, low=-1, high=1, blocks=blocks)}  {earned[-1]:+.2f}",
        f"           first to last episode, mean of the last {window}",
        "",
        f"  {random.episodes} fresh episodes each    success   return",
        f"  random policy           {random.success:>8.1%}  {random.mean_return:>+7.2f}",
        f"  trained policy, greedy  {trained.success:>8.1%}  {trained.mean_return:>+7.2f}",
        "",
        f"  {result.metrics}",
        f"  {result.picture or result.picture_missing}",
    ]
    if config.reward_sign == -1:
        lines.insert(2, "The reward's sign was flipped for the learner, so success must fall.")
    return "\n".join(lines) + "\n"


def as_plain(result: TrainingResult) -> dict[str, Any]:
    """Return what a run reached as plain data."""
    return {
        "seed": result.config.seed,
        "reward_sign": result.config.reward_sign,
        "episodes": len(result.returns),
        "steps": result.steps,
        "updates": result.updates,
        "duration_s": round(result.duration_s, 4),
        "evaluation_episodes": result.trained.episodes,
        "random": {"success": result.random.success, "return": result.random.mean_return},
        "trained": {"success": result.trained.success, "return": result.trained.mean_return},
        "metrics": str(result.metrics),
        "picture": None if result.picture is None else str(result.picture),
    }


def _at_least_one(text: str) -> int:
    return _whole(text, low=1)


def _seed(text: str) -> int:
    return _whole(text, low=0, high=2**31 - 1)


def _whole(text: str, *, low: int, high: int | None = None) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < low:
        raise argparse.ArgumentTypeError(f"{value} is too small; use {low} or more")
    if high is not None and value > high:
        raise argparse.ArgumentTypeError(f"{value} is too large; use {high} or less")
    return value


def _positive(text: str) -> float:
    value = _number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return value


def _discount(text: str) -> float:
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value


if __name__ == "__main__":
    sys.exit(main())
