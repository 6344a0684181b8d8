"""Train a tiny transformer on CodeFix: `python -m envweave.examples.train_codefix_pg`.

The policy reads the prompt character by character and is trained from scratch by REINFORCE. It is
evaluated on held-out prompts of the test split before, during and after training. To check that
learning follows the reward, flip its sign (`--reward-sign -1`): success falls below chance.
"""

from __future__ import annotations

import io
import sys
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

import envweave as ew
from envweave.examples.codefix import OPERATORS
from envweave.examples.training import Policy, RunLog, evaluate, replace_file
from envweave.examples.training.program import (
    RECENT,
    ShowProgress,
    TrainingConfig,
    TrainingInterrupted,
    positive_float,
    positive_int,
    run_program,
    training_parser,
)

if TYPE_CHECKING:
    from envweave.examples.training.codefix_policy import Learner

__all__ = ["CodeFixConfig", "main", "train"]

ENV_ID = "codefix-v0"
CHECKPOINT = "checkpoint.pt"
CHOICES = np.array(OPERATORS)


@dataclass(frozen=True, kw_only=True)
class CodeFixConfig(TrainingConfig):
    """How to train on CodeFix.

    Attributes:
        learning_rate: The learning rate of AdamW.
        reward_sign: −1 flips the reward, to check that learning follows it.
        evaluation_episodes: How many held-out prompts evaluate a policy.
        checkpoint_every: After how many updates the run is saved and evaluated.
    """

    num_envs: int = 32
    episodes: int = 48_000
    learning_rate: float = 0.002
    reward_sign: int = 1
    evaluation_episodes: int = 500
    checkpoint_every: int = 50


def main(argv: list[str] | None = None, *, prog: str | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        argv: The options; by default those of this process.
        prog: The name of the command in its help.

    Raises:
        SystemExit: An option is wrong (2), or help was requested (0).
    """
    parser, add = training_parser(
        prog or "python -m envweave.examples.train_codefix_pg",
        "Train a tiny transformer on CodeFix from scratch, and show the curve.",
        CodeFixConfig(),
        ENV_ID,
        can_resume=True,
    )
    add("--learning-rate", type=positive_float, metavar="X", help="learning rate of AdamW")
    add("--reward-sign", type=int, choices=(1, -1),
        help="-1 flips the reward: a sanity check, success must fall below chance")  # fmt: skip
    add("--evaluation-episodes", type=positive_int, metavar="N",
        help="held-out prompts to evaluate a policy")  # fmt: skip
    add("--checkpoint-every", type=positive_int, metavar="N", help="updates between checkpoints")
    return run_program(parser, argv, CodeFixConfig, train)


def train(config: CodeFixConfig, show: ShowProgress | None = None) -> Path:
    """Train, evaluate, write log and checkpoints, and return the run's directory.

    Every update uses one episode of each environment. The tasks and operators that it draws depend
    only on the seed and the update's number, so a resumed run continues as if it had not stopped.

    Raises:
        MissingExtraError: torch is not installed.
        EnvWeaveError: The backend or the run directory is not available.
        TrainingInterrupted: Ctrl-C was pressed; the log keeps what was written.
    """
    try:
        import torch
    except ImportError:
        raise ew.errors.MissingExtraError.for_extra(
            "Training on CodeFix needs torch.", "train,torch"
        ) from None
    from envweave.examples.training.codefix_policy import Learner

    torch.set_num_threads(1)  # more don't speed up such a small network
    learner = Learner(len(OPERATORS), seed=config.seed, learning_rate=config.learning_rate)
    recorded = config.open_recorded_dir("codefix")
    with config.make_vector(ENV_ID, record=recorded) as venv:
        run_dir = recorded or config.open_run_dir("codefix")
        checkpoint, kept_lines = run_dir / CHECKPOINT, 0
        if config.resume and checkpoint.exists():
            state = torch.load(checkpoint, weights_only=True)
            learner.restore(state["learner"])
            kept_lines = state["log_lines"]
        with RunLog(run_dir, config.logged("CodeFix"), keep_lines=kept_lines) as log:
            run = _CodeFixTraining(config, venv, learner, log)
            try:
                if not kept_lines:
                    rng = np.random.default_rng(config.seed)
                    run.evaluate("random", lambda _: rng.choice(CHOICES, config.num_envs))
                while run.finished < config.episodes:
                    run.update(show)
                    if learner.updates % config.checkpoint_every == 0:
                        run.evaluate("trained", run.best, episode=run.finished)
                        state = {"learner": learner.state(), "log_lines": log.num_lines}
                        # In memory first: torch reports a full disk as a RuntimeError.
                        torch.save(state, buffer := io.BytesIO())
                        replace_file(checkpoint, partial(Path.write_bytes, data=buffer.getvalue()))
                run.evaluate("trained", run.best)
            except KeyboardInterrupt:
                log.write("interrupted", episodes=run.finished)
                raise TrainingInterrupted(run_dir, run.finished, can_resume=True) from None
    return run_dir


@final
class _CodeFixTraining:
    """A training run."""

    def __init__(
        self, config: CodeFixConfig, venv: ew.VectorEnv, learner: Learner, log: RunLog
    ) -> None:
        self._config, self._venv, self._learner, self._log = config, venv, learner, log
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)

    @property
    def finished(self) -> int:
        """How many episodes were trained on."""
        return self._learner.updates * self._config.num_envs

    def best(self, current: Any) -> Any:
        """Return the likeliest operators under the policy."""
        return CHOICES[self._learner.best(current["prompt"])]

    def evaluate(self, name: str, policy: Policy, **where: int) -> None:
        """Evaluate a policy on the held-out prompts, and log the result."""
        reached = evaluate(self._venv, policy, self._config.evaluation_episodes, split="test")
        self._log.write("evaluation", policy=name, **reached.logged(), **where)

    def update(self, show: ShowProgress | None) -> None:
        """Train on one episode of each environment."""
        rng = np.random.default_rng([self._config.seed, self._learner.updates])
        tasks = [f"train-{index}" for index in rng.integers(2**31, size=self._config.num_envs)]
        current = self._venv.reset(task=tasks).current
        choice = self._learner.choose(current["prompt"], rng)
        reward = self._venv.step(CHOICES[choice.chosen]).reward
        entropy = self._learner.update(choice, self._config.reward_sign * reward)
        # An episode that failed has no reward (NaN); the others count.
        earned = reward[~np.isnan(reward)]
        mean_return = float(earned.mean()) if len(earned) else None
        success = float((earned > 0).mean()) if len(earned) else None
        self._log.write(
            "update",
            update=self._learner.updates,
            episode=self.finished,
            success=success,
            entropy=round(entropy, 6),
            **{"return": mean_return},
        )
        if mean_return is not None and success is not None:
            self._recent.append((mean_return, success))
            if show is not None:
                recent = np.mean(self._recent, axis=0)
                show(self.finished, float(recent[0]), float(recent[1]))


if __name__ == "__main__":
    sys.exit(main())
